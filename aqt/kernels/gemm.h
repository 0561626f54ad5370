#ifndef AQT_KERNELS_GEMM_H_
#define AQT_KERNELS_GEMM_H_

// The matrix product of packed operands, common to all element types:
//   out[b, m, n] = epilogue(sum over k of lhs[b, m, k] * rhs[b, n, k])
// How a caller uses it (lhs quantized in each call, rhs packed once):
//   const GemmKernel& kernel = GemmS8(BestTarget());
//   Pack(kernel.target, kernel.rhs, weights, rhs_panels, executor);
//   QuantizePack(kernel.target, kernel.lhs, {.src = x, .scale = x_scale, .panels = lhs_panels}, AbsMaxScale(),
//                executor);
//   RunGemm(kernel, args, executor);

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/panel_format.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

// What happens to a sum on its way to memory. In this order, each step rounded once (to nearest, ties to even):
//   1. conversion to f32, then to sum_dtype;
//   2. times the first scale, in f32, then to first_dtype;
//   3. times the second scale, in f32, then to second_dtype;
//   4. to the output's dtype.
// A step whose scale is absent does nothing. Products and sums are never contracted into one rounding.
struct Epilogue {
  // lhs_scale[b * lhs_batch_stride + m * lhs_stride] belongs to a row of the product, rhs_scale[b * rhs_batch_stride +
  // n * rhs_stride] to a column. Null: absent. Inner strides are 0 (one for all) or 1.
  const float* lhs_scale = nullptr;
  const float* rhs_scale = nullptr;
  int64_t lhs_stride = 1, lhs_batch_stride = 0;
  int64_t rhs_stride = 1, rhs_batch_stride = 0;
  // The first scale is the lhs's, as in AQT; with rhs_first the rhs's (for products whose sides a caller has swapped).
  bool rhs_first = false;
  // f32, bf16 or f16.
  DType sum_dtype = DType::kF32, first_dtype = DType::kF32, second_dtype = DType::kF32;
  // After steps 2 and 3 a subnormal f32 becomes a zero of its sign (XLA on CPU).
  bool subnormals_are_zero = false;

  // True when all steps are in f32 and none flushes: what tiles do in registers.
  bool IsPlainF32() const {
    return !subnormals_are_zero && sum_dtype == DType::kF32 && first_dtype == DType::kF32 &&
           second_dtype == DType::kF32;
  }
};

struct GemmArgs {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  // Panels in the kernel's formats; distances between the matrices of a batch in bytes, 0 to use one for all.
  const void* lhs = nullptr;
  const void* rhs = nullptr;
  int64_t lhs_batch_bytes = 0, rhs_batch_bytes = 0;

  // Output: s32 (the sums themselves, no epilogue; s8 kernels only), f32, bf16 or f16. Any strides that address each
  // element once; columns at stride 1 are fast.
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  AxisGroup out_batch, out_rows, out_cols;

  Epilogue epilogue;
};

// One way to compute the product. Objects are constants of the program.
struct GemmKernel {
  const char* name;  // "avx2", "emulated_avx2", ...
  Target target;     // the instructions it uses; also the target to pack with
  PanelFormat lhs, rhs;
  // One part of the work: rows [m0, m1), at most 192, and columns [n0, n1) of matrix b; m0 and n0 are multiples of the
  // panel widths.
  void (*block)(const GemmArgs& args, int64_t b, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
};

// Runs the kernel over all of args, split over the executor's threads when that is worth waking them. Sums of integers
// are the same for any split; sums of floats are added in the order of k, whatever m, n, the batch and the split are.
void RunGemm(const GemmKernel& kernel, const GemmArgs& args, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_H_
