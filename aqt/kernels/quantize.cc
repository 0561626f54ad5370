#include "aqt/kernels/quantize.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/convert-inl.h"

#ifndef AQT_KERNELS_QUANTIZE_ONCE_
#define AQT_KERNELS_QUANTIZE_ONCE_
namespace aqt::kernels {
namespace {

// Elements handled at once if the source or the result is not contiguous and goes through a buffer in L1.
constexpr int64_t kChunk = 512;

constexpr float kSmallestNormal = 0x1p-126f;

float FlushedToZero(float x) { return __builtin_fabsf(x) < kSmallestNormal ? __builtin_copysignf(0.0f, x) : x; }

template <class T>
void Gather(const T* x, int64_t stride, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i * stride];
}

template <class T>
void Scatter(const T* x, int64_t n, int64_t stride, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i * stride] = x[i];
}

ScaleGrid Transposed(ScaleGrid grid) {
  std::swap(grid.row_stride, grid.col_stride);
  std::swap(grid.row_group, grid.col_group);
  return grid;
}

// The row of `grid` that row r of the matrix uses.
ScaleGrid GridRow(ScaleGrid grid, int64_t r) {
  const int64_t at = r / grid.row_group * grid.row_stride;
  grid.scale += at;
  if (grid.zero_point != nullptr) grid.zero_point += at;
  return grid;
}

}  // namespace
}  // namespace aqt::kernels
#endif  // AQT_KERNELS_QUANTIZE_ONCE_

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
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, kSmallestNormal)), zero, x);
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
      : scale_(flush ? FlushedToZero(scale) : scale), zero_(static_cast<float>(zero_point)) {}
  ScaleAndZero At(FloatTag d, int64_t) const { return {hn::Set(d, scale_), hn::Set(d, zero_)}; }
  ScaleAndZero Rest(FloatTag d, int64_t, int64_t) const { return At(d, 0); }
  // Whether x * scale can round to something other than 0 for a subnormal x: |x| < 2^-126, and 0.5 rounds to 0.
  bool SubnormalsMatter() const { return !(__builtin_fabsf(scale_) <= 0x1p125f); }

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
  bool SubnormalsMatter() const { return true; }

 private:
  const float* scale_;
  const int8_t* zero_point_;
  bool flush_;
};

// Calls body(d, in, scale and zero, out) for each vector of a run; a partial last vector goes through padded copies.
template <class In, class Out, class Scales, class Body>
void ForEachVector(const In* HWY_RESTRICT in, int64_t n, const Scales& scales, Out* HWY_RESTRICT out,
                   const Body& body) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body.Apply(d, in + i, scales.At(d, i), out + i);
  if (kMaxLanes == 1 || i == n) return;
  In padded[kMaxLanes] = {};
  Out result[kMaxLanes];
  std::copy(in + i, in + n, padded);
  body.Apply(d, padded, scales.Rest(d, i, n - i), result);
  std::copy(result, result + (n - i), out + i);
}

// round(clamp(y, lo, hi)), with NaN giving 0, for 8-bit integers lo and hi.
struct Clamp {
  float lo, hi;

  template <class D, class V>
  void RoundAndStore(D d, V y, int8_t* q) const {
    y = hn::IfThenElseZero(hn::Eq(y, y), y);
    y = hn::Min(hn::Max(y, hn::Set(d, lo)), hn::Set(d, hi));
    // Adding 1.5 * 2^23 makes the sum's last bit worth 1, so that the addition rounds to nearest even and its low byte
    // is q in two's complement. Unlike Highway's NearestInt this is right on every target (its SCALAR version rounds
    // 0.49999997 up).
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, hn::Add(y, hn::Set(d, 0x1.8p23f)));
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::U8FromU32(hn::And(bits, hn::Set(du, 0xffu))), d8, reinterpret_cast<uint8_t*>(q));
  }
};

template <class T, bool kFlush>
struct MultiplyByInverse {
  Clamp clamp;

  template <class D>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    FloatVec x = LoadFloat(d, in);
    if constexpr (kFlush) x = Flush(d, x);
    clamp.RoundAndStore(d, RoundLanes<T>::Apply(d, hn::Mul(x, s.scale)), q);
  }
};

template <class T>
struct DivideByScale {
  Clamp clamp;

  template <class D>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    const FloatVec y = RoundLanes<T>::Apply(d, hn::Div(LoadFloat(d, in), s.scale));
    clamp.RoundAndStore(d, RoundLanes<T>::Apply(d, hn::Add(y, s.zero)), q);
  }
};

template <class T>
struct MultiplyByScale {
  template <class D>
  void Apply(D d, const int8_t* q, const ScaleAndZero& s, T* out) const {
    const FloatVec difference = RoundLanes<T>::Apply(d, hn::Sub(LoadInts(d, q), s.zero));
    StoreFloat(d, RoundLanes<T>::Apply(d, hn::Mul(difference, s.scale)), out);
  }
};

template <class T, class Scales>
void QuantizeRun(const QuantizeMatrixArgs& args, bool flush, const T* x, int64_t n, const Scales& scales, int8_t* q) {
  const Clamp clamp = {args.lo, args.hi};
  if (args.rule == QuantizeRule::kDivideByScale) ForEachVector(x, n, scales, q, DivideByScale<T>{clamp});
  else if (flush && scales.SubnormalsMatter()) ForEachVector(x, n, scales, q, MultiplyByInverse<T, true>{clamp});
  else ForEachVector(x, n, scales, q, MultiplyByInverse<T, false>{clamp});
}

template <class T, class Scales>
void DequantizeRun(const int8_t* q, int64_t n, const Scales& scales, T* x) {
  ForEachVector(q, n, scales, x, MultiplyByScale<T>{});
}

// Calls f(first, count, scales) for pieces of [begin, end) of a row that have a single scale, or one per element.
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

// The inner loop runs over the contiguous axis of the floats, if there is one.
template <class T>
void QuantizeOf(const QuantizeMatrixArgs& given) {
  QuantizeMatrixArgs args = given;
  if (args.x.row_stride == 1 && args.x.col_stride != 1) {
    std::swap(args.x.rows, args.x.cols);
    std::swap(args.x.row_stride, args.x.col_stride);
    std::swap(args.q_row_stride, args.q_col_stride);
    args.grid = Transposed(args.grid);
  }
  const bool flush = args.flush_subnormals && !std::is_same_v<T, Float16>;
  const bool gather = args.x.col_stride != 1, scatter = args.q_col_stride != 1;
  const int64_t step = gather || scatter ? kChunk : args.x.cols;
  T gathered[kChunk];
  int8_t results[kChunk];
  for (int64_t r = 0; r < args.x.rows; ++r) {
    const T* row = static_cast<const T*>(args.x.data) + r * args.x.row_stride;
    int8_t* q_row = args.q + r * args.q_row_stride;
    const ScaleGrid grid = GridRow(args.grid, r);
    for (int64_t c = 0; c < args.x.cols; c += step) {
      const int64_t n = std::min(step, args.x.cols - c);
      if (gather) Gather(row + c * args.x.col_stride, args.x.col_stride, n, gathered);
      const T* x = gather ? gathered : row + c;
      int8_t* q = scatter ? results : q_row + c;
      ForEachPiece(grid, flush, c, c + n, [&](int64_t first, int64_t count, const auto& scales) {
        QuantizeRun(args, flush, x + (first - c), count, scales, q + (first - c));
      });
      if (scatter) Scatter(results, n, args.q_col_stride, q_row + c * args.q_col_stride);
    }
  }
}

template <class T>
void DequantizeOf(const DequantizeMatrixArgs& given) {
  DequantizeMatrixArgs args = given;
  if (args.row_stride == 1 && args.col_stride != 1) {
    std::swap(args.rows, args.cols);
    std::swap(args.row_stride, args.col_stride);
    std::swap(args.q_row_stride, args.q_col_stride);
    args.grid = Transposed(args.grid);
  }
  const bool flush = args.flush_subnormals && !std::is_same_v<T, Float16>;
  const bool gather = args.q_col_stride != 1, scatter = args.col_stride != 1;
  const int64_t step = gather || scatter ? kChunk : args.cols;
  int8_t gathered[kChunk];
  T results[kChunk];
  for (int64_t r = 0; r < args.rows; ++r) {
    const int8_t* q_row = args.q + r * args.q_row_stride;
    T* row = static_cast<T*>(args.x) + r * args.row_stride;
    const ScaleGrid grid = GridRow(args.grid, r);
    for (int64_t c = 0; c < args.cols; c += step) {
      const int64_t n = std::min(step, args.cols - c);
      if (gather) Gather(q_row + c * args.q_col_stride, args.q_col_stride, n, gathered);
      const int8_t* q = gather ? gathered : q_row + c;
      T* x = scatter ? results : row + c;
      ForEachPiece(grid, flush, c, c + n, [&](int64_t first, int64_t count, const auto& scales) {
        DequantizeRun(q + (first - c), count, scales, x + (first - c));
      });
      if (scatter) Scatter(results, n, args.col_stride, row + c * args.col_stride);
    }
  }
}

void QuantizeAny(const QuantizeMatrixArgs& args) {
  switch (args.x.dtype) {
    case DType::kF32: return QuantizeOf<float>(args);
    case DType::kBF16: return QuantizeOf<BFloat16>(args);
    case DType::kF16: return QuantizeOf<Float16>(args);
    default: AQT_CHECK(!"QuantizeMatrix: dtype is f32, bf16 or f16");
  }
}

void DequantizeAny(const DequantizeMatrixArgs& args) {
  switch (args.dtype) {
    case DType::kF32: return DequantizeOf<float>(args);
    case DType::kBF16: return DequantizeOf<BFloat16>(args);
    case DType::kF16: return DequantizeOf<Float16>(args);
    default: AQT_CHECK(!"DequantizeMatrix: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void QuantizeMatrix(const QuantizeMatrixArgs& args, Target target) {
  AQT_DCHECK(-128 <= args.lo && args.lo <= args.hi && args.hi <= 127);
  AQT_DCHECK(args.rule == QuantizeRule::kDivideByScale || args.grid.zero_point == nullptr);
  AQT_HWY_DISPATCH(target, QuantizeAny)(args);
}

void DequantizeMatrix(const DequantizeMatrixArgs& args, Target target) {
  AQT_HWY_DISPATCH(target, DequantizeAny)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
