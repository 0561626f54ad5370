#include "aqt/kernels/gemm/few_rows.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/gemm/few_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/gemm/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

using D = hn::ScalableTag<float>;
constexpr int64_t kLanes = HWY_MAX_BYTES / 4;
constexpr int64_t kTileCols = 2 * kLanes;  // the width of the kernels' rhs panels
// Steps of k at a time: rows of an rhs that is read in place, or steps of a packed piece (16 KiB).
constexpr int64_t kRowsInPlace = 16, kPackedSteps = 128;

// sums[r, j] += sum over i < steps of lhs[r, i] * rhs[i, j], for r < R and j < kTileCols, by fma in ascending order of
// i. With kFlush, a subnormal value of the rhs counts as zero.
template <int R, bool kFlush>
HWY_INLINE void Add(const float* lhs, int64_t lhs_row, const float* rhs, int64_t rhs_row, int64_t steps, float* sums) {
  const D d;
  hn::Vec<D> s[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    s[r][0] = hn::LoadU(d, sums + r * kTileCols);
    s[r][1] = hn::LoadU(d, sums + r * kTileCols + kLanes);
  }
  for (int64_t i = 0; i < steps; ++i) {
    const hn::Vec<D> b0 = Flushed<kFlush>(hn::LoadU(d, rhs + i * rhs_row));
    const hn::Vec<D> b1 = Flushed<kFlush>(hn::LoadU(d, rhs + i * rhs_row + kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const hn::Vec<D> a = hn::Set(d, lhs[r * lhs_row + i]);
      s[r][0] = hn::MulAdd(a, b0, s[r][0]);
      s[r][1] = hn::MulAdd(a, b1, s[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    hn::StoreU(s[r][0], d, sums + r * kTileCols);
    hn::StoreU(s[r][1], d, sums + r * kTileCols + kLanes);
  }
}

// The same for any number of rows.
template <bool kFlush>
void AddRows(int64_t rows, const float* lhs, int64_t lhs_row, const float* rhs, int64_t rhs_row, int64_t steps,
             float* sums) {
  const auto add = [&]<int R>() HWY_ATTR {
    for (; rows >= R; rows -= R, lhs += R * lhs_row, sums += R * kTileCols) {
      Add<R, kFlush>(lhs, lhs_row, rhs, rhs_row, steps, sums);
    }
  };
  add.template operator()<6>();
  add.template operator()<4>();
  add.template operator()<2>();
  add.template operator()<1>();
}

// Computes columns [n0, n1) of matrix b, at most kFewRowsChunk. `lhs` is dense.
template <bool kFlush>
void MultiplyChunkAs(const GemmKernel& kernel, const float* lhs, const GemmProblem& problem, int64_t b, int64_t n0,
                     int64_t n1) {
  const Operand& rhs = problem.rhs;
  const int64_t m = problem.m;
  const int64_t row = rhs.rows.InnerStride(), step = rhs.k.InnerStride();
  const float* const matrix = static_cast<const float*>(rhs.data) + rhs.batch.Offset(b);
  const bool in_place = row == 1;
  const int64_t max_steps = in_place ? kRowsInPlace : kPackedSteps;
  alignas(64) float sums[kMaxFewRows * kFewRowsChunk], packed[kPackedSteps * kTileCols];
  std::fill_n(sums, problem.m * ((n1 - n0 + kTileCols - 1) / kTileCols * kTileCols), 0.0f);
  for (int64_t k = 0; k < problem.k; k += max_steps) {
    const int64_t steps = std::min(max_steps, problem.k - k);
    float* tile = sums;
    for (int64_t n = n0; n < n1; n += kTileCols, tile += problem.m * kTileCols) {
      const float* const from = matrix + n * row + k * step;
      if (in_place && n1 - n >= kTileCols) {
        AddRows<kFlush>(problem.m, lhs + k, problem.k, from, step, steps, tile);
        continue;
      }
      Operand piece;
      piece.data = from;
      piece.rows = AxisGroup::Of(std::min(kTileCols, n1 - n), row);
      piece.k = AxisGroup::Of(steps, step);
      Pack(kernel.target, kernel.rhs, piece, packed, nullptr, kFlush);
      AddRows<kFlush>(problem.m, lhs + k, problem.k, packed, kTileCols, steps, tile);
    }
  }
  const float* tile = sums;
  for (int64_t n = n0; n < n1; n += kTileCols, tile += problem.m * kTileCols) {
    internal::FinishTile(kernel.target, problem, b, 0, problem.m, n, std::min(kTileCols, n1 - n), tile, kTileCols);
  }
  internal::RunBlockEpilogue(problem, b, 0, problem.m, n0, n1);
}

void MultiplyChunk(const GemmKernel& kernel, const float* lhs, const GemmProblem& problem, int64_t b, int64_t n0,
                   int64_t n1) {
  if (problem.subnormals_are_zero) MultiplyChunkAs<true>(kernel, lhs, problem, b, n0, n1);
  else MultiplyChunkAs<false>(kernel, lhs, problem, b, n0, n1);
}

#else

void MultiplyChunk(const GemmKernel&, const float*, const GemmProblem&, int64_t, int64_t, int64_t) {
  AQT_CHECK(!"Choose: few rows");
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {
int64_t FewRowsFloats(const Operand& lhs) { return lhs.batch.Count() * lhs.rows.Count() * lhs.k.Count(); }

void MultiplyFewRows(const GemmKernel& kernel, const GemmProblem& problem, float* lhs_rows, Executor* executor) {
  const Operand& lhs = problem.lhs;
  const float* const from = static_cast<const float*>(lhs.data);
  float* to = lhs_rows;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t m = 0; m < problem.m; ++m) {
      const float* const row = from + lhs.batch.Offset(b) + lhs.rows.Offset(m);
      for (int64_t k = 0; k < problem.k; ++k)
        *to++ = FlushSubnormalIf(problem.subnormals_are_zero, row[lhs.k.Offset(k)]);
    }
  }
  const int64_t chunks = CeilDiv(problem.n, kFewRowsChunk);
  // Matrices that share an output are accumulated in order.
  const int64_t together = problem.epilogue.adds ? problem.batch : 1;
  const auto run = [&](int64_t task) {
    const int64_t first = task / chunks * together, n = task % chunks * kFewRowsChunk;
    for (int64_t b = first; b < first + together; ++b) {
      AQT_HWY_DISPATCH(kernel.target, MultiplyChunk)
      (kernel, lhs_rows + b * problem.m * problem.k, problem, b, n, std::min(problem.n, n + kFewRowsChunk));
    }
  };
  const int64_t tasks = problem.batch / std::max<int64_t>(1, together) * chunks;
  if (UsefulThreads(problem, ThreadsOf(executor)) == 1) {
    for (int64_t task = 0; task < tasks; ++task) run(task);
  } else {
    executor->ParallelFor(tasks, run);
  }
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
