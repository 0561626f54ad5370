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

void PackAndMultiply(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& packed,
                     const ProductBuffers& buffers, Executor* executor) {
  const Operand &lhs = problem.lhs, &rhs = problem.rhs;
  const bool adds = problem.epilogue.adds, overlap = problem.lhs_rows_overlap;
  if (packed.lhs == nullptr && packed.rhs == nullptr) {
    if (ShouldMultiplyFewRows(kernel, lhs, rhs)) {
      return MultiplyFewRows(kernel, problem, static_cast<float*>(buffers.lhs), executor);
    }
    if (!adds && !overlap && IsFasterLongK(kernel, problem, executor)) {
      return RunGemmLongK(kernel, problem, buffers.lhs, executor);
    }
  }
  const auto pack = [&](const PanelFormat& format, const Operand& x, const void* panels, void* buffer) {
    if (panels != nullptr) return panels;
    Pack(kernel.target, format, x, buffer, executor, problem.subnormals_are_zero);
    return static_cast<const void*>(buffer);
  };
  GemmPanels panels = {.rhs = pack(kernel.rhs, rhs, packed.rhs, buffers.rhs),
                       .lhs_batch_bytes = kernel.lhs.PackedBytes(problem.m, problem.k),
                       .rhs_batch_bytes = kernel.rhs.PackedBytes(problem.n, problem.k)};
  if (packed.lhs == nullptr && !adds && (overlap || IsFasterByBlocks(kernel, lhs)) &&
      CanRunByBlocks(kernel, lhs, executor)) {
    return RunGemmByBlocks(kernel, problem, panels, buffers.lhs, executor);
  }
  panels.lhs = pack(kernel.lhs, lhs, packed.lhs, buffers.lhs);
  RunGemm(kernel, problem, panels, executor);
}

}  // namespace aqt::kernels
