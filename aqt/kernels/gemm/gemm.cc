#include "aqt/kernels/gemm/gemm.h"

#include <algorithm>
#include <utility>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/machine/machine.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/report.h"
#include "aqt/kernels/gemm/schedule.h"

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
  const int64_t unit = RoundUp(kEpilogueColumns, kernel.rhs.width);
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

void RunPanels(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& panels,
               const GemmSchedule& schedule, Executor* executor) {
  const GemmReport report(kernel, problem);
  const int64_t mr = kernel.lhs.width, nr = kernel.rhs.width;
  const int64_t m_panels = kernel.lhs.NumPanels(problem.m), n_panels = kernel.rhs.NumPanels(problem.n);
  // Accumulated sums stay in L2 from one matrix of the batch to the next.
  const bool adds = problem.epilogue.adds;
  const int64_t m_tasks = schedule.panels.m_tasks, n_tasks = schedule.panels.n_tasks;
  const auto run = [&](int64_t task) {
    const int64_t n_task = task % n_tasks, m_task = task / n_tasks % m_tasks, b = task / n_tasks / m_tasks;
    const int64_t m0 = m_panels * m_task / m_tasks * mr, m1 = m_panels * (m_task + 1) / m_tasks * mr;
    const int64_t n0 = n_panels * n_task / n_tasks * nr, n1 = n_panels * (n_task + 1) / n_tasks * nr;
    const int64_t first = adds ? 0 : b, last = adds ? problem.batch : b + 1;
    for (int64_t i = first; i < last; ++i) {
      RunBlock(kernel, problem, panels, i, m0, std::min(m1, problem.m), n0, std::min(n1, problem.n));
    }
  };
  const int64_t tasks = (adds ? 1 : problem.batch) * m_tasks * n_tasks;
  if (schedule.threads == 1) {
    for (int64_t i = 0; i < tasks; ++i) run(i);
  } else {
    executor->ParallelFor(tasks, run);
  }
}

}  // namespace internal

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
  const int64_t threads = UsefulThreads(problem, ThreadsOf(executor));
  const PanelCuts cuts = CutPanels(kernel, problem, ThisMachine(), threads);
  internal::RunPanels(kernel, problem, panels, {.threads = threads, .panels = cuts}, executor);
}

}  // namespace aqt::kernels
