#include "aqt/kernels/gemm/by_blocks.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/long_k.h"
#include "aqt/kernels/gemm/report.h"
#include "aqt/kernels/panels/pack_panels.h"

namespace aqt::kernels {
namespace {

// The product of panels [first, last) of the rows of matrix b, by blocks of k. Each block is packed and added to the
// sums of many columns. `buffer` has room for all k of these rows, which is more than a block of k plus the sums.
void MultiplySliced(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& rhs, int64_t b,
                    int64_t first, int64_t last, char* buffer) {
  const int64_t panels = last - first, step = kernel.block_groups * kernel.lhs.k_group;
  const int64_t lhs_bytes = panels * kernel.lhs.PanelBytes(step);
  const int64_t sum_bytes = panels * kernel.lhs.width * kernel.rhs.width * int64_t{sizeof(float)};
  const int64_t room = std::min(kSumBytes, panels * kernel.lhs.PanelBytes(problem.k) - lhs_bytes);
  const int64_t n_panels = kernel.rhs.NumPanels(problem.n);
  const int64_t parts = CeilDiv(n_panels, std::max<int64_t>(1, room / sum_bytes));
  for (int64_t part = 0; part < parts; ++part) {
    internal::MultiplyByBlocksOfK(kernel, problem, &rhs,
                                  {b, first, last, n_panels * part / parts, n_panels * (part + 1) / parts},
                                  {buffer, nullptr, reinterpret_cast<float*>(buffer + lhs_bytes)});
  }
}

}  // namespace

void RunGemmByBlocks(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& rhs, const BlockCuts& cuts,
                     void* buffer, Executor* executor) {
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0) return;
  const internal::GemmReport report(kernel, problem);
  const int64_t blocks = problem.batch * cuts.count;
  const auto run = [&](int64_t part) {
    const int64_t begin = blocks * part / cuts.parts, end = blocks * (part + 1) / cuts.parts;
    // All blocks of the part take turns in the space of its first and its next block, which may be larger.
    char* const panels = static_cast<char*>(buffer) + cuts.Begin(begin);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / cuts.count, block = i % cuts.count;
      const int64_t first = cuts.First(block), last = cuts.First(block + 1);
      if (cuts.sliced) {
        MultiplySliced(kernel, problem, rhs, b, first, last, panels);
        continue;
      }
      PackPanels(kernel.target, kernel.lhs, problem.lhs, {b, first, last, 0, problem.k}, panels,
                 problem.subnormals_are_zero);
      // The kernel computes the address of row m0 relative to row 0, which is not stored.
      GemmPanels own = rhs;
      own.lhs = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(panels) - first * cuts.panel_bytes);
      own.lhs_batch_bytes = 0;
      const int64_t width = kernel.lhs.width;
      if (i + 1 < end && cuts.fetches) {
        const int64_t next = (i + 1) % cuts.count;
        own.ahead = internal::AheadOf(kernel.lhs, problem.lhs,
                                      {(i + 1) / cuts.count, cuts.First(next), cuts.First(next + 1), 0, problem.k});
      }
      internal::RunBlock(kernel, problem, own, b, first * width, std::min(last * width, problem.m), 0, problem.n);
    }
  };
  if (cuts.parts == 1) run(0);
  else executor->ParallelFor(cuts.parts, run);
}

}  // namespace aqt::kernels
