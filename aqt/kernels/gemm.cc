#include "aqt/kernels/gemm.h"

#include <algorithm>

#include "aqt/kernels/ceil_div.h"
#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_report.h"

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

}  // namespace internal

namespace {

constexpr int64_t kTasksPerThread = 4;
// Of products that are added up: sums of so many bytes stay in L1 or L2, and the rhs is read in runs that hide its way.
constexpr int64_t kAddedBytes = 16 << 10;
constexpr int64_t kMinAddedColumns = 256;

void Run(const GemmKernel& kernel, const GemmArgs& args, Executor* executor) {
  const int64_t mr = kernel.lhs.width, nr = kernel.rhs.width;
  const int64_t m_panels = kernel.lhs.NumPanels(args.m), n_panels = kernel.rhs.NumPanels(args.n);
  const double work = static_cast<double>(args.batch) * args.m * args.n * args.k;
  const int64_t threads = executor == nullptr || work < internal::kMinParallelWork ? 1 : executor->NumThreads();

  // What is added up stays in L2 from one matrix of the batch to the next.
  const bool adds = args.epilogue.adds;
  const int64_t batch_tasks = adds ? 1 : args.batch;

  // Panels per task: all columns of a block of rows that fits L2; cut further, first by columns, until all threads have
  // work.
  const int64_t fit = kernel.block_bytes / std::max<int64_t>(1, kernel.lhs.PanelBytes(args.k));
  const int64_t max_panels = kernel.block_rows / mr;
  int64_t m_tasks = CeilDiv(m_panels, std::clamp<int64_t>(fit, 1, max_panels));
  const int64_t added_columns = std::max(kMinAddedColumns, kAddedBytes / (args.m * int64_t{sizeof(float)}));
  int64_t n_tasks = adds ? std::clamp<int64_t>(args.n / added_columns, 1, n_panels) : 1;
  if (threads > 1) {
    const int64_t wanted = kTasksPerThread * threads;
    n_tasks = std::clamp<int64_t>(CeilDiv(wanted, batch_tasks * m_tasks), n_tasks, n_panels);
    m_tasks = std::max(m_tasks, std::clamp<int64_t>(CeilDiv(wanted, batch_tasks * n_tasks), 1, m_panels));
  }
  const auto run = [&](int64_t task) {
    const int64_t n_task = task % n_tasks, m_task = task / n_tasks % m_tasks, b = task / n_tasks / m_tasks;
    const int64_t m0 = m_panels * m_task / m_tasks * mr, m1 = m_panels * (m_task + 1) / m_tasks * mr;
    const int64_t n0 = n_panels * n_task / n_tasks * nr, n1 = n_panels * (n_task + 1) / n_tasks * nr;
    const int64_t first = adds ? 0 : b, last = adds ? args.batch : b + 1;
    for (int64_t i = first; i < last; ++i) kernel.block(args, i, m0, std::min(m1, args.m), n0, std::min(n1, args.n));
  };
  const int64_t tasks = batch_tasks * m_tasks * n_tasks;
  if (threads == 1) {
    for (int64_t i = 0; i < tasks; ++i) run(i);
  } else {
    executor->ParallelFor(tasks, run);
  }
}

}  // namespace

void RunGemm(const GemmKernel& kernel, const GemmArgs& args, Executor* executor) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  internal::RunReported(kernel, args, [&] { Run(kernel, args, executor); });
}

}  // namespace aqt::kernels
