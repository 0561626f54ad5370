#include "aqt/kernels/gemm/schedule.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {
namespace {

// ---- kPanels

// Accumulating products: sums of this size stay in L1 or L2, and the rhs is read in runs long enough to hide its
// latency.
constexpr int64_t kAddedBytes = 16 << 10;
constexpr int64_t kMinAddedColumns = 256;

// What a task pays besides its tiles, in the time of one tile: for each panel of columns, which comes from L2 or L3,
// and for each panel of rows, which comes from L3 once.
constexpr double kColumnsCost = 0.5, kRowsCost = 0.25;
// The part of a task by which one thread ends later than another.
constexpr double kLateEnd = 0.05;

// Cuts every matrix of a batch into at least `least` tasks, so that the thread with the most work has as little as
// possible: all threads then end at about the same time, and tasks have many rows for each panel of columns. At most
// `per_thread` tasks for a thread, or twice the least if that is more.
PanelCuts EvenTasks(const PanelCuts& least, int64_t per_thread, int64_t batch, int64_t m_panels, int64_t n_panels,
                    int64_t threads) {
  const int64_t most = std::max(per_thread * threads, 2 * batch * least.m_tasks * least.n_tasks);
  PanelCuts best = least;
  double best_cost = 0;
  for (int64_t n_tasks = least.n_tasks; n_tasks <= n_panels && batch * n_tasks * least.m_tasks <= most; ++n_tasks) {
    const int64_t most_m = std::clamp(most / (batch * n_tasks), least.m_tasks, m_panels);
    for (int64_t m_tasks = least.m_tasks; m_tasks <= most_m; ++m_tasks) {
      const double rows = CeilDiv(m_panels, m_tasks), cols = CeilDiv(n_panels, n_tasks);
      const double task = cols * (rows + kColumnsCost) + rows * kRowsCost;
      const double cost = (CeilDiv(batch * m_tasks * n_tasks, threads) + kLateEnd) * task;
      if (best_cost == 0 || cost < best_cost) {
        best_cost = cost;
        best = {m_tasks, n_tasks};
      }
    }
  }
  return best;
}

// ---- kFewRows

bool TakesFewRows(const GemmKernel& kernel, const GemmProblem& problem) {
  using Element = PanelFormat::Element;
  const Operand &lhs = problem.lhs, &rhs = problem.rhs;
  const bool has_fma = !kernel.emulated && kernel.target.Has(Capability::kAvx2);
  if (kernel.sums != GemmSums::kF32 || kernel.lhs.element != Element::kF32 || kernel.rhs.element != Element::kF32 ||
      !has_fma) {
    return false;
  }
  const bool in_place = rhs.rows.InnerStride() == 1;
  return problem.m >= 1 && problem.m <= kMaxFewRows && lhs.dtype == DType::kF32 && rhs.dtype == DType::kF32 &&
         rhs.rows.rank <= 1 && rhs.k.rank <= 1 && (in_place || problem.n * problem.k >= kMinPieces);
}

// ---- kByBlocks

// Rows of a block, even if they do not fit L2: enough to hide the latency of the rhs, which comes from L3.
constexpr int64_t kMinBlockRows = 48;
// An lhs whose rows do not overlap is packed by blocks if this many of its rows fit L2.
constexpr int64_t kMinFittingRows = 96;
// More than a few rows that are this long are multiplied by blocks of k. (Of a few the columns are read in one go.)
constexpr int64_t kSlicedRowBytes = 16 << 10;
// An lhs of this size stays in L2: no rows of it have to be fetched.
constexpr int64_t kNearLhsBytes = 256 << 10;

bool IsSliced(const GemmKernel& kernel, int64_t m, int64_t k) {
  return kernel.add_block != nullptr && m >= kMinFittingRows &&
         kernel.lhs.PanelBytes(k) >= kSlicedRowBytes * kernel.lhs.width;
}

bool PrefersBlocks(const GemmKernel& kernel, int64_t m, int64_t k, const Machine& machine) {
  const int64_t bytes = kernel.lhs.PanelBytes(k) * CeilDiv(kMinFittingRows, kernel.lhs.width);
  return bytes <= FitL2(machine, internal::kBlockBytes) || IsSliced(kernel, m, k);
}

// ---- kLongK

// Threads that the buffer has room for.
constexpr int64_t kMaxLongKThreads = 8;
// The rows of a matrix, and panels of its columns, with all of k: they stay in L2, and then k is not cut.
constexpr int64_t kWholeLhsBytes = 512 << 10, kWholeRhsBytes = 128 << 10;
// Panels of an rhs that leaves the caches before they are read.
constexpr int64_t kFarRhsBytes = 16 << 20;
// The copies of the lhs that all threads of a small product pack.
constexpr int64_t kSmallBytes = 640 << 10;
// A block of k of rows that stays in L2, or is not far from it.
constexpr int64_t kNearBlockBytes = 1 << 20;
// On one thread fewer rows do not pay for adding up blocks of k.
constexpr int64_t kMinRowsOfOneThread = 96;

// Whether it is faster than packing all of the rhs first, if no rows of the lhs overlap:
//   - on several threads, for small matrices: each thread packs its own columns, and no panel that another one has just
//     written comes from that one's caches;
//   - for an rhs that leaves the caches, and rows of which a block of k fits L2: the panels of the rhs stay in L2.
bool PrefersLongK(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, const Machine& machine,
                  int64_t threads) {
  if (!CanRunLongK(kernel) || threads > kMaxLongKThreads || batch * m * n * k == 0) return false;
  const LongKCuts cuts = CutLongK(kernel, batch, m, n, k, machine, threads);
  if (cuts.count % threads != 0) return false;
  if (kernel.rhs.PackedBytes(n, k) >= kFarRhsBytes && cuts.lhs_bytes <= FitL2(machine, kNearBlockBytes)) {
    return threads > 1 || m >= kMinRowsOfOneThread;
  }
  // Then each part has one panel of columns more than another one at most, of four or more.
  const bool even = cuts.n_panels % threads == 0 || cuts.n_panels >= 4 * threads;
  return threads > batch && even && threads * kernel.lhs.PackedBytes(m, k) <= FitL2(machine, kSmallBytes);
}

int64_t UsefulThreads(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t threads) {
  return static_cast<double>(batch) * m * n * k < kMinParallelWork ? 1 : threads;
}

}  // namespace

int64_t UsefulThreads(const GemmProblem& problem, int64_t threads) {
  return UsefulThreads(problem.batch, problem.m, problem.n, problem.k, threads);
}

PanelCuts CutPanels(const GemmKernel& kernel, const GemmProblem& problem, const Machine& machine, int64_t threads) {
  const int64_t m_panels = kernel.lhs.NumPanels(problem.m), n_panels = kernel.rhs.NumPanels(problem.n);
  if (m_panels == 0 || n_panels == 0) return {};
  // Panels per task: all columns of a block of rows that fits L2; cut further until all threads have as much work.
  const int64_t fit = FitL2(machine, kernel.block_bytes) / std::max<int64_t>(1, kernel.lhs.PanelBytes(problem.k));
  const int64_t max_panels = kernel.block_rows / kernel.lhs.width;
  PanelCuts cuts = {.m_tasks = CeilDiv(m_panels, std::clamp<int64_t>(fit, 1, max_panels))};
  const bool adds = problem.epilogue.adds;
  if (adds) {
    const int64_t columns = std::max(kMinAddedColumns, kAddedBytes / (problem.m * int64_t{sizeof(float)}));
    cuts.n_tasks = std::clamp<int64_t>(problem.n / columns, 1, n_panels);
  }
  if (threads == 1) return cuts;
  // A task of accumulating products jumps from matrix to matrix. With few rows the reading takes all the time, and
  // long runs are read faster.
  const int64_t per_thread = adds && m_panels == 1 ? 1 : kPartsPerThread;
  return EvenTasks(cuts, per_thread, adds ? 1 : problem.batch, m_panels, n_panels, threads);
}

BlockCuts CutBlocks(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t k, const Machine& machine,
                    int64_t threads) {
  BlockCuts cuts = {
      .panels = kernel.lhs.NumPanels(m), .panel_bytes = kernel.lhs.PanelBytes(k), .sliced = IsSliced(kernel, m, k)};
  const int64_t width = kernel.lhs.width, most = kernel.block_rows / width;
  const int64_t least = std::min(CeilDiv(kMinBlockRows, width), most);
  const int64_t fit =
      cuts.sliced ? most : FitL2(machine, internal::kBlockBytes) / std::max<int64_t>(1, cuts.panel_bytes);
  cuts.count = CeilDiv(cuts.panels, std::clamp(fit, least, most));
  // As many for each thread.
  const int64_t even = RoundUp(cuts.count, threads);
  if (batch % threads != 0 && even * least <= cuts.panels) cuts.count = even;
  cuts.parts = threads == 1 ? 1 : std::min(batch * cuts.count, threads * kPartsPerThread);
  cuts.fetches = batch * cuts.panels * cuts.panel_bytes > FitL2(machine, kNearLhsBytes);
  return cuts;
}

LongKCuts CutLongK(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, const Machine& machine,
                   int64_t threads) {
  threads = std::min(threads, kMaxLongKThreads);
  const int64_t whole_rhs = FitL2(machine, kWholeRhsBytes);
  LongKCuts cuts = {.n_panels = kernel.rhs.NumPanels(n)};
  cuts.whole_k =
      kernel.lhs.PackedBytes(m, k) <= FitL2(machine, kWholeLhsBytes) && kernel.rhs.PanelBytes(k) <= whole_rhs;
  const int64_t step = cuts.whole_k ? k : std::min<int64_t>(k, kernel.block_groups * kernel.lhs.k_group);
  cuts.lhs_bytes = RoundUp(kernel.lhs.PackedBytes(m, step), kPanelAlignment);
  cuts.rhs_bytes = kernel.rhs.PanelBytes(step);
  const int64_t panel_sums = kernel.lhs.NumPanels(m) * kernel.lhs.width * kernel.rhs.width * int64_t{sizeof(float)};
  const int64_t fit = std::max<int64_t>(1, kSumBytes / std::max<int64_t>(1, panel_sums));
  const int64_t least = cuts.whole_k ? 1 : CeilDiv(cuts.n_panels, fit);
  // As many parts for each thread.
  const int64_t unit = CeilDiv(threads, std::max<int64_t>(1, batch));
  cuts.per_matrix = std::clamp<int64_t>(RoundUp(least, unit), 1, std::max<int64_t>(1, cuts.n_panels));
  const int64_t most_panels = CeilDiv(cuts.n_panels, cuts.per_matrix);
  if (cuts.whole_k) {
    cuts.panels_at_once =
        std::clamp<int64_t>(whole_rhs / std::max<int64_t>(1, cuts.rhs_bytes), 1, std::max<int64_t>(1, most_panels));
    cuts.rhs_bytes *= cuts.panels_at_once;
    cuts.fetches = kernel.rhs.PackedBytes(n, k) >= kFarRhsBytes;
  } else {
    cuts.sum_bytes = most_panels * panel_sums;
  }
  cuts.count = batch * cuts.per_matrix;
  cuts.places = std::min(cuts.count, threads);
  return cuts;
}

int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k, const Machine& machine) {
  int64_t bytes = 0;
  for (int64_t threads = 1; threads <= kMaxLongKThreads; ++threads) {
    bytes = std::max(bytes, CutLongK(kernel, batch, m, n, k, machine, threads).Bytes());
  }
  return bytes;
}

int64_t ChosenLongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k,
                         const Machine& machine) {
  // A smaller product gets one thread, and its rhs is not that large.
  if (!CanRunLongK(kernel) || UsefulThreads(batch, m, n, k, 2) == 1) return 0;
  int64_t bytes = 0;
  for (int64_t threads = 1; threads <= kMaxLongKThreads; ++threads) {
    if (!PrefersLongK(kernel, batch, m, n, k, machine, threads)) continue;
    bytes = std::max(bytes, CutLongK(kernel, batch, m, n, k, machine, threads).Bytes());
  }
  return bytes;
}

GemmSchedule Choose(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& packed,
                    const Machine& machine, int64_t threads) {
  const int64_t batch = problem.batch, m = problem.m, n = problem.n, k = problem.k;
  const bool packs_lhs = packed.lhs == nullptr, packs_rhs = packed.rhs == nullptr;
  const bool adds = problem.epilogue.adds, overlap = problem.lhs_rows_overlap;
  GemmSchedule schedule = {.threads = UsefulThreads(problem, threads)};
  if (packs_lhs && packs_rhs && TakesFewRows(kernel, problem)) {
    schedule.strategy = GemmStrategy::kFewRows;
    return schedule;
  }
  if (packs_lhs && packs_rhs && !adds && !overlap && PrefersLongK(kernel, batch, m, n, k, machine, schedule.threads)) {
    schedule.strategy = GemmStrategy::kLongK;
    schedule.long_k = CutLongK(kernel, batch, m, n, k, machine, schedule.threads);
    return schedule;
  }
  const bool prefers_blocks = packs_lhs && !adds && (overlap || PrefersBlocks(kernel, m, k, machine));
  // A block at least for each thread.
  if (prefers_blocks && batch * m * k != 0 && CutBlocks(kernel, batch, m, k, machine, threads).parts >= threads) {
    schedule.strategy = GemmStrategy::kByBlocks;
    schedule.blocks = CutBlocks(kernel, batch, m, k, machine, schedule.threads);
    return schedule;
  }
  schedule.panels = CutPanels(kernel, problem, machine, schedule.threads);
  return schedule;
}

}  // namespace aqt::kernels
