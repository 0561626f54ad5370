#include "aqt/kernels/gemm/product.h"

#include <algorithm>
#include <cstdint>

#include "aqt/kernels/gemm/by_blocks.h"
#include "aqt/kernels/gemm/few_rows.h"
#include "aqt/kernels/gemm/long_k.h"
#include "aqt/kernels/panels/pack.h"

namespace aqt::kernels {

ProductBytes ProductBytesOf(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k) {
  // A few rows never need more than their panels.
  return {.lhs = std::max(batch * kernel.lhs.PackedBytes(m, k), FasterLongKBytes(kernel, batch, m, n, k)),
          .rhs = batch * kernel.rhs.PackedBytes(n, k)};
}

void RunProduct(const GemmKernel& kernel, const ProductOperands& operands, GemmArgs args, const ProductBuffers& buffers,
                Executor* executor) {
  const Operand &lhs = operands.lhs, &rhs = operands.rhs;
  const bool zeros = operands.subnormals_are_zero;
  if (operands.lhs_panels == nullptr && operands.rhs_panels == nullptr) {
    if (ShouldMultiplyFewRows(kernel, lhs, rhs)) {
      return MultiplyFewRows(kernel, lhs, rhs, zeros, args, static_cast<float*>(buffers.lhs), executor);
    }
    if (!args.epilogue.adds && !operands.lhs_rows_overlap && IsFasterLongK(kernel, args, executor)) {
      return RunGemmLongK(kernel, lhs, rhs, zeros, args, buffers.lhs, executor);
    }
  }
  const auto packed = [&](const PanelFormat& format, const Operand& x, const void* panels, void* buffer) {
    if (panels != nullptr) return panels;
    Pack(kernel.target, format, x, buffer, executor, zeros);
    return static_cast<const void*>(buffer);
  };
  args.rhs = packed(kernel.rhs, rhs, operands.rhs_panels, buffers.rhs);
  args.rhs_batch_bytes = kernel.rhs.PackedBytes(args.n, args.k);
  if (operands.lhs_panels == nullptr && !args.epilogue.adds &&
      (operands.lhs_rows_overlap || IsFasterByBlocks(kernel, lhs)) && CanRunByBlocks(kernel, lhs, executor)) {
    return RunGemmByBlocks(kernel, lhs, zeros, args, buffers.lhs, executor);
  }
  args.lhs = packed(kernel.lhs, lhs, operands.lhs_panels, buffers.lhs);
  args.lhs_batch_bytes = kernel.lhs.PackedBytes(args.m, args.k);
  RunGemm(kernel, args, executor);
}

}  // namespace aqt::kernels
