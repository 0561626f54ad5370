// The vector versions of Maximum and Minimum in arithmetic-inl.h: NaN if an operand is NaN; +0 is above -0. Included
// once per Highway target, after hwy/highway.h.

#if defined(AQT_KERNELS_SIMD_MAXIMUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_MAXIMUM_INL_H_
#undef AQT_KERNELS_SIMD_MAXIMUM_INL_H_
#else
#define AQT_KERNELS_SIMD_MAXIMUM_INL_H_
#endif

#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

template <class V>
HWY_INLINE V MaximumOf(V a, V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (std::is_integral_v<hn::TFromV<V>>) {
    return hn::Max(a, b);
  } else {
    const V larger = hn::IfThenElse(hn::Gt(a, b), a, b);                 // b if b is NaN
    const V same = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);  // +0 unless both are -0
    return hn::IfThenElse(hn::IsNaN(a), a, same);                        // Ne is ordered on some targets
  }
}

template <class V>
HWY_INLINE V MinimumOf(V a, V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (std::is_integral_v<hn::TFromV<V>>) {
    return hn::Min(a, b);
  } else {
    const V smaller = hn::IfThenElse(hn::Lt(a, b), a, b);
    const V same = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), smaller);  // -0 unless both are +0
    return hn::IfThenElse(hn::IsNaN(a), a, same);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_MAXIMUM_INL_H_
