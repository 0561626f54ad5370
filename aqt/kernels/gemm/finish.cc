// The epilogue of finished tiles for all dtypes and layouts. (Full tiles of f32, bf16 and s32 are finished in
// registers.)
#include <cstring>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/gemm/finish.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::HWY_NAMESPACE::LoadFloat;
using kernels::HWY_NAMESPACE::RoundLanes;
using kernels::HWY_NAMESPACE::StoreFloat;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

HWY_INLINE FloatVec LoadSums(const float* sums) { return hn::LoadU(FloatTag(), sums); }
HWY_INLINE FloatVec LoadSums(const int32_t* sums) {
  const hn::RebindToSigned<FloatTag> d;
  return hn::ConvertTo(FloatTag(), hn::LoadU(d, sums));
}

HWY_INLINE FloatVec Round(FloatVec v, DType dtype) {
  if (dtype == DType::kBF16) return RoundLanes<BFloat16>::Apply(FloatTag(), v);
  if (dtype == DType::kF16) return RoundLanes<Float16>::Apply(FloatTag(), v);
  return v;
}

HWY_INLINE FloatVec Flush(FloatVec v) {
  const FloatTag d;
  return hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(d, 0x1p-126f)), hn::And(v, hn::Set(d, -0.0f)), v);
}

// An f32 NaN keeps its bits, as in tiles that are finished in registers.
HWY_INLINE void StoreLine(FloatVec v, float* out) { hn::StoreU(v, FloatTag(), out); }
template <class T>
HWY_INLINE void StoreLine(FloatVec v, T* out) {
  StoreFloat(FloatTag(), RoundLanes<T>::Apply(FloatTag(), v), out);
}

// Computes out[j] for j < padded_cols, a multiple of the lane count. Scales are null if absent. kF32: whether all steps
// are in f32. kFlush: Epilogue::subnormals_are_zero.
template <bool kF32, bool kFlush, class Acc, class T>
void FinishLine(const Epilogue& epi, const Acc* sums, int64_t padded_cols, const float* row_scale,
                const float* col_scales, T* out) {
  const FloatTag d;
  if constexpr (std::is_same_v<Acc, float> && std::is_same_v<T, float> && kF32 && !kFlush) {
    if (row_scale == nullptr && col_scales == nullptr) {
      std::copy_n(sums, padded_cols, out);
      return;
    }
  }
  for (int64_t j = 0; j < padded_cols; j += static_cast<int64_t>(hn::Lanes(d))) {
    FloatVec v = LoadSums(sums + j);
    if constexpr (kFlush) v = Flush(v);
    if constexpr (!kF32) v = Round(v, epi.sum_dtype);
    const auto times = [&](FloatVec scale, DType dtype) {
      v = hn::Mul(v, scale);
      if constexpr (kFlush) v = Flush(v);
      if constexpr (!kF32) v = Round(v, dtype);
    };
    if (epi.rhs_first && col_scales != nullptr) times(hn::LoadU(d, col_scales + j), epi.second_dtype);
    if (row_scale != nullptr) times(hn::Set(d, *row_scale), epi.first_dtype);
    if (!epi.rhs_first && col_scales != nullptr) times(hn::LoadU(d, col_scales + j), epi.second_dtype);
    StoreLine(v, out + j);
  }
}

template <class Acc, class T>
using LineFinisher = void (*)(const Epilogue& epi, const Acc* sums, int64_t padded_cols, const float* row_scale,
                              const float* col_scales, T* out);
template <class Acc, class T>
LineFinisher<Acc, T> LineFinisherFor(const Epilogue& epi) {
  if constexpr (std::is_same_v<T, int32_t>) {
    return nullptr;  // sums are stored unchanged
  } else {
    if (!epi.IsF32()) {
      return epi.subnormals_are_zero ? &FinishLine<false, true, Acc, T> : &FinishLine<false, false, Acc, T>;
    }
    return epi.subnormals_are_zero ? &FinishLine<true, true, Acc, T> : &FinishLine<true, false, Acc, T>;
  }
}

// Copies a line of `cols` elements into the output.
template <class T>
void PlaceLine(const T* line, int64_t cols, const AxisGroup& axes, int64_t n, const int64_t* col_offsets, T* row) {
  if (axes.rank <= 1 && axes.InnerStride() == 1) {
    std::memcpy(row + n, line, cols * sizeof(T));
  } else {
    for (int64_t j = 0; j < cols; ++j) row[col_offsets[j]] = line[j];
  }
}

// A row of the output is prefetched this many rows before it is written.
constexpr int64_t kRowsAhead = 16;

template <class Acc, class T>
void FinishTileAs(const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
                  const Acc* sums, int64_t stride) {
  const GemmOutput& out = problem.out;
  const Epilogue& epi = problem.epilogue;
  const bool is_contiguous = out.cols.rank <= 1 && out.cols.InnerStride() == 1;
  const bool in_place = is_contiguous && cols == stride && !epi.adds && !std::is_same_v<T, int32_t>;
  const LineFinisher<Acc, T> finish_line = LineFinisherFor<Acc, T>(epi);
  int64_t col_offsets[kMaxTileCols];
  for (int64_t j = 0; j < cols && !in_place; ++j) col_offsets[j] = out.cols.Offset(n + j);
  float col_scales[kMaxTileCols] = {};
  const float* const lhs_scale = epi.lhs_scale == nullptr ? nullptr : epi.lhs_scale + b * epi.lhs_batch_stride;
  if (epi.rhs_scale != nullptr) {
    const float* from = epi.rhs_scale + b * epi.rhs_batch_stride;
    for (int64_t j = 0; j < cols; ++j) col_scales[j] = from[(n + j) * epi.rhs_stride];
  }
  T* const to = static_cast<T*>(out.data) + out.batch.Offset(b);
  const int64_t fetched = is_contiguous && out.rows.rank <= 1 ? rows : 0;
  for (int64_t r = 0; r < std::min(kRowsAhead, fetched); ++r) {
    PrefetchRowForWriting(to + out.rows.Offset(m + r) + n, cols);
  }
  for (int64_t r = 0; r < rows; ++r, sums += stride) {
    T* const row = to + out.rows.Offset(m + r);
    if (r + kRowsAhead < fetched) PrefetchRowForWriting(row + kRowsAhead * out.rows.InnerStride() + n, cols);
    if constexpr (std::is_same_v<T, int32_t>) {
      PlaceLine(sums, cols, out.cols, n, col_offsets, row);
    } else {
      T buffer[kMaxTileCols];
      T* const line = in_place ? row + n : buffer;
      finish_line(epi, sums, stride, lhs_scale == nullptr ? nullptr : lhs_scale + (m + r) * epi.lhs_stride,
                  epi.rhs_scale == nullptr ? nullptr : col_scales, line);
      if (in_place) continue;
      if constexpr (std::is_same_v<T, float>) {
        for (int64_t j = 0; epi.adds && j < cols; ++j) {
          line[j] = FlushSubnormalIf(epi.subnormals_are_zero, row[col_offsets[j]] + line[j]);
        }
      }
      PlaceLine(line, cols, out.cols, n, col_offsets, row);
    }
  }
}

template <class Acc>
void FinishAnyTile(const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
                   const Acc* sums, int64_t stride) {
  AQT_DCHECK(stride <= kMaxTileCols);
  switch (problem.out.dtype) {
    case DType::kF32: return FinishTileAs<Acc, float>(problem, b, m, rows, n, cols, sums, stride);
    case DType::kBF16: return FinishTileAs<Acc, BFloat16>(problem, b, m, rows, n, cols, sums, stride);
    case DType::kF16: return FinishTileAs<Acc, Float16>(problem, b, m, rows, n, cols, sums, stride);
    case DType::kS32:
      if constexpr (std::is_same_v<Acc, int32_t>) {
        return FinishTileAs<Acc, int32_t>(problem, b, m, rows, n, cols, sums, stride);
      }
      [[fallthrough]];
    default: AQT_CHECK(!"RunGemm: the output is f32, bf16, f16 or, of integers, s32");
  }
}

void FinishS32(const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
               const int32_t* sums, int64_t stride) {
  FinishAnyTile(problem, b, m, rows, n, cols, sums, stride);
}
void FinishF32(const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
               const float* sums, int64_t stride) {
  FinishAnyTile(problem, b, m, rows, n, cols, sums, stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

void FinishTile(Target target, const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
                const int32_t* sums, int64_t stride) {
  AQT_HWY_DISPATCH(target, FinishS32)(problem, b, m, rows, n, cols, sums, stride);
}
void FinishTile(Target target, const GemmProblem& problem, int64_t b, int64_t m, int64_t rows, int64_t n, int64_t cols,
                const float* sums, int64_t stride) {
  AQT_HWY_DISPATCH(target, FinishF32)(problem, b, m, rows, n, cols, sums, stride);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
