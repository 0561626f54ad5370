#ifndef AQT_KERNELS_SMALL_FLOATS_E4M3_H_
#define AQT_KERNELS_SMALL_FLOATS_E4M3_H_

// Converts float matrices to 8-bit floats (e4m3fn) and back, elementwise, with given scales, by the rules of
// compressed-tensors.
//
// With T the dtype of the floats and R(v) the f32 value v rounded to T (nearest, ties to even):
//   QuantizeE4M3:    q = e4m3fn(clamp(R(x / scale) + 0, -448, 448)), to nearest, ties to even; a NaN gives 0x7f. The 0
//                    is the zero point: it turns a quotient of -0 into +0. A nonzero quotient below the smallest e4m3fn
//                    keeps its sign
//   DequantizeE4M3:  x = R(q * scale); a NaN gives the positive quiet NaN of T
// Subnormals in x, scale and q keep their values. All targets give the same bits. e4m3_reference.h is the plain
// version.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/scale_grid.h"

namespace aqt::kernels {

// The input, scales and output of QuantizeE4M3.
struct QuantizeE4M3Args {
  FloatMatrix x;
  ScaleGrid grid;  // zero_point is null
  // Element (r, c) goes to q[r * q_row_stride + c * q_col_stride].
  Float8E4M3FN* q = nullptr;
  int64_t q_row_stride = 0;
  int64_t q_col_stride = 1;
};
void QuantizeE4M3(const QuantizeE4M3Args& args, Target target = BestTarget());

// The input, scales and output of DequantizeE4M3.
struct DequantizeE4M3Args {
  const Float8E4M3FN* q = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t q_row_stride = 0;
  int64_t q_col_stride = 1;
  ScaleGrid grid;  // zero_point is null
  // Element (r, c) goes to x[r * row_stride + c * col_stride], with element type `dtype` (kF32, kBF16 or kF16).
  void* x = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};
void DequantizeE4M3(const DequantizeE4M3Args& args, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_SMALL_FLOATS_E4M3_H_
