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

// The minimum, even if the rows do not fit L2: this many rows hide the latency of loading the rhs from L3.
constexpr int64_t kMinBlockRows = 48;
// If this many rows fit L2, blocks pay off even for an lhs whose rows do not overlap.
constexpr int64_t kMinFittingRows = 96;

// Whether kMinFittingRows rows with all of their k fit L2.
bool FitL2(const GemmKernel& kernel, int64_t k) {
  return kernel.lhs.PanelBytes(k) * CeilDiv(kMinFittingRows, kernel.lhs.width) <= internal::kBlockBytes;
}

// Whether rows are multiplied by blocks of k: rows of at least this many bytes, and more than a few of them. A few rows
// read columns in one pass.
constexpr int64_t kSlicedRowBytes = 16 << 10;
bool IsSliced(const GemmKernel& kernel, int64_t m, int64_t k) {
  return kernel.add_block != nullptr && m >= kMinFittingRows &&
         kernel.lhs.PanelBytes(k) >= kSlicedRowBytes * kernel.lhs.width;
}

// How the rows of all matrices are split into blocks.
struct Blocks {
  int64_t panels = 0, panel_bytes = 0;  // per matrix
  int64_t count = 0;                    // blocks per matrix
  int64_t all = 0;                      // blocks in total
  bool sliced = false;                  // whether each block is multiplied by blocks of k

  Blocks(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t k, int64_t threads)
      : panels(kernel.lhs.NumPanels(m)), panel_bytes(kernel.lhs.PanelBytes(k)), sliced(IsSliced(kernel, m, k)) {
    const int64_t width = kernel.lhs.width, most = kernel.block_rows / width;
    const int64_t least = std::min(CeilDiv(kMinBlockRows, width), most);
    const int64_t fit = sliced ? most : internal::kBlockBytes / std::max<int64_t>(1, panel_bytes);
    count = CeilDiv(panels, std::clamp(fit, least, most));
    // An equal number for each thread.
    const int64_t even = CeilDiv(count, threads) * threads;
    if (batch % threads != 0 && even * least <= panels) count = even;
    all = batch * count;
  }
  int64_t First(int64_t block) const { return panels * block / count; }  // panel within a matrix
  // The offset of the panels of block i, out of all blocks, if the blocks are stored one after another.
  int64_t Begin(int64_t i) const { return (i / count * panels + First(i % count)) * panel_bytes; }
  int64_t NumParts(int64_t threads) const {
    return threads == 1 ? 1 : std::min(all, threads * internal::kPartsPerThread);
  }
};

// An lhs of this size stays in L2, so its rows need no prefetching.
constexpr int64_t kNearBytes = 256 << 10;

// The product of panels [first, last) of rows of matrix b, by blocks of k: each is packed and added to the sums of many
// columns. `buffer` has room for all k of these rows, which is more than a block of k and the sums.
void MultiplySliced(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& rhs, int64_t b,
                    int64_t first, int64_t last, char* buffer) {
  const int64_t panels = last - first, step = kernel.block_groups * kernel.lhs.k_group;
  const int64_t lhs_bytes = panels * kernel.lhs.PanelBytes(step);
  const int64_t sum_bytes = panels * kernel.lhs.width * kernel.rhs.width * int64_t{sizeof(float)};
  const int64_t room = std::min(internal::kSumBytes, panels * kernel.lhs.PanelBytes(problem.k) - lhs_bytes);
  const int64_t n_panels = kernel.rhs.NumPanels(problem.n);
  const int64_t parts = CeilDiv(n_panels, std::max<int64_t>(1, room / sum_bytes));
  for (int64_t part = 0; part < parts; ++part) {
    internal::MultiplyByBlocksOfK(kernel, problem, &rhs,
                                  {b, first, last, n_panels * part / parts, n_panels * (part + 1) / parts},
                                  {buffer, nullptr, reinterpret_cast<float*>(buffer + lhs_bytes)});
  }
}

}  // namespace

bool CanRunByBlocks(const GemmKernel& kernel, const Operand& lhs, const Executor* executor) {
  const int64_t m = lhs.rows.Count(), k = lhs.k.Count(), batch = lhs.batch.Count();
  const int64_t threads = executor == nullptr ? 1 : executor->NumThreads();
  if (batch == 0 || m == 0 || k == 0) return false;
  return Blocks(kernel, batch, m, k, threads).NumParts(threads) >= threads;
}

bool IsFasterByBlocks(const GemmKernel& kernel, const Operand& lhs) {
  return FitL2(kernel, lhs.k.Count()) || IsSliced(kernel, lhs.rows.Count(), lhs.k.Count());
}

void RunGemmByBlocks(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& rhs, void* buffer,
                     Executor* executor) {
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0) return;
  const int64_t threads = internal::NumThreads(problem, executor);
  const Blocks blocks(kernel, problem.batch, problem.m, problem.k, threads);
  const int64_t parts = blocks.NumParts(threads);
  const bool comes_from_l3 = problem.batch * blocks.panels * blocks.panel_bytes > kNearBytes;
  const auto run = [&](int64_t part) {
    const int64_t begin = blocks.all * part / parts, end = blocks.all * (part + 1) / parts;
    // All blocks of the part take turns in the space of its first and its next block, which may be larger.
    char* const panels = static_cast<char*>(buffer) + blocks.Begin(begin);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / blocks.count, block = i % blocks.count;
      const int64_t first = blocks.First(block), last = blocks.First(block + 1);
      if (blocks.sliced) {
        MultiplySliced(kernel, problem, rhs, b, first, last, panels);
        continue;
      }
      PackPanels(kernel.target, kernel.lhs, problem.lhs, {b, first, last, 0, problem.k}, panels,
                 problem.subnormals_are_zero);
      // The kernel looks for row m0 behind the rows before it, which are not there.
      GemmPanels own = rhs;
      own.lhs = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(panels) - first * blocks.panel_bytes);
      own.lhs_batch_bytes = 0;
      const int64_t width = kernel.lhs.width;
      if (i + 1 < end && comes_from_l3) {
        const int64_t next = (i + 1) % blocks.count;
        own.ahead =
            internal::AheadOf(kernel.lhs, problem.lhs,
                              {(i + 1) / blocks.count, blocks.First(next), blocks.First(next + 1), 0, problem.k});
      }
      internal::RunBlock(kernel, problem, own, b, first * width, std::min(last * width, problem.m), 0, problem.n);
    }
  };
  internal::RunReported(kernel, problem, [&] {
    if (parts == 1) run(0);
    else executor->ParallelFor(parts, run);
  });
}

}  // namespace aqt::kernels
