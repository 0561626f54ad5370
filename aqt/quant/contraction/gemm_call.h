#ifndef AQT_QUANT_CONTRACTION_GEMM_CALL_H_
#define AQT_QUANT_CONTRACTION_GEMM_CALL_H_

// One call of a matrix kernel, for all contractions. Internal.

#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/operand.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/workspace.h"

namespace aqt::internal {

// out[b, m, n] = epilogue(sum over k of lhs[b, m, k] * rhs[b, n, k])
struct GemmCall {
  kernels::Operand lhs, rhs;
  // The operands as the kernel's panels; those that are null are packed first.
  const void* lhs_panels = nullptr;
  const void* rhs_panels = nullptr;
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  OutputAxes out_axes;
  kernels::Epilogue epilogue;
};
void RunGemmCall(const kernels::GemmKernel& kernel, const GemmCall& call, Workspace& workspace, Executor* executor);

// x packed for one side of the kernel. Subnormal f32 and bf16 operands of a product of floats become zero.
void PackOperand(const kernels::GemmKernel& kernel, Side side, const kernels::Operand& x, void* panels,
                 Executor* executor);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_GEMM_CALL_H_
