#ifndef AQT_KERNELS_QUANTIZE_PACK_WORDS_H_
#define AQT_KERNELS_QUANTIZE_PACK_WORDS_H_

// 2, 4 or 8-bit integers packed into 32-bit words, the first one in the lowest bits: the layout "pack-quantized" of
// compressed-tensors. With k = 32 / num_bits, word i holds q[i k] .. q[i k + k - 1], each as q + 2^(num_bits - 1). All
// targets give the same bits.

#include <cstdint>

#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// Whether words can hold integers of num_bits.
inline bool PacksWords(int num_bits) { return num_bits == 2 || num_bits == 4 || num_bits == 8; }

// Packs `num_words` whole words. Returns false, with meaningless words, if a value is outside [-2^(num_bits - 1),
// 2^(num_bits - 1) - 1].
bool PackWords(const int8_t* q, int64_t num_words, int num_bits, int32_t* words, Target target = BestTarget());

// The inverse of PackWords.
void UnpackWords(const int32_t* words, int64_t num_words, int num_bits, int8_t* q, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_PACK_WORDS_H_
