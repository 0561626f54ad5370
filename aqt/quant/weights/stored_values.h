#ifndef AQT_QUANT_WEIGHTS_STORED_VALUES_H_
#define AQT_QUANT_WEIGHTS_STORED_VALUES_H_

// From stored codes to float values, for every layout of quantized checkpoints. Plain loops: they are their own
// reference. Every product, quotient and sum is one f32 operation, in the order in which it is written here.

#include <cstdint>

#include "aqt/core/dtype.h"

namespace aqt::stored_values {

// ---- codes of few bits. Fast versions: kernels/quantize/decode_integers.h and decode_small_floats.h

// 2^(code - 127); NaN for 255.
float E8M0(uint8_t code);

// 8-bit floats (e4m3fn).
void UnpackE4M3(const uint8_t* codes, int64_t n, float* values);

// The index of the first integer outside of [low, high]; -1 if there is none.
int64_t FirstOutside(const int8_t* codes, int64_t n, int low, int high);

// A string of fields of `bits` bits, 1 to 8, in little-endian 32-bit words, least significant bits first.
struct BitFields {
  const uint8_t* words = nullptr;  // any alignment
  int64_t stride = 4;              // bytes from one word to the next
  int bits = 8;
  // Fields per word if each word begins with a new field; 0 if fields run across words.
  int64_t per_word = 0;

  uint32_t operator[](int64_t k) const;
};
// values[k] = field k - bias, for n fields.
void UnpackBits(const BitFields& fields, int64_t n, int bias, float* values);
// The words that n such fields take.
int64_t WordsFor(int64_t n, int bits, int64_t per_word = 0);
// Adds 1 to every field of n words, as one addition to each word: a field of all ones carries into the next one. `bits`
// divides 32.
void AddToFields(int bits, int64_t n, uint8_t* words);

// ---- scales

// w[i] = (q[i] - z[u]) * s[u] with u = (first + i) / group - first / group; z is zero if null. The differences are
// exact for integers of up to 23 bits.
void Scale(const float* q, const float* z, const float* s, int64_t n, int64_t first, int64_t group, float* w);
// s[i] = s[i] / global.
void DivideScales(float global, int64_t n, float* s);
// s[i] = s[i] * factor.
void MultiplyScales(float factor, int64_t n, float* s);
// s[i] = map[codes[i]] * absmax[(first + i) / block - first / block] + offset, rounded twice.
void NestedScales(const uint8_t* codes, const float* map, const float* absmax, float offset, int64_t n, int64_t first,
                  int64_t block, float* s);

// ---- results

// Rounds to `dtype` once, to nearest, ties to even.
void Round(const float* w, int64_t n, DType dtype, uint8_t* out);

}  // namespace aqt::stored_values

#endif  // AQT_QUANT_WEIGHTS_STORED_VALUES_H_
