#include "aqt/kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/kernels/gemm_driver.h"

namespace aqt::kernels {
namespace internal {
namespace {

float Round(float x, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return ToFloat(RoundToBFloat16(x));
    case DType::kF16: return ToFloat(RoundToFloat16(x));
    default: return x;
  }
}

float FlushSubnormal(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

void StoreAs(float x, DType dtype, void* out, int64_t index) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(out)[index] = x; return;
    case DType::kBF16: static_cast<BFloat16*>(out)[index] = RoundToBFloat16(x); return;
    case DType::kF16: static_cast<Float16*>(out)[index] = RoundToFloat16(x); return;
    default: AQT_DCHECK(false);
  }
}

// One row of FinishTile, for any epilogue.
template <class Acc>
void FinishRow(const GemmArgs& args, int64_t b, int64_t m, int64_t n, int64_t cols, const Acc* sums, int64_t offset) {
  const Epilogue& epi = args.epilogue;
  const float* lhs_scale =
      epi.lhs_scale == nullptr ? nullptr : epi.lhs_scale + b * epi.lhs_batch_stride + m * epi.lhs_stride;
  const float* rhs_scale = epi.rhs_scale == nullptr ? nullptr : epi.rhs_scale + b * epi.rhs_batch_stride;
  for (int64_t j = 0; j < cols; ++j) {
    float v = Round(static_cast<float>(sums[j]), epi.sum_dtype);
    const float* scales[2] = {lhs_scale, rhs_scale == nullptr ? nullptr : rhs_scale + (n + j) * epi.rhs_stride};
    const DType dtypes[2] = {epi.first_dtype, epi.second_dtype};
    for (int step = 0; step < 2; ++step) {
      const float* scale = scales[epi.rhs_first ? 1 - step : step];
      if (scale == nullptr) continue;
      v *= *scale;
      if (epi.subnormals_are_zero) v = FlushSubnormal(v);
      v = Round(v, dtypes[step]);
    }
    StoreAs(v, args.out_dtype, args.out, offset + args.out_cols.Offset(n + j));
  }
}

template <class Acc>
void FinishAnyTile(const GemmArgs& args, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols, const Acc* sums,
                   int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, sums += stride) {
    const int64_t offset = args.out_batch.Offset(b) + args.out_rows.Offset(m + r);
    if (args.out_dtype != DType::kS32) {
      FinishRow(args, b, m + r, n, cols, sums, offset);
    } else if constexpr (std::is_same_v<Acc, int32_t>) {
      int32_t* out = static_cast<int32_t*>(args.out) + offset;
      if (args.out_cols.rank <= 1 && args.out_cols.InnerStride() == 1) {
        std::memcpy(out + n, sums, cols * sizeof(int32_t));
      } else {
        for (int64_t j = 0; j < cols; ++j) out[args.out_cols.Offset(n + j)] = sums[j];
      }
    }
  }
}

}  // namespace

void LoadScales(const float* scale, int64_t stride, int64_t index, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = scale == nullptr ? 1.0f : scale[(index + i) * stride];
}

void FinishTile(const GemmArgs& args, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols, const int32_t* sums,
                int64_t stride) {
  FinishAnyTile(args, b, m, rows, n, cols, sums, stride);
}
void FinishTile(const GemmArgs& args, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols, const float* sums,
                int64_t stride) {
  FinishAnyTile(args, b, m, rows, n, cols, sums, stride);
}

}  // namespace internal

namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// An lhs block of this size shares L2 (1 MiB and more on all machines with AVX2 servers in mind) with rhs panels.
constexpr int64_t kBlockBytes = 384 << 10;
// Below this many multiplications a second thread costs more than it saves (a wake-up takes 5 to 50 us).
constexpr double kMinParallelWork = 2e6;
constexpr int64_t kTasksPerThread = 4;

}  // namespace

void RunGemm(const GemmKernel& kernel, const GemmArgs& args, Executor* executor) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  const int64_t mr = kernel.lhs.width, nr = kernel.rhs.width;
  const int64_t m_panels = kernel.lhs.NumPanels(args.m), n_panels = kernel.rhs.NumPanels(args.n);
  const double work = static_cast<double>(args.batch) * args.m * args.n * args.k;
  const int64_t threads = executor == nullptr || work < kMinParallelWork ? 1 : executor->NumThreads();

  // Panels per task: blocks of rows that fit L2, all columns; cut further, first by columns, until all threads have work.
  const int64_t fit = kBlockBytes / std::max<int64_t>(1, kernel.lhs.PanelBytes(args.k));
  const int64_t max_panels = internal::kMaxBlockRows / mr;
  int64_t m_tasks = CeilDiv(m_panels, std::clamp<int64_t>(fit, 1, max_panels));
  int64_t n_tasks = 1;
  if (threads > 1) {
    const int64_t wanted = kTasksPerThread * threads;
    n_tasks = std::clamp<int64_t>(CeilDiv(wanted, args.batch * m_tasks), 1, n_panels);
    m_tasks = std::max(m_tasks, std::clamp<int64_t>(CeilDiv(wanted, args.batch * n_tasks), 1, m_panels));
  }
  const auto task = [&](int64_t i) {
    const int64_t n_task = i % n_tasks, m_task = i / n_tasks % m_tasks, b = i / n_tasks / m_tasks;
    const int64_t m0 = m_panels * m_task / m_tasks * mr, m1 = m_panels * (m_task + 1) / m_tasks * mr;
    const int64_t n0 = n_panels * n_task / n_tasks * nr, n1 = n_panels * (n_task + 1) / n_tasks * nr;
    kernel.block(args, b, m0, std::min(m1, args.m), n0, std::min(n1, args.n));
  };
  const int64_t tasks = args.batch * m_tasks * n_tasks;
  if (threads == 1) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  } else {
    executor->ParallelFor(tasks, task);
  }
}

}  // namespace aqt::kernels
