#ifndef AQT_KERNELS_SMALL_FLOATS_SMALL_FLOATS_H_
#define AQT_KERNELS_SMALL_FLOATS_SMALL_FLOATS_H_

// Converts float matrices to floats of 4, 6 and 8 bits in small groups of a row, whose scales have 8 bits themselves,
// by the rules of compressed-tensors for the MX formats and NVFP4.
//
// With T the dtype of x and R(v) the f32 value v rounded to T (nearest, ties to even):
//   MxScales:             p = absmax rounded to a power of two, up from 1.75 times it (e2m3: 1.9375), in the bits of T
//                         exponent = max(0, log2(p) - k + 127), 0 for p = 0, with k = 2 (e2m1, e2m3) or 8 (e4m3);
//                         factor = 2^(127 - exponent)
//   E4M3Scales:           scale = e4m3fn(global * R(absmax / 6)), 0.125 instead of 0; factor = scale / global
//   QuantizeSmallFloats:  y = R(x * factor), or x / factor without R
//                         q = y clamped to the range of the type, rounded to nearest, ties to even
// A negative y that rounds to 0 keeps its sign. For y = -0 e2m1 and e4m3fn give +0, and e2m3 gives -0.
// All targets give the same bits for finite x. small_floats_reference.h is the plain version.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"

namespace aqt::kernels {

// Types without infinities: sign, exponent and mantissa. The largest values are 6, 7.5 and 448.
enum class SmallFloat : uint8_t { kE2M1, kE2M3, kE4M3 };

constexpr int BitsOf(SmallFloat type) { return type == SmallFloat::kE2M1 ? 4 : type == SmallFloat::kE2M3 ? 6 : 8; }

// The exponent of a group whose power of two overflows T or whose absmax is not finite; its factor is 0.
inline constexpr uint8_t kNoExponent = 255;

// The exponents and factors of n groups, given the absolute maxima of their values, which have type `dtype`.
void MxScales(const float* absmax, int64_t n, DType dtype, SmallFloat type, uint8_t* exponent, float* factor,
              Target target = BestTarget());

// The scales and factors of n groups under a global scale, which is positive and finite.
void E4M3Scales(const float* absmax, int64_t n, DType dtype, float global, Float8E4M3FN* scale, float* factor,
                Target target = BestTarget());

// The input, factors and output of QuantizeSmallFloats.
struct QuantizeSmallFloatsArgs {
  FloatMatrix x;  // col_stride 1
  SmallFloat type = SmallFloat::kE2M1;
  int64_t group = 32;             // 16 or 32 columns; divides x.cols
  const float* factor = nullptr;  // [rows, cols / group], dense; powers of two or 0 unless `divide`
  bool divide = false;            // y = x / factor; only with kE2M1
  // Rows of cols * BitsOf(type) / 8 bytes, dense. Value k of a row takes bits [k * bits, (k + 1) * bits) of its
  // little-endian bit stream.
  uint8_t* q = nullptr;
};
void QuantizeSmallFloats(const QuantizeSmallFloatsArgs& args, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_SMALL_FLOATS_SMALL_FLOATS_H_
