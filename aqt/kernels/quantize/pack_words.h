#ifndef AQT_KERNELS_QUANTIZE_PACK_WORDS_H_
#define AQT_KERNELS_QUANTIZE_PACK_WORDS_H_

// Integers of 2 to 8 bits packed into 32-bit words, the first one in the lowest bits: the layout "pack-quantized" of
// compressed-tensors. The words are one stream of bits, in which integer i, as q + 2^(num_bits - 1), has the bits from
// i * num_bits on. All targets give the same bits.

#include <cstdint>

#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// The largest number of words that PackWords can make of n integers: those that no integer crosses the end of.
inline int64_t WholeWords(int64_t n, int num_bits) {
  return 32 % num_bits == 0 ? n * num_bits / 32 : n / 32 * num_bits;
}

// Packs the first num_words * 32 / num_bits integers into `num_words` words, a number that WholeWords gives. Returns
// false, with meaningless words, if one of them is outside [-2^(num_bits - 1), 2^(num_bits - 1) - 1].
bool PackWords(const int8_t* q, int64_t num_words, int num_bits, int32_t* words, Target target = BestTarget());

// The inverse of PackWords.
void UnpackWords(const int32_t* words, int64_t num_words, int num_bits, int8_t* q, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_PACK_WORDS_H_
