// Exp of math-float-inl.h for vectors, with its bits. Of a loop over that the compiler makes 1.4 times as many
// instructions. Included once per Highway target, after hwy/highway.h.

#if defined(AQT_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_EXP_INL_H_
#undef AQT_KERNELS_EXP_INL_H_
#else
#define AQT_KERNELS_EXP_INL_H_
#endif

#include <cstdint>

#include "aqt/kernels/math-float-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// y * 2^k, rounded once, for k = shifted - 1.5 * 2^23 from -151 to 128 and y near 1.
template <class D, class V>
HWY_INLINE V ScaledByPowerOfTwo(D d, V y, [[maybe_unused]] V k, V shifted) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) return V{_mm512_scalef_ps(y.raw, k.raw)};
#endif
  // Two factors: 2^-151 is none of f32, nor is 2^128.
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, shifted);
  const auto half = hn::ShiftLeft<23>(hn::ShiftRight<1>(bits)), one = hn::Set(du, 0x3f800000u);
  const auto other_half = hn::Sub(hn::ShiftLeft<23>(bits), half);
  const auto factor = [&](auto exponent) HWY_ATTR { return hn::BitCast(d, hn::Add(exponent, one)); };
  return hn::Mul(hn::Mul(y, factor(half)), factor(other_half));
}

// Exp(x[i]).
template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V ExpOf(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto number = [d](float value) HWY_ATTR { return hn::Set(d, value); };
  // As ClampForFloatExp. The instructions return their second operand if one is NaN.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const V clamped = hn::Min(number(89), hn::Max(number(-104), x));
#else
  const V above = hn::IfThenElse(hn::Lt(x, number(-104)), number(-104), x);
  const V clamped = hn::IfThenElse(hn::Gt(above, number(89)), number(89), above);
#endif
  const V shifted = hn::Add(hn::Mul(clamped, number(0x1.715476p0f)), number(0x1.8p23f));
  const V k = hn::Sub(shifted, number(0x1.8p23f));
  const V part = hn::Sub(clamped, hn::Mul(k, number(0x1.62e4p-1f))), low = hn::Mul(k, number(0x1.7f7d1cp-20f));
  const V r = hn::Sub(part, low), rest = hn::Sub(hn::Sub(part, r), low);
  V q = number(kExpTail[5]);
  for (int i = 4; i >= 0; --i) q = hn::Add(hn::Mul(q, r), number(kExpTail[i]));
  const V one = number(1), sum = hn::Add(one, r), sum_low = hn::Add(hn::Sub(one, sum), r);
  const V y = hn::Add(sum, hn::Add(sum_low, hn::Add(hn::Mul(hn::Mul(r, r), q), rest)));
  return ScaledByPowerOfTwo(d, y, k, shifted);
}

// out[i] = Exp(x[i]). `out` may be x.
HWY_INLINE void ExpOfEach(const float* x, int64_t n, float* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) hn::StoreU(ExpOf(d, hn::LoadU(d, x + i)), d, out + i);
  for (int64_t i = whole; i < n; ++i) out[i] = Exp(x[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_EXP_INL_H_
