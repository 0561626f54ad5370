#ifndef AQT_KERNELS_SMALL_FLOATS_DECODE_SMALL_FLOATS_H_
#define AQT_KERNELS_SMALL_FLOATS_DECODE_SMALL_FLOATS_H_

// From codes of floats of 4, 6 and 8 bits, packed as in QuantizeSmallFloatsArgs::q, to their values:
//   x[i] = value(code i) * scale[i / group], one f32 multiplication
// A code of e4m3fn that is not a number gives a NaN. All targets give the same bits for finite results.
// small_floats_reference.h is the plain version.

#include <cstdint>

#include "aqt/core/machine/target.h"
#include "aqt/kernels/small_floats/small_floats.h"

namespace aqt::kernels {

// The input and output of DecodeSmallFloats.
struct DecodeSmallFloatsArgs {
  const uint8_t* q = nullptr;
  SmallFloat type = SmallFloat::kE2M1;
  int64_t n = 0;                 // values that fill whole bytes: even for e2m1, a multiple of 4 for e2m3
  int64_t group = 32;            // positive; the last group may be smaller
  const float* scale = nullptr;  // one per group
  float* x = nullptr;            // [n]
};
void DecodeSmallFloats(const DecodeSmallFloatsArgs& args, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_SMALL_FLOATS_DECODE_SMALL_FLOATS_H_
