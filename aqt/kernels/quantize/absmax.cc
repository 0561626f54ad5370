#include "aqt/kernels/quantize/absmax.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize/absmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef AQT_KERNELS_ABSMAX_ONCE_
#define AQT_KERNELS_ABSMAX_ONCE_
namespace aqt::kernels {
namespace {

// Elements in a column-wise accumulator or a gathered row: 2 to 4 KiB, which fits L1 together with the streamed data.
constexpr int64_t kChunk = 1024;
// Rows up to this length are processed four at a time.
constexpr int64_t kShortRow = 256;

// The signed integer of T's size. All comparisons below are between integers.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, int32_t, int16_t>;
template <class T>
constexpr BitsOf<T> kInfinityBits = std::is_same_v<T, float>      ? static_cast<BitsOf<T>>(0x7f800000)
                                    : std::is_same_v<T, BFloat16> ? static_cast<BitsOf<T>>(0x7f80)
                                                                  : static_cast<BitsOf<T>>(0x7c00);

template <class T>
float FloatFromBits(BitsOf<T> bits) {
  T x;
  std::memcpy(static_cast<void*>(&x), &bits, sizeof x);
  return ToFloat(x);
}

// Whether columns are contiguous and rows are not.
bool RunsAlongColumns(const FloatMatrix& x) { return x.row_stride == 1 && x.col_stride != 1; }

// Copies n elements `stride` apart.
template <class T>
void Gather(const T* x, int64_t stride, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i * stride];
}

}  // namespace
}  // namespace aqt::kernels
#endif  // AQT_KERNELS_ABSMAX_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A key maps the bit patterns of floats to integers whose maximum is searched. kLowest is at most the key of any
// number. NaN patterns are beyond infinity on both sides, so a NaN wins at least one of the searches.

// |x|: the pattern without its sign bit.
template <class T>
struct AbsKey {
  static constexpr BitsOf<T> kLowest = 0;
  template <class D, class V>
  static V Of(D d, V bits) {
    return hn::And(bits, hn::Set(d, std::numeric_limits<BitsOf<T>>::max()));
  }
};

// x: reverses the order of negative patterns. The map is its own inverse.
template <class T>
struct UpKey {
  static constexpr BitsOf<T> Of(BitsOf<T> bits) {
    return bits < 0 ? bits ^ std::numeric_limits<BitsOf<T>>::max() : bits;
  }
  static constexpr BitsOf<T> kLowest = static_cast<BitsOf<T>>(
      (kInfinityBits<T> | std::numeric_limits<BitsOf<T>>::min()) ^ std::numeric_limits<BitsOf<T>>::max());
  template <class D, class V>
  static V Of(D d, V bits) {
    const V negative = hn::ShiftRight<8 * sizeof(T) - 1>(bits);
    return hn::Xor(bits, hn::And(negative, hn::Set(d, std::numeric_limits<BitsOf<T>>::max())));
  }
};

// Orders by -x: the complement of UpKey.
template <class T>
struct DownKey {
  static constexpr BitsOf<T> kLowest = static_cast<BitsOf<T>>(~kInfinityBits<T>);
  template <class D, class V>
  static V Of(D d, V bits) {
    return hn::Not(UpKey<T>::Of(d, bits));
  }
};

template <class D>
hn::Vec<D> LoadBits(D d, const float* x) {
  const hn::RebindToFloat<D> df;
  return hn::BitCast(d, hn::LoadU(df, x));
}
template <class D, class T>
hn::Vec<D> LoadBits(D d, const T* x) {
  return hn::LoadU(d, reinterpret_cast<const int16_t*>(x));
}

// The maximum of Key over x[0..n).
template <class Key, class T>
BitsOf<T> MaxOfRun(const T* HWY_RESTRICT x, int64_t n) {
  const hn::ScalableTag<BitsOf<T>> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n < lanes) {  // the same instructions on a padded copy
    T padded[hn::MaxLanes(d)] = {};
    std::copy(x, x + n, padded);
    HWY_ALIGN BitsOf<T> keys[hn::MaxLanes(d)];
    hn::Store(Key::Of(d, LoadBits(d, padded)), d, keys);
    BitsOf<T> max = Key::kLowest;
    for (int64_t i = 0; i < n; ++i) max = std::max(max, keys[i]);
    return max;
  }
  V m0 = hn::Set(d, Key::kLowest), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(m0, Key::Of(d, LoadBits(d, x + i)));
    m1 = hn::Max(m1, Key::Of(d, LoadBits(d, x + i + lanes)));
    m2 = hn::Max(m2, Key::Of(d, LoadBits(d, x + i + 2 * lanes)));
    m3 = hn::Max(m3, Key::Of(d, LoadBits(d, x + i + 3 * lanes)));
  }
  for (; i + lanes <= n; i += lanes) m0 = hn::Max(m0, Key::Of(d, LoadBits(d, x + i)));
  m1 = hn::Max(m1, Key::Of(d, LoadBits(d, x + n - lanes)));  // the rest, overlapping some elements
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

// max[r] = max(max[r], Key of x[r]), for r in [0, n).
template <class Key, class T>
void MaxInto(const T* HWY_RESTRICT x, int64_t n, BitsOf<T>* HWY_RESTRICT max) {
  const hn::ScalableTag<BitsOf<T>> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n < lanes) {  // the same instructions on a padded copy
    T padded[hn::MaxLanes(d)] = {};
    std::copy(x, x + n, padded);
    HWY_ALIGN BitsOf<T> keys[hn::MaxLanes(d)];
    hn::Store(Key::Of(d, LoadBits(d, padded)), d, keys);
    for (int64_t i = 0; i < n; ++i) max[i] = std::max(max[i], keys[i]);
    return;
  }
  const auto step = [&](int64_t r) {
    hn::StoreU(hn::Max(hn::LoadU(d, max + r), Key::Of(d, LoadBits(d, x + r))), d, max + r);
  };
  int64_t r = 0;
  for (; r + lanes <= n; r += lanes) step(r);
  if (r < n) step(n - lanes);  // the rest, overlapping some elements
}

// The same for four columns that are `stride` apart.
template <class Key, class T>
void MaxOfFourInto(const T* HWY_RESTRICT x, int64_t stride, int64_t n, BitsOf<T>* HWY_RESTRICT max) {
  const hn::ScalableTag<BitsOf<T>> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n < lanes) {
    for (int64_t column = 0; column < 4; ++column) MaxInto<Key>(x + column * stride, n, max);
    return;
  }
  const auto step = [&](int64_t r) {
    const auto key = [&](int64_t column) { return Key::Of(d, LoadBits(d, x + column * stride + r)); };
    const auto four = hn::Max(hn::Max(key(0), key(1)), hn::Max(key(2), key(3)));
    hn::StoreU(hn::Max(hn::LoadU(d, max + r), four), d, max + r);
  };
  int64_t r = 0;
  for (; r + lanes <= n; r += lanes) step(r);
  if (r < n) step(n - lanes);  // the rest, overlapping some elements
}

// max[j] = max of Key over columns [begin, end) of row first + j, for j in [0, n), n <= kChunk.
template <class Key, class T>
void MaxOfRows(const FloatMatrix& x, int64_t first, int64_t n, int64_t begin, int64_t end, BitsOf<T>* max) {
  const T* data = static_cast<const T*>(x.data) + first * x.row_stride;
  std::fill(max, max + n, Key::kLowest);
  if (RunsAlongColumns(x)) {
    int64_t c = begin;
    for (; c + 4 <= end; c += 4) MaxOfFourInto<Key>(data + c * x.col_stride, x.col_stride, n, max);
    for (; c < end; ++c) MaxInto<Key>(data + c * x.col_stride, n, max);
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    const T* row = data + j * x.row_stride;
    if (x.col_stride == 1) {
      max[j] = MaxOfRun<Key>(row + begin, end - begin);
      continue;
    }
    T gathered[kChunk];
    for (int64_t c = begin; c < end; c += kChunk) {
      const int64_t count = std::min(kChunk, end - c);
      Gather(row + c * x.col_stride, x.col_stride, count, gathered);
      max[j] = std::max(max[j], MaxOfRun<Key>(gathered, count));
    }
  }
}

// Calls f(first row, rows, group, first column, end column) for all groups of one block of rows after another, so that
// memory is read in order.
template <class F>
void ForEachBlock(const FloatMatrix& x, int64_t group, F f) {
  const int64_t groups = NumGroups(x.cols, group), rows_at_once = RunsAlongColumns(x) ? kChunk : 1;
  for (int64_t r = 0; r < x.rows; r += rows_at_once) {
    const int64_t n = std::min(rows_at_once, x.rows - r);
    for (int64_t g = 0; g < groups; ++g) f(r, n, g, g * group, std::min(x.cols, (g + 1) * group));
  }
}

template <class T>
float AbsMaxOfBits(BitsOf<T> max) {
  return max > kInfinityBits<T> ? std::numeric_limits<float>::quiet_NaN() : FloatFromBits<T>(max);
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
int64_t AbsMaxOfFourRunsEach(const T*, int64_t, int64_t, int64_t, float*) {
  return 0;
}
#else
// The maxima over the lanes of four vectors of 32-bit integers.
template <class D, class V>
HWY_INLINE void StoreMaxOfLanes(D d, V a, V b, V c, V e, int32_t* max) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    const auto halves = [=](V v) HWY_ATTR { return hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)); };
    StoreMaxOfLanes(half, halves(a), halves(b), halves(c), halves(e), max);
  } else {
    const hn::Repartition<int64_t, D> pairs;
    const auto ab = hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));  // a b a b
    const auto ce = hn::Max(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
    const auto ab2 = hn::BitCast(pairs, ab), ce2 = hn::BitCast(pairs, ce);
    hn::StoreU(hn::Max(hn::BitCast(d, hn::InterleaveLower(pairs, ab2, ce2)),
                       hn::BitCast(d, hn::InterleaveUpper(pairs, ab2, ce2))),
               d, max);
  }
}

// The larger key of each pair of 16-bit lanes as a 32-bit lane, for non-negative keys; 32-bit lanes as they are.
template <class D, class V>
HWY_INLINE auto PairMaxima(D d, V keys) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return keys;
  } else {
    const hn::RepartitionToWide<D> wide;
    const auto upper = hn::BitCast(d, hn::ShiftRight<16>(hn::BitCast(wide, keys)));
    return hn::And(hn::BitCast(wide, hn::Max(keys, upper)), hn::Set(wide, 0xffff));
  }
}

// max[j] = max of |x| over n elements starting at x + j * stride, for four j; n is a multiple of the lane count of D.
// Reducing four vectors together takes half the steps of reducing them one at a time.
template <class D, class T>
HWY_INLINE void AbsMaxOfFourRuns(D d, const T* HWY_RESTRICT x, int64_t stride, int64_t n, int32_t* max) {
  const auto run = [&](const T* from) HWY_ATTR {
    auto keys = hn::Zero(d);
    for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
      keys = hn::Max(keys, AbsKey<T>::Of(d, LoadBits(d, from + i)));
    }
    return PairMaxima(d, keys);
  };
  const auto a = run(x), b = run(x + stride), c = run(x + 2 * stride), e = run(x + 3 * stride);
  StoreMaxOfLanes(hn::Repartition<int32_t, D>(), a, b, c, e, max);
}

template <class D, class T>
int64_t AbsMaxInFours(D d, const T* x, int64_t stride, int64_t runs, int64_t n, float* absmax) {
  int64_t i = 0;
  for (; i + 4 <= runs; i += 4) {
    int32_t max[4];
    AbsMaxOfFourRuns(d, x + i * stride, stride, n, max);
    for (int j = 0; j < 4; ++j) absmax[i + j] = AbsMaxOfBits<T>(static_cast<BitsOf<T>>(max[j]));
  }
  return i;
}

// Processes leading runs, out of `runs`, in groups of four; returns how many it processed.
template <class T>
int64_t AbsMaxOfFourRunsEach(const T* x, int64_t stride, int64_t runs, int64_t n, float* absmax) {
  const hn::ScalableTag<BitsOf<T>> d;
  if (n % static_cast<int64_t>(hn::Lanes(d)) == 0) return AbsMaxInFours(d, x, stride, runs, n, absmax);
  if constexpr (hn::MaxLanes(d) * sizeof(T) > 16) {  // groups of 16 fill half a vector of 512 bits
    const hn::Half<decltype(d)> half;
    if (n % static_cast<int64_t>(hn::Lanes(half)) == 0) return AbsMaxInFours(half, x, stride, runs, n, absmax);
  }
  return 0;
}
#endif

template <class T>
void AbsMaxOf(const FloatMatrix& x, int64_t group, float* absmax) {
  group = std::min(group, x.cols);
  const int64_t groups = NumGroups(x.cols, group);
  if (x.col_stride == 1) {
    const T* const first = static_cast<const T*>(x.data);
    // For short rows the final reduction is a large part of the work.
    const bool is_short = groups == 1 && group <= kShortRow;
    int64_t r = is_short ? AbsMaxOfFourRunsEach(first, x.row_stride, x.rows, group, absmax) : 0;
    absmax += r;
    for (; r < x.rows; ++r, absmax += groups) {
      const T* const row = first + r * x.row_stride;
      for (int64_t g = AbsMaxOfFourRunsEach(row, group, x.cols / group, group, absmax); g < groups; ++g) {
        absmax[g] = AbsMaxOfBits<T>(MaxOfRun<AbsKey<T>>(row + g * group, std::min(group, x.cols - g * group)));
      }
    }
    return;
  }
  BitsOf<T> max[kChunk];
  ForEachBlock(x, group, [&](int64_t r, int64_t n, int64_t g, int64_t begin, int64_t end) {
    MaxOfRows<AbsKey<T>, T>(x, r, n, begin, end, max);
    for (int64_t j = 0; j < n; ++j) absmax[(r + j) * groups + g] = AbsMaxOfBits<T>(max[j]);
  });
}

template <class T>
void MinMaxOf(const FloatMatrix& x, int64_t group, float* min_out, float* max_out) {
  const int64_t groups = NumGroups(x.cols, group);
  BitsOf<T> up[kChunk], down[kChunk];
  ForEachBlock(x, group, [&](int64_t r, int64_t n, int64_t g, int64_t begin, int64_t end) {
    MaxOfRows<UpKey<T>, T>(x, r, n, begin, end, up);
    MaxOfRows<DownKey<T>, T>(x, r, n, begin, end, down);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = (r + j) * groups + g;
      if (up[j] > kInfinityBits<T> || ~down[j] < UpKey<T>::kLowest) {
        min_out[at] = max_out[at] = std::numeric_limits<float>::quiet_NaN();
      } else {
        min_out[at] = FloatFromBits<T>(UpKey<T>::Of(static_cast<BitsOf<T>>(~down[j])));
        max_out[at] = FloatFromBits<T>(UpKey<T>::Of(up[j]));
      }
    }
  });
}

void AbsMaxAny(const FloatMatrix& x, int64_t group, float* absmax) {
  switch (x.dtype) {
    case DType::kF32: return AbsMaxOf<float>(x, group, absmax);
    case DType::kBF16: return AbsMaxOf<BFloat16>(x, group, absmax);
    case DType::kF16: return AbsMaxOf<Float16>(x, group, absmax);
    default: AQT_CHECK(!"AbsMaxGroups: dtype is f32, bf16 or f16");
  }
}

void MinMaxAny(const FloatMatrix& x, int64_t group, float* min, float* max) {
  switch (x.dtype) {
    case DType::kF32: return MinMaxOf<float>(x, group, min, max);
    case DType::kBF16: return MinMaxOf<BFloat16>(x, group, min, max);
    case DType::kF16: return MinMaxOf<Float16>(x, group, min, max);
    default: AQT_CHECK(!"MinMaxGroups: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {
namespace {

// The same elements as the fewest and longest rows that need no gathering. The order does not affect the overall range.
FloatMatrix LongestRows(FloatMatrix x) {
  if (RunsAlongColumns(x)) {
    std::swap(x.rows, x.cols);
    std::swap(x.row_stride, x.col_stride);
  }
  if (x.row_stride == x.cols * x.col_stride) {
    x.cols *= x.rows;
    x.rows = 1;
  }
  return x;
}

// Rows [first, first + n) of x.
FloatMatrix Rows(FloatMatrix x, int64_t first, int64_t n) {
  x.data = static_cast<const char*>(x.data) + first * x.row_stride * SizeOf(x.dtype);
  x.rows = n;
  return x;
}

constexpr int64_t kRowsAtOnce = 256;

}  // namespace

void AbsMaxGroups(const FloatMatrix& x, int64_t group, float* absmax, Target target) {
  AQT_DCHECK(group >= 1 || x.cols == 0);
  if (x.rows <= 0 || x.cols <= 0) return;
  AQT_HWY_DISPATCH(target, AbsMaxAny)(x, group, absmax);
}

void MinMaxGroups(const FloatMatrix& x, int64_t group, float* min, float* max, Target target) {
  AQT_DCHECK(group >= 1 || x.cols == 0);
  if (x.rows <= 0 || x.cols <= 0) return;
  AQT_HWY_DISPATCH(target, MinMaxAny)(x, group, min, max);
}

float AbsMaxAll(const FloatMatrix& x, Target target) {
  float result = 0;
  const FloatMatrix m = LongestRows(x);
  if (m.cols <= 0) return result;
  float absmax[kRowsAtOnce];
  for (int64_t r = 0; r < m.rows; r += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, m.rows - r);
    AbsMaxGroups(Rows(m, r, n), m.cols, absmax, target);
    for (int64_t j = 0; j < n; ++j) {
      if (absmax[j] != absmax[j]) return absmax[j];
      result = std::max(result, absmax[j]);
    }
  }
  return result;
}

Range MinMaxAll(const FloatMatrix& x, Target target) {
  Range result = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  const FloatMatrix m = LongestRows(x);
  if (m.cols <= 0) return result;
  float min[kRowsAtOnce], max[kRowsAtOnce];
  for (int64_t r = 0; r < m.rows; r += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, m.rows - r);
    MinMaxGroups(Rows(m, r, n), m.cols, min, max, target);
    for (int64_t j = 0; j < n; ++j) {
      if (min[j] != min[j]) return {min[j], max[j]};
      // -0 also replaces +0 as the minimum, and +0 replaces -0 as the maximum.
      if (min[j] < result.min || (min[j] == result.min && __builtin_signbit(min[j]))) result.min = min[j];
      if (max[j] > result.max || (max[j] == result.max && !__builtin_signbit(max[j]))) result.max = max[j];
    }
  }
  return result;
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
