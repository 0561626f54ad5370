#include "aqt/kernels/attention/softmax_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/attention/softmax_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"
#include "aqt/kernels/simd/math-float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, kRowGroup>;
using V = hn::Vec<Tag>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
constexpr int64_t kVectors = kRowGroup / kLanes;  // of a group

// A group of 16 elements.
struct Group {
  V v[kVectors];
};

HWY_INLINE Group LoadGroup(const float* x) {
  Group group;
  for (int64_t i = 0; i < kVectors; ++i) group.v[i] = hn::LoadU(Tag(), x + i * kLanes);
  return group;
}
HWY_INLINE void StoreGroup(const Group& group, float* out) {
  for (int64_t i = 0; i < kVectors; ++i) hn::StoreU(group.v[i], Tag(), out + i * kLanes);
}
HWY_INLINE Group Repeat(float x) {
  Group group;
  for (int64_t i = 0; i < kVectors; ++i) group.v[i] = hn::Set(Tag(), x);
  return group;
}
template <class F>
HWY_INLINE Group Map(const Group& a, F f) {
  Group group;
  for (int64_t i = 0; i < kVectors; ++i) group.v[i] = f(a.v[i], i);
  return group;
}
HWY_INLINE Group LargerOf(const Group& a, const Group& b) {
  return Map(a, [&](V v, int64_t i) HWY_ATTR { return hn::Max(v, b.v[i]); });
}

// x where the mask is true, and elsewhere the lowest number.
HWY_INLINE Group Masked(const Group& x, const uint8_t* mask) {
  return Map(x, [&](V v, int64_t i) HWY_ATTR {
    const hn::RebindToSigned<Tag> d;
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto wide = hn::PromoteTo(d, hn::LoadU(bytes, mask + i * kLanes));
    const auto is_seen = hn::MaskFromVec(hn::BitCast(Tag(), hn::VecFromMask(d, hn::Ne(wide, hn::Zero(d)))));
    return hn::IfThenElse(is_seen, v, hn::Set(Tag(), std::numeric_limits<float>::lowest()));
  });
}

// Adds up the lanes in the order of Reduce: lanes j and j + 8, then + 4, + 2, + 1.
template <class D>
HWY_INLINE float SumOfVector(D, hn::Vec<D> v) {
#if HWY_TARGET == HWY_SCALAR
  return hn::GetLane(v);
#else
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return SumOfVector(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    v = hn::Add(v, hn::Shuffle1032(v));
    return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
  }
#endif
}
HWY_INLINE float SumOfLanes(Group sums) {
  for (int64_t width = kVectors / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) sums.v[i] = hn::Add(sums.v[i], sums.v[i + width]);
  }
  return SumOfVector(Tag(), sums.v[0]);
}

HWY_INLINE float MaxOfLanes(const Group& group) {
  V largest = group.v[0];
  for (int64_t i = 1; i < kVectors; ++i) largest = hn::Max(largest, group.v[i]);
  return hn::GetLane(hn::MaxOfLanes(Tag(), largest));
}

// The largest score after bias and mask, which are applied in place. A NaN may be lost: the sum of the row's powers is
// NaN in any case. So is the sign of a zero, on which no power depends.
template <bool kBias, bool kMask>
HWY_INLINE float Scores(float* x, int64_t groups, const float* bias, const uint8_t* mask) {
  const auto next = [&](int64_t g) HWY_ATTR {
    const int64_t at = g * kRowGroup;
    Group s = LoadGroup(x + at);
    if constexpr (kBias) {
      const Group b = LoadGroup(bias + at);
      s = Map(s, [&](V v, int64_t i) HWY_ATTR { return hn::Add(v, b.v[i]); });
    }
    if constexpr (kMask) s = Masked(s, mask + at);
    if constexpr (kBias || kMask) StoreGroup(s, x + at);
    return s;
  };
  Group first = next(0), second = first;  // two chains of maxima
  int64_t g = 1;
  for (; g + 2 <= groups; g += 2) {
    first = LargerOf(first, next(g));
    second = LargerOf(second, next(g + 1));
  }
  if (g < groups) first = LargerOf(first, next(g));
  return MaxOfLanes(LargerOf(first, second));
}

// The magnitudes of quick quotients x / n, of which y is 1 / n: those of QuotientsBy (elementwise/strip_steps-inl.h),
// where they are proved correctly rounded. They are also right for x = +0.
constexpr float kLeastOfQuotient = 0x1p-60f, kMostOfQuotient = 0x1p60f;
HWY_INLINE V QuickQuotient(V x, V n, V y) {
  const V q = hn::Mul(x, y);
  return Fma(NegFma(q, n, x), y, q);
}

// x = exp(x - largest), and their sum. `has_small`: whether a power is too small for a quick quotient, and not 0.
HWY_INLINE float Powers(float* x, int64_t groups, float largest, bool* has_small) {
  const hn::RebindToUnsigned<Tag> du;
  const V max = hn::Set(Tag(), largest);
  Group sums = Repeat(0);
  auto least = hn::Set(du, ~uint32_t{0});  // of the bits minus 1: that of 0 is the largest
  for (int64_t g = 0; g < groups; ++g, x += kRowGroup) {
    const Group powers = Map(LoadGroup(x), [&](V v, int64_t) HWY_ATTR { return ExpOf(Tag(), hn::Sub(v, max)); });
    StoreGroup(powers, x);
    for (int64_t i = 0; i < kVectors; ++i) {
      sums.v[i] = hn::Add(sums.v[i], powers.v[i]);
      least = hn::Min(least, hn::Sub(hn::BitCast(du, powers.v[i]), hn::Set(du, 1)));
    }
  }
  *has_small = !hn::AllFalse(du, hn::Lt(least, hn::Set(du, __builtin_bit_cast(uint32_t, kLeastOfQuotient) - 1)));
  return SumOfLanes(sums);
}

// out = x / sum rounded to T, for powers x and their sum.
template <class T>
HWY_INLINE void Quotients(const float* x, int64_t groups, float sum, bool has_small, int64_t step, float* out) {
  const V n = hn::Set(Tag(), sum), y = hn::Div(hn::Set(Tag(), 1), n);
  const bool quick = kLanes > 1 && !has_small && sum >= 1 && sum <= kMostOfQuotient;
  const auto divide = [&](auto quotient) HWY_ATTR {
    for (int64_t g = 0; g < groups; ++g, x += kRowGroup, out += step) {
      StoreGroup(Map(LoadGroup(x), [&](V v, int64_t) HWY_ATTR { return RoundLanes<T>::Apply(Tag(), quotient(v)); }),
                 out);
    }
  };
  if (quick) divide([&](V v) HWY_ATTR { return QuickQuotient(v, n, y); });
  else divide([&](V v) HWY_ATTR { return hn::Div(v, n); });
}

// The rows of a ScoreOperand, in whole groups.
template <class T>
class RowsOf {
 public:
  RowsOf(const ScoreOperand<T>& operand, int64_t columns, T fill, void* buffer)
      : operand_(operand), columns_(columns), buffer_(static_cast<T*>(buffer)) {
    if (operand.data == nullptr) return;
    copies_ = operand.column_stride == 0 || columns % kRowGroup != 0;
    if (copies_) std::fill_n(buffer_, RoundUp(columns, kRowGroup), fill);
  }
  const T* Row(int64_t r) {
    if (operand_.data == nullptr) return nullptr;
    const T* const row = operand_.data + r * operand_.row_stride;
    if (!copies_) return row;
    if (row == last_) return buffer_;
    last_ = row;
    if (operand_.column_stride == 0) std::fill_n(buffer_, columns_, *row);
    else std::copy_n(row, columns_, buffer_);
    return buffer_;
  }

 private:
  const ScoreOperand<T>& operand_;
  const int64_t columns_;
  T* const buffer_;
  bool copies_ = false;
  const T* last_ = nullptr;
};

template <class T, bool kBias, bool kMask>
void RunRows(const SoftmaxCall& call) {
  const int64_t groups = call.stride / kRowGroup;
  RowsOf<float> bias(call.bias, call.columns, 0, call.buffer);
  RowsOf<bool> mask(call.mask, call.columns, true, static_cast<float*>(call.buffer) + call.stride);
  // Several rows at a time, because the steps of one row wait for each other.
  constexpr int64_t kRows = 4;
  for (int64_t first = 0; first < call.rows; first += kRows) {
    const int64_t rows = std::min(kRows, call.rows - first);
    float* const x = call.scores + first * call.stride;
    float largest[kRows], sums[kRows];
    bool has_small[kRows];
    for (int64_t r = 0; r < rows; ++r) {
      float* const row = x + r * call.stride;
      std::fill(row + call.columns, row + call.stride, -std::numeric_limits<float>::infinity());
      const uint8_t* const sees = reinterpret_cast<const uint8_t*>(mask.Row(first + r));
      largest[r] = Scores<kBias, kMask>(row, groups, bias.Row(first + r), sees);
    }
    for (int64_t r = 0; r < rows; ++r) sums[r] = Powers(x + r * call.stride, groups, largest[r], &has_small[r]);
    for (int64_t r = 0; r < rows; ++r) {
      Quotients<T>(x + r * call.stride, groups, sums[r], has_small[r], call.out.step, call.out.Row(first + r));
    }
  }
}

// Calls f.template operator()<T>() with the type of a dtype.
template <class F>
HWY_INLINE void VisitFloat(DType dtype, F f) {
  switch (dtype) {
    case DType::kBF16: return f.template operator()<BFloat16>();
    case DType::kF16: return f.template operator()<Float16>();
    default: AQT_DCHECK(dtype == DType::kF32); return f.template operator()<float>();
  }
}

void Softmax(const SoftmaxCall& call) {
  VisitFloat(call.dtype, [&]<class T>() {
    const bool has_bias = call.bias.data != nullptr, has_mask = call.mask.data != nullptr;
    if (has_bias && has_mask) RunRows<T, true, true>(call);
    else if (has_bias) RunRows<T, true, false>(call);
    else if (has_mask) RunRows<T, false, true>(call);
    else RunRows<T, false, false>(call);
  });
}

// A group of x / n rounded to T; y is 1 / n.
template <class T>
HWY_INLINE Group Divided(const T* x, V n, V y) {
  const hn::RebindToUnsigned<Tag> du;
  // Twice the bits of a magnitude, relative to the least one.
  const auto key = [&](V v) HWY_ATTR {
    const auto bits = hn::BitCast(du, v);
    return hn::Sub(hn::Add(bits, bits), hn::Set(du, 2 * __builtin_bit_cast(uint32_t, kLeastOfQuotient)));
  };
  Group dividends, quotients;
  auto largest = key(n);
  for (int64_t i = 0; i < kVectors; ++i) {
    dividends.v[i] = LoadFloat(Tag(), x + i * kLanes);
    largest = hn::Max(largest, key(dividends.v[i]));
    if constexpr (kLanes > 1) quotients.v[i] = QuickQuotient(dividends.v[i], n, y);
  }
  if (kLanes == 1 || !hn::AllFalse(du, hn::Gt(largest, key(hn::Set(Tag(), kMostOfQuotient))))) {
    quotients = Map(dividends, [&](V v, int64_t) HWY_ATTR { return hn::Div(v, n); });
  }
  return Map(quotients, [&](V v, int64_t) HWY_ATTR { return RoundLanes<T>::Apply(Tag(), v); });
}

void Divide(const DivideCall& call) {
  VisitFloat(call.dtype, [&]<class T>() {
    const V n = hn::Set(Tag(), call.divisor), y = hn::Div(hn::Set(Tag(), 1), n);
    const int64_t full = call.columns / kRowGroup * kRowGroup;
    T last[kRowGroup] = {};
    for (int64_t r = 0; r < call.rows; ++r) {
      const T* const x = static_cast<const T*>(call.x) + r * call.stride;
      float* out = call.out.Row(r);
      for (int64_t c = 0; c < full; c += kRowGroup, out += call.out.step) StoreGroup(Divided(x + c, n, y), out);
      if (full == call.columns) continue;
      std::copy_n(x + full, call.columns - full, last);
      StoreGroup(Divided(last, n, y), out);
      std::fill_n(out + (call.columns - full), kRowGroup - (call.columns - full), 0.0f);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

int64_t SoftmaxBufferBytes(int64_t columns) {
  return RoundUp(columns, kRowGroup) * static_cast<int64_t>(sizeof(float) + sizeof(bool));
}

void SoftmaxRows(const SoftmaxCall& call, Target target) { AQT_HWY_DISPATCH(target, Softmax)(call); }

void DivideRows(const DivideCall& call, Target target) { AQT_HWY_DISPATCH(target, Divide)(call); }

}  // namespace aqt::kernels
#endif  // HWY_ONCE
