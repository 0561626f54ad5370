// The arithmetic that follows the exact sums of a group. Included once per Highway target.

#if defined(AQT_KERNELS_DIGITS_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_DIGITS_FINISH_INL_H_
#undef AQT_KERNELS_DIGITS_FINISH_INL_H_
#else
#define AQT_KERNELS_DIGITS_FINISH_INL_H_
#endif

#include <cstdint>

#include "aqt/kernels/digits/internal.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Turns a subnormal number into a zero of its sign.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> NormalOrZero(hn::Vec<hn::ScalableTag<float>> x) {
  const hn::ScalableTag<float> d;
  const auto sign = hn::Set(d, -0.0f);
#if HWY_TARGET == HWY_AVX3
  constexpr int kIsSubnormal = 0x20;
  const auto subnormal = _mm512_fpclass_ps_mask(x.raw, kIsSubnormal);
  return hn::Vec<decltype(d)>{_mm512_mask_and_ps(x.raw, subnormal, x.raw, sign.raw)};
#else
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-126f)), hn::And(x, sign), x);
#endif
}

// Whether there are scales and each of them is 0 or at least kPlainMagnitude. Evaluated once per group.
HWY_INLINE bool ScalesArePlain(const float* scales) {
  if (scales == nullptr) return false;
  const hn::ScalableTag<float> d;
  auto others = hn::Zero(d);
  for (int64_t i = 0; i < kPanelColumns; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto magnitude = hn::Abs(hn::LoadU(d, scales + i));
    others = hn::Or(others, hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(d, kPlainMagnitude)), magnitude));
  }
  return hn::AllTrue(d, hn::Eq(others, hn::Zero(d)));
}

// F(sum + F(F(part) * scale)) of digits.h. `is_plain`: no intermediate value can be subnormal.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> AddScaled(bool is_plain, hn::Vec<hn::ScalableTag<float>> sum,
                                                     hn::Vec<hn::ScalableTag<float>> part, const float* scale) {
  const auto scales = hn::LoadU(hn::ScalableTag<float>(), scale);
  if (is_plain) return hn::Add(sum, hn::Mul(part, scales));
  return NormalOrZero(hn::Add(sum, NormalOrZero(hn::Mul(NormalOrZero(part), scales))));
}

// Adds R(t * u), as defined in digits.h, for the columns that start at `column` of `half`. `is_plain` holds for the
// line and the scales; no other case then needs checking.
HWY_INLINE void FinishTotal(const DigitGroupArgs& args, const DigitLine& line, bool is_plain,
                            hn::Vec<hn::ScalableTag<float>> t, int64_t half, int64_t column) {
  const hn::ScalableTag<float> d;
  auto term = hn::Mul(t, hn::Set(d, line.unit));
  const int64_t at = half * args.half_stride + line.row * kHalfColumns + column;
  float* sums = args.sums + at;
  const int64_t scale = half * kHalfColumns + column;
  if (is_plain) {
    hn::StoreU(AddScaled(true, hn::LoadU(d, sums), term, args.scales + scale), d, sums);
    return;
  }
  if (args.scales == nullptr) {
    hn::StoreU(hn::Add(hn::LoadU(d, sums), term), d, sums);
    return;
  }
  float* part = args.parts + at;
  if (!line.is_first) term = hn::Add(hn::LoadU(d, part), term);
  if (!line.is_last) {
    hn::StoreU(term, d, part);
    return;
  }
  hn::StoreU(AddScaled(false, hn::LoadU(d, sums), term, args.scales + scale), d, sums);
}

// t = R(65536 s2 + R(s01)), s01 = s0 + 256 s1.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> TotalOf(hn::Vec<hn::ScalableTag<int32_t>> s01,
                                                   hn::Vec<hn::ScalableTag<int32_t>> s2) {
  const hn::ScalableTag<float> d;
  const auto low = hn::ConvertTo(d, s01);  // below 2^31
  // The product is exact, so a fused multiply-add gives the same bits.
  return hn::MulAdd(hn::ConvertTo(d, s2), hn::Set(d, 65536.0f), low);
}
HWY_INLINE hn::Vec<hn::ScalableTag<float>> TotalOf(hn::Vec<hn::ScalableTag<int32_t>> s0,
                                                   hn::Vec<hn::ScalableTag<int32_t>> s1,
                                                   hn::Vec<hn::ScalableTag<int32_t>> s2) {
  return TotalOf(hn::Add(s0, hn::ShiftLeft<8>(s1)), s2);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_DIGITS_FINISH_INL_H_
