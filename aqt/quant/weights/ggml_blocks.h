#ifndef AQT_QUANT_WEIGHTS_GGML_BLOCKS_H_
#define AQT_QUANT_WEIGHTS_GGML_BLOCKS_H_

// The values of GGUF's blocks, and blocks of values. docs/formats/gguf.md has the rules. Every product and sum is one
// f32 operation, in the order of the `gguf` package, whose dequantizer gives the same values.

#include <cstdint>

#include "aqt/quant/weights/ggml_types.h"

namespace aqt::ggml {

// Whether DecodeBlocks knows the type: all block types but Q1_0, Q8_1 and Q8_K.
bool CanDecode(Type type);
// values[k * block_values + i] = value i of block k, for n blocks; CanDecode(type) holds. Every bit pattern is a block;
// an infinite or NaN scale gives infinities and NaNs.
void DecodeBlocks(Type type, const uint8_t* blocks, int64_t n, float* values);

// Whether EncodeBlocks knows the type: Q8_0, Q4_0, Q4_K, Q6_K, MXFP4.
bool CanEncode(Type type);
// The blocks of n * block_values values; CanEncode(type) holds. Returns -1, or the index of a value that cannot be
// encoded: a NaN, an infinity, or the largest of its block if the scale would overflow. Blocks from there on are not
// written.
//   Q8_0, Q4_0, MXFP4: bit for bit as the `gguf` package and ggml's reference code do.
//   Q4_K, Q6_K: by a search for the least squared error, which is never larger than that of kPlain.
enum class Search : uint8_t {
  kBest,
  kPlain,  // each group's scale is from its largest magnitude (Q6_K), or its smallest and largest value (Q4_K)
};
int64_t EncodeBlocks(Type type, const float* values, int64_t n, uint8_t* blocks, Search search = Search::kBest);

}  // namespace aqt::ggml

#endif  // AQT_QUANT_WEIGHTS_GGML_BLOCKS_H_
