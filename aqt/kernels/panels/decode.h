#ifndef AQT_KERNELS_PANELS_DECODE_H_
#define AQT_KERNELS_PANELS_DECODE_H_

// Converts narrow elements to f32 or bf16 elements of equal value.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// Element i of line l is src[l * src_line + i * src_step] and goes to dst[l * dst_line + i], for l < lines and i <
// count. To f32: from f32, bf16, f16, e4m3fn, e5m2, s8, s4 and s2. To bf16: from all of these except f32 and f16. To
// s8: from s8, s4 and s2.
//
// Infinities, NaN and subnormals keep their values; an e4m3fn or e5m2 NaN becomes the quiet NaN of its sign. With
// `subnormals_are_zero`, a subnormal f32 or bf16 becomes a zero of its sign. All targets give the same bits. Contiguous
// elements (src_step = 1) are fastest.
struct DecodeArgs {
  const void* src = nullptr;
  DType dtype = DType::kF32;
  int64_t src_line = 0;  // strides in elements of any sign, or zero
  int64_t src_step = 1;
  int64_t lines = 1;
  int64_t count = 0;
  bool subnormals_are_zero = false;
  // More such lines will be decoded soon: prefetch them. For short lines far apart, in which the hardware detects no
  // stream.
  bool prefetch = false;
};
void Decode(Target target, const DecodeArgs& args, int8_t* dst, int64_t dst_line);
void Decode(Target target, const DecodeArgs& args, float* dst, int64_t dst_line);
void Decode(Target target, const DecodeArgs& args, BFloat16* dst, int64_t dst_line);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_PANELS_DECODE_H_
