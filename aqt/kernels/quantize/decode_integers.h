#ifndef AQT_KERNELS_QUANTIZE_DECODE_INTEGERS_H_
#define AQT_KERNELS_QUANTIZE_DECODE_INTEGERS_H_

// From integer codes of checkpoints to their values. Each operation is rounded to f32. All targets give the same bits
// for finite results. decode_integers_reference.h is the plain version.

#include <cstdint>

#include "aqt/core/machine/target.h"

namespace aqt::kernels {

enum class CodeLayout : uint8_t {
  kBytes,   // a signed byte each
  kFields,  // a string of fields of `bits` bits, least significant bits of the first byte first
  kWords,   // the field at bit `shift` of a little-endian 32-bit word each
};

// The input and output of DecodeIntegers:
//   x[i] = (code i - bias - zero[g]) * scale[g] * factor,  with g = group_of[i], or i / group without group_of
struct DecodeIntegersArgs {
  const uint8_t* q = nullptr;  // any alignment
  CodeLayout layout = CodeLayout::kBytes;
  int bits = 8;   // kFields, kWords: 1 to 8
  int shift = 0;  // kWords
  int bias = 0;   // of at most 8 bits
  int64_t n = 0;
  int64_t group = 1;                  // positive; the last group may be smaller
  const int32_t* group_of = nullptr;  // [n], or null
  const float* zero = nullptr;        // one per group; null: 0
  const float* scale = nullptr;       // one per group
  float factor = 1;
  float* x = nullptr;  // [n]
};
void DecodeIntegers(const DecodeIntegersArgs& args, Target target = BestTarget());

// The input and output of DecodeByMap:
//   x[i] = map[code first + i] * scale[(first + i) / group - first / group]
// Two codes per byte, the one in the high bits first.
struct DecodeByMapArgs {
  const uint8_t* q = nullptr;  // the byte of code `first`
  const float* map = nullptr;  // [16]
  int64_t first = 0;
  int64_t n = 0;
  int64_t group = 1;             // positive
  const float* scale = nullptr;  // one per group, from that of code `first` on
  float* x = nullptr;            // [n]
};
void DecodeByMap(const DecodeByMapArgs& args, Target target = BestTarget());

// A matrix of words in memory with other strides: words of row r, column c from from[r * from_stride + c] to
// to[c * to_stride + r]. The strides count words.
void TransposeWords(const uint32_t* from, int64_t rows, int64_t cols, int64_t from_stride, uint32_t* to,
                    int64_t to_stride, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_DECODE_INTEGERS_H_
