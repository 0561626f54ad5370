// The loop of kernels that convert between float matrices and 8-bit codes with a grid of scales (scale_grid.h).
// Included once per Highway target, after hwy/highway.h. All targets give the same bits.

#if defined(AQT_KERNELS_QUANTIZE_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_QUANTIZE_QUANTIZE_INL_H_
#undef AQT_KERNELS_QUANTIZE_QUANTIZE_INL_H_
#else
#define AQT_KERNELS_QUANTIZE_QUANTIZE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <utility>

#include "aqt/core/subnormals.h"
#include "aqt/kernels/quantize/scale_grid.h"
#include "hwy/highway.h"

#ifndef AQT_KERNELS_QUANTIZE_INL_ONCE_
#define AQT_KERNELS_QUANTIZE_INL_ONCE_
namespace aqt::kernels::internal {

// Elements processed at once if the source or the result is not contiguous and goes through a buffer in L1.
inline constexpr int64_t kChunk = 512;

inline constexpr float kSmallestNormal = 0x1p-126f;

// Element (r, c) is data[r * row_stride + c * col_stride].
template <class T>
struct Strided {
  T* data;
  int64_t row_stride, col_stride;

  Strided Transposed() const { return {data, col_stride, row_stride}; }
  T* Row(int64_t r) const { return data + r * row_stride; }
};

template <class T>
void Gather(const T* x, int64_t stride, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i * stride];
}

template <class T>
void Scatter(const T* x, int64_t n, int64_t stride, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i * stride] = x[i];
}

inline ScaleGrid Transposed(ScaleGrid grid) {
  std::swap(grid.row_stride, grid.col_stride);
  std::swap(grid.row_group, grid.col_group);
  return grid;
}

// The row of `grid` that row r of the matrix uses. Called once per row, and rows may be short.
HWY_INLINE ScaleGrid GridRow(ScaleGrid grid, int64_t r) {
  const int64_t at = (grid.row_group == 1 ? r : r / grid.row_group) * grid.row_stride;
  grid.scale += at;
  if (grid.zero_point != nullptr) grid.zero_point += at;
  return grid;
}

}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_QUANTIZE_INL_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr size_t kMaxLanes = hn::MaxLanes(FloatTag());

template <class D, class V>
V Flush(D d, V x) {
  const V zero = hn::And(x, hn::Set(d, -0.0f));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, internal::kSmallestNormal)), zero, x);
}

template <class D>
hn::Vec<D> LoadInts(D d, const int8_t* x) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, x)));
}

struct ScaleAndZero {
  FloatVec scale, zero;
};

// One scale for all elements of a run.
class UniformScale {
 public:
  UniformScale(float scale, int zero_point, bool flush)
      : scale_(flush ? FlushSubnormal(scale) : scale), zero_(static_cast<float>(zero_point)) {}
  ScaleAndZero At(FloatTag d, int64_t) const { return {hn::Set(d, scale_), hn::Set(d, zero_)}; }
  ScaleAndZero Rest(FloatTag d, int64_t, int64_t) const { return At(d, 0); }
  // Whether all magnitudes are known to be at most `bound`.
  bool IsAtMost(float bound) const { return __builtin_fabsf(scale_) <= bound; }
  bool HasZeroPoint() const { return zero_ != 0; }

 private:
  float scale_, zero_;
};

// A scale per element.
class VaryingScale {
 public:
  VaryingScale(const float* scale, const int8_t* zero_point, bool flush)
      : scale_(scale), zero_point_(zero_point), flush_(flush) {}
  ScaleAndZero At(FloatTag d, int64_t i) const {
    const FloatVec scale = hn::LoadU(d, scale_ + i);
    return {flush_ ? Flush(d, scale) : scale, zero_point_ == nullptr ? hn::Zero(d) : LoadInts(d, zero_point_ + i)};
  }
  // Like At(d, i), with n < lanes elements left.
  ScaleAndZero Rest(FloatTag d, int64_t i, int64_t n) const {
    float scale[kMaxLanes] = {};
    int8_t zero_point[kMaxLanes] = {};
    std::copy(scale_ + i, scale_ + i + n, scale);
    if (zero_point_ != nullptr) std::copy(zero_point_ + i, zero_point_ + i + n, zero_point);
    return VaryingScale(scale, zero_point, flush_).At(d, 0);
  }
  bool IsAtMost(float) const { return false; }
  bool HasZeroPoint() const { return zero_point_ != nullptr; }

 private:
  const float* scale_;
  const int8_t* zero_point_;
  bool flush_;
};

// Calls body.Apply(d, in, scale and zero, out) for each vector of a run; a partial last vector goes through padded
// copies. If the body has ApplyFour(d, in, scales and zeros of four vectors, out), vectors are processed in fours as
// far as possible.
template <class In, class Out, class Scales, class Body>
HWY_INLINE void ForEachVector(const In* HWY_RESTRICT in, int64_t n, const Scales& scales, Out* HWY_RESTRICT out,
                              const Body& body) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if constexpr (requires(const ScaleAndZero(&four)[4]) { body.ApplyFour(d, in, four, out); }) {
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      const ScaleAndZero four[] = {scales.At(d, i), scales.At(d, i + lanes), scales.At(d, i + 2 * lanes),
                                   scales.At(d, i + 3 * lanes)};
      body.ApplyFour(d, in + i, four, out + i);
    }
  }
  for (; i + lanes <= n; i += lanes) body.Apply(d, in + i, scales.At(d, i), out + i);
  if (kMaxLanes == 1 || i == n) return;
  In padded[kMaxLanes] = {};
  Out result[kMaxLanes];
  std::copy(in + i, in + n, padded);
  body.Apply(d, padded, scales.Rest(d, i, n - i), result);
  std::copy(result, result + (n - i), out + i);
}

// Calls f(first, count, scales) for pieces of [begin, end) of a row that have either a single scale or one per element.
template <class F>
void ForEachPiece(const ScaleGrid& row, bool flush, int64_t begin, int64_t end, const F& f) {
  const auto zero_point = [&](int64_t at) { return row.zero_point == nullptr ? 0 : int{row.zero_point[at]}; };
  if (row.col_stride == 0) {
    f(begin, end - begin, UniformScale(row.scale[0], zero_point(0), flush));
    return;
  }
  if (row.col_group == 1 && row.col_stride == 1) {
    f(begin, end - begin,
      VaryingScale(row.scale + begin, row.zero_point == nullptr ? nullptr : row.zero_point + begin, flush));
    return;
  }
  for (int64_t c = begin; c < end;) {
    const int64_t group = c / row.col_group, at = group * row.col_stride;
    const int64_t next = std::min(end, (group + 1) * row.col_group);
    f(c, next - c, UniformScale(row.scale[at], zero_point(at), flush));
    c = next;
  }
}

// Calls run(in, n, scales, out) for pieces of rows that are contiguous on both sides and have either a single scale or
// one per element. Pieces run along the columns if `along_columns`, which should be the contiguous axis of the floats.
template <class In, class Out, class Run>
void ForEachRun(int64_t rows, int64_t cols, internal::Strided<const In> in, internal::Strided<Out> out, ScaleGrid grid,
                bool along_columns, bool flush, Run run) {
  if (along_columns) {
    std::swap(rows, cols);
    in = in.Transposed();
    out = out.Transposed();
    grid = internal::Transposed(grid);
  }
  const bool gather = in.col_stride != 1, scatter = out.col_stride != 1;
  const int64_t step = gather || scatter ? internal::kChunk : cols;
  In gathered[internal::kChunk];
  Out results[internal::kChunk];
  for (int64_t r = 0; r < rows; ++r) {
    const In* in_row = in.Row(r);
    Out* out_row = out.Row(r);
    const ScaleGrid grid_row = internal::GridRow(grid, r);
    for (int64_t c = 0; c < cols; c += step) {
      const int64_t n = std::min(step, cols - c);
      if (gather) internal::Gather(in_row + c * in.col_stride, in.col_stride, n, gathered);
      const In* x = gather ? gathered : in_row + c;
      Out* q = scatter ? results : out_row + c;
      ForEachPiece(grid_row, flush, c, c + n, [&](int64_t first, int64_t count, const auto& scales) {
        run(x + (first - c), count, scales, q + (first - c));
      });
      if (scatter) internal::Scatter(results, n, out.col_stride, out_row + c * out.col_stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_QUANTIZE_QUANTIZE_INL_H_
