// What follows the exact sums of a group. Included once per Highway target.

#if defined(AQT_KERNELS_DIGITS_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_DIGITS_FINISH_INL_H_
#undef AQT_KERNELS_DIGITS_FINISH_INL_H_
#else
#define AQT_KERNELS_DIGITS_FINISH_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// sums += R(R(t * unit) * scales), t = R(65536 s2 + R(s0 + 256 s1)). Scales are null if absent.
HWY_INLINE void AddGroup(hn::Vec<hn::ScalableTag<int32_t>> s0, hn::Vec<hn::ScalableTag<int32_t>> s1,
                         hn::Vec<hn::ScalableTag<int32_t>> s2, float unit, const float* scales, float* sums) {
  const hn::ScalableTag<float> d;
  const auto low = hn::ConvertTo(d, hn::Add(s0, hn::ShiftLeft<8>(s1)));  // below 2^31
  // The product is exact, so that a fused addition gives the same bits.
  const auto t = hn::MulAdd(hn::ConvertTo(d, s2), hn::Set(d, 65536.0f), low);
  auto term = hn::Mul(t, hn::Set(d, unit));
  if (scales != nullptr) term = hn::Mul(term, hn::LoadU(d, scales));
  hn::StoreU(hn::Add(hn::LoadU(d, sums), term), d, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_DIGITS_FINISH_INL_H_
