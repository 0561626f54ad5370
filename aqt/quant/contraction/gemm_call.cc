#include "aqt/quant/contraction/gemm_call.h"

#include "aqt/kernels/pack.h"

namespace aqt::internal {

void PackOperand(const kernels::GemmKernel& kernel, Side side, const kernels::Operand& x, void* panels,
                 Executor* executor) {
  kernels::Pack(kernel.target, side == Side::kLhs ? kernel.lhs : kernel.rhs, x, panels, executor,
                /*subnormals_are_zero=*/true);
}

void RunGemmCall(const kernels::GemmKernel& kernel, const GemmCall& call, Workspace& workspace, Executor* executor) {
  const auto panels = [&](Side side, const kernels::Operand& x, const void* packed) {
    if (packed != nullptr) return packed;
    const bool lhs = side == Side::kLhs;
    void* buffer = workspace.Get(OfSide(lhs, ScratchSlot::kLhsPacked), PanelBytes(lhs ? kernel.lhs : kernel.rhs, x));
    PackOperand(kernel, side, x, buffer, executor);
    return static_cast<const void*>(buffer);
  };
  kernels::GemmArgs args;
  args.batch = call.lhs.batch.Count();
  args.m = call.lhs.rows.Count();
  args.n = call.rhs.rows.Count();
  args.k = call.lhs.k.Count();
  args.lhs = panels(Side::kLhs, call.lhs, call.lhs_panels);
  args.rhs = panels(Side::kRhs, call.rhs, call.rhs_panels);
  args.lhs_batch_bytes = kernel.lhs.PackedBytes(args.m, args.k);
  args.rhs_batch_bytes = kernel.rhs.PackedBytes(args.n, args.k);
  args.out = call.out;
  args.out_dtype = call.out_dtype;
  args.out_batch = call.out_axes.batch;
  args.out_rows = call.out_axes.rows;
  args.out_cols = call.out_axes.cols;
  args.epilogue = call.epilogue;
  kernels::RunGemm(kernel, args, executor);
}

}  // namespace aqt::internal
