#include "aqt/kernels/gemm/product.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/machine/machine.h"
#include "aqt/kernels/gemm/by_blocks.h"
#include "aqt/kernels/gemm/few_rows.h"
#include "aqt/kernels/gemm/long_k.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/panels/pack.h"

namespace aqt::kernels {

ProductBytes ProductBytesOf(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k) {
  // A few rows never need more than their panels.
  return {
      .lhs = std::max(batch * kernel.lhs.PackedBytes(m, k), ChosenLongKBytes(kernel, batch, m, n, k, ThisMachine())),
      .rhs = batch * kernel.rhs.PackedBytes(n, k)};
}

void PackAndMultiply(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& packed,
                     const ProductBuffers& buffers, Executor* executor) {
  const GemmSchedule schedule = Choose(kernel, problem, packed, ThisMachine(), ThreadsOf(executor));
  if (schedule.strategy == GemmStrategy::kFewRows) {
    return MultiplyFewRows(kernel, problem, static_cast<float*>(buffers.lhs), executor);
  }
  if (schedule.strategy == GemmStrategy::kLongK) {
    return RunGemmLongK(kernel, problem, schedule.long_k, buffers.lhs, executor);
  }
  const auto pack = [&](const PanelFormat& format, const Operand& x, const void* panels, void* buffer) {
    if (panels != nullptr) return panels;
    Pack(kernel.target, format, x, buffer, executor, problem.subnormals_are_zero);
    return static_cast<const void*>(buffer);
  };
  GemmPanels panels = {.rhs = pack(kernel.rhs, problem.rhs, packed.rhs, buffers.rhs),
                       .lhs_batch_bytes = kernel.lhs.PackedBytes(problem.m, problem.k),
                       .rhs_batch_bytes = kernel.rhs.PackedBytes(problem.n, problem.k)};
  if (schedule.strategy == GemmStrategy::kByBlocks) {
    return RunGemmByBlocks(kernel, problem, panels, schedule.blocks, buffers.lhs, executor);
  }
  panels.lhs = pack(kernel.lhs, problem.lhs, packed.lhs, buffers.lhs);
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0) return;
  internal::RunPanels(kernel, problem, panels, schedule, executor);
}

}  // namespace aqt::kernels
