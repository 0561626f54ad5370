#include "aqt/kernels/gemm/gemm.h"

#include <algorithm>
#include <utility>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/report.h"

namespace aqt::kernels {
namespace internal {

void LoadScales(const float* scale, int64_t stride, int64_t index, int64_t count, float* out) {
  if (scale == nullptr) {
    std::fill_n(out, count, 1.0f);
  } else if (stride == 1) {
    std::copy_n(scale + index, count, out);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = scale[(index + i) * stride];
  }
}

void RunBlockEpilogue(const GemmProblem& problem, int64_t b, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  const Epilogue& epilogue = problem.epilogue;
  if (epilogue.block == nullptr) return;
  AQT_DCHECK(problem.HasBlocks());
  const GemmOutput& out = problem.out;
  epilogue.block->Run({.offset = epilogue.block_offset + out.batch.Offset(b) + out.rows.Offset(m0) + n0,
                       .rows = m1 - m0,
                       .columns = n1 - n0,
                       .row_stride = out.rows.rank == 0 ? 0 : out.rows.InnerStride()});
}

void RunBlock(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels, int64_t b, int64_t m0,
              int64_t m1, int64_t n0, int64_t n1) {
  if (problem.epilogue.block == nullptr) return kernel.block(problem, panels, b, m0, m1, n0, n1);
  const int64_t unit = CeilDiv(kEpilogueColumns, kernel.rhs.width) * kernel.rhs.width;
  const int64_t columns = std::max<int64_t>(1, kEpilogueElements / ((m1 - m0) * unit)) * unit;
  const int64_t count = CeilDiv(n1 - n0, columns);
  GemmPanels own = panels;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = n0 + i * columns, last = std::min(n1, first + columns);
    own.ahead = PartOf(panels.ahead, i, count);
    kernel.block(problem, own, b, m0, m1, first, last);
    RunBlockEpilogue(problem, b, m0, m1, first, last);
  }
}

}  // namespace internal

namespace {

// For accumulating products: sums of this size stay in L1 or L2, and the rhs is read in runs long enough to hide its
// latency.
constexpr int64_t kAddedBytes = 16 << 10;
constexpr int64_t kMinAddedColumns = 256;

struct Cut {
  int64_t m_tasks = 1, n_tasks = 1;
};

// The cost of a task besides its tiles, in units of the time of one tile: for each panel of columns, which comes from
// L2 or L3, and for each panel of rows, which comes from L3 once.
constexpr double kColumnsCost = 0.5, kRowsCost = 0.25;
// The fraction of a task by which one thread finishes later than another.
constexpr double kLateEnd = 0.05;

// Splits every matrix of a batch into at least `least` tasks, such that the thread with the most work has as little as
// possible. All threads then finish at about the same time, and tasks have many rows for each panel of columns. There
// are at most `per_thread` tasks per thread, or twice the least if that is more.
Cut EvenTasks(const Cut& least, int64_t per_thread, int64_t batch, int64_t m_panels, int64_t n_panels,
              int64_t threads) {
  const int64_t most = std::max(per_thread * threads, 2 * batch * least.m_tasks * least.n_tasks);
  Cut best = least;
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

void Run(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels, Executor* executor) {
  const int64_t mr = kernel.lhs.width, nr = kernel.rhs.width;
  const int64_t m_panels = kernel.lhs.NumPanels(problem.m), n_panels = kernel.rhs.NumPanels(problem.n);
  const int64_t threads = internal::NumThreads(problem, executor);

  // What is added up stays in L2 from one matrix of the batch to the next.
  const bool adds = problem.epilogue.adds;
  const int64_t batch_tasks = adds ? 1 : problem.batch;

  // Panels per task: all columns of a block of rows that fits L2; cut further until all threads have as much work.
  const int64_t fit = kernel.block_bytes / std::max<int64_t>(1, kernel.lhs.PanelBytes(problem.k));
  const int64_t max_panels = kernel.block_rows / mr;
  Cut cut = {.m_tasks = CeilDiv(m_panels, std::clamp<int64_t>(fit, 1, max_panels))};
  const int64_t added_columns = std::max(kMinAddedColumns, kAddedBytes / (problem.m * int64_t{sizeof(float)}));
  if (adds) cut.n_tasks = std::clamp<int64_t>(problem.n / added_columns, 1, n_panels);
  // A task of products that are added up jumps from matrix to matrix. With few rows the reading takes all the time, and
  // long runs are read faster.
  const int64_t per_thread = adds && m_panels == 1 ? 1 : internal::kPartsPerThread;
  if (threads > 1) cut = EvenTasks(cut, per_thread, batch_tasks, m_panels, n_panels, threads);
  const int64_t m_tasks = cut.m_tasks, n_tasks = cut.n_tasks;
  const auto run = [&](int64_t task) {
    const int64_t n_task = task % n_tasks, m_task = task / n_tasks % m_tasks, b = task / n_tasks / m_tasks;
    const int64_t m0 = m_panels * m_task / m_tasks * mr, m1 = m_panels * (m_task + 1) / m_tasks * mr;
    const int64_t n0 = n_panels * n_task / n_tasks * nr, n1 = n_panels * (n_task + 1) / n_tasks * nr;
    const int64_t first = adds ? 0 : b, last = adds ? problem.batch : b + 1;
    for (int64_t i = first; i < last; ++i) {
      internal::RunBlock(kernel, problem, panels, i, m0, std::min(m1, problem.m), n0, std::min(n1, problem.n));
    }
  };
  const int64_t tasks = batch_tasks * m_tasks * n_tasks;
  if (threads == 1) {
    for (int64_t i = 0; i < tasks; ++i) run(i);
  } else {
    executor->ParallelFor(tasks, run);
  }
}

}  // namespace

void GemmProblem::ExchangeOperands() {
  std::swap(m, n);
  std::swap(lhs, rhs);
  std::swap(out.rows, out.cols);
  std::swap(epilogue.lhs_scale, epilogue.rhs_scale);
  std::swap(epilogue.lhs_stride, epilogue.rhs_stride);
  std::swap(epilogue.lhs_batch_stride, epilogue.rhs_batch_stride);
  std::swap(epilogue.first_dtype, epilogue.second_dtype);
  epilogue.rhs_first = !epilogue.rhs_first;
}

void RunGemm(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels, Executor* executor) {
  if (problem.batch == 0 || problem.m == 0 || problem.n == 0) return;
  internal::RunReported(kernel, problem, [&] { Run(kernel, problem, panels, executor); });
}

}  // namespace aqt::kernels
