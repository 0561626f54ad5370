#ifndef AQT_KERNELS_SMALL_FLOATS_QUANTIZE_FP8_H_
#define AQT_KERNELS_SMALL_FLOATS_QUANTIZE_FP8_H_

// Converts float matrices to 8-bit floats, elementwise, with given inverse scales, by the rules of AQT.
//
// With T the dtype of the product and R(v) the f32 value v rounded to T (nearest, ties to even):
//   q = the 8-bit float nearest to clamp(R(x * inv_scale), -max, max), ties to even; a NaN gives the positive quiet NaN
// `max` is the largest finite value: 448 (e4m3fn) or 57344 (e5m2). Results below the smallest normal number are
// subnormal, and zeros have the sign of the product. All targets give the same bits.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/scale_grid.h"

namespace aqt::kernels {

// The input, inverse scales and output of QuantizeFp8.
struct QuantizeFp8Args {
  FloatMatrix x;
  DType product_dtype = DType::kF32;  // f32, or the dtype of x
  ScaleGrid grid;                     // inverse scales; zero_point is null
  bool subnormals_are_zero = false;   // subnormal f32 and bf16 x count as zero
  DType q_dtype = DType::kE4M3FN;     // or kE5M2
  // The code of element (r, c) goes to q[r * q_row_stride + c * q_col_stride].
  uint8_t* q = nullptr;
  int64_t q_row_stride = 0;
  int64_t q_col_stride = 1;
};
void QuantizeFp8(const QuantizeFp8Args& args, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_SMALL_FLOATS_QUANTIZE_FP8_H_
