// Functions of f32 vectors, built only from operations that IEEE 754 rounds identically on every machine: add,
// subtract, multiply, divide, square root, and fused multiply-add. So all targets give the same bits. The rounding mode
// must be to nearest even. Error bounds are the maxima over all inputs. The coefficients minimise the largest error and
// were rounded one at a time. Included once per Highway target, after hwy/highway.h.

#if defined(AQT_KERNELS_SIMD_MATH_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_MATH_FLOAT_INL_H_
#undef AQT_KERNELS_SIMD_MATH_FLOAT_INL_H_
#else
#define AQT_KERNELS_SIMD_MATH_FLOAT_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- parts

// a * b + c, rounded once.
template <class V>
HWY_INLINE V Fma(V a, V b, V c) {
#if HWY_TARGET == HWY_SCALAR
  return V(std::fma(a.raw, b.raw, c.raw));
#else
  static_assert(HWY_NATIVE_FMA);
  return hn::MulAdd(a, b, c);
#endif
}
// c - a * b, rounded once.
template <class V>
HWY_INLINE V NegFma(V a, V b, V c) {
#if HWY_TARGET == HWY_SCALAR
  return V(std::fma(-a.raw, b.raw, c.raw));
#else
  return hn::NegMulAdd(a, b, c);
#endif
}

// x clamped to at least (at most) the bound; NaN is unchanged.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtLeast(D d, float bound, V x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, bound)), hn::Set(d, bound), x);
#else
  return hn::Max(hn::Set(d, bound), x);  // the instruction returns its second operand if one is NaN
#endif
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtMost(D d, float bound, V x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, bound)), hn::Set(d, bound), x);
#else
  return hn::Min(hn::Set(d, bound), x);
#endif
}

// A rounded sum and its rounding error.
template <class V>
struct TwoFloats {
  V high, low;
};
// a + b exactly, where |a| >= |b| or a is 0.
template <class V>
HWY_INLINE TwoFloats<V> SumInParts(V a, V b) {
  const V sum = hn::Add(a, b);
  return {sum, hn::Add(hn::Sub(a, sum), b)};
}

// c[0] + c[1] x + ... + c[n - 1] x^(n - 1), by Horner's rule.
template <class D, int n, class V = hn::Vec<D>>
HWY_INLINE V PolynomialOf(D d, V x, const float (&c)[n]) {
  V sum = hn::Set(d, c[n - 1]);
  for (int i = n - 2; i >= 0; --i) sum = Fma(sum, x, hn::Set(d, c[i]));
  return sum;
}

// Adding this to a number below 2^22 rounds the number to an integer, which is then in the lowest bits.
inline constexpr float kToInteger = 0x1.8p23f;

// x * 2^k if that is a normal number, for k in the lowest bits of `shifted`.
template <class D, class V>
HWY_INLINE V WithExponentAdded(D d, V x, V shifted) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::Add(hn::BitCast(du, x), hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
}

// ---- exp

// x = k ln 2 + r with |r| <= 0.3466, for |x| <= 104. r is rounded once.
template <class V>
struct FloatExpArgument {
  V shifted, k, r;  // shifted: k + kToInteger
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE FloatExpArgument<V> ReduceForExp(D d, V x) {
  const V shifted = Fma(x, hn::Set(d, 0x1.715476p0f), hn::Set(d, kToInteger));
  const V k = hn::Sub(shifted, hn::Set(d, kToInteger));
  const V part = NegFma(k, hn::Set(d, 0x1.62e43p-1f), x);  // exact
  return {shifted, k, NegFma(k, hn::Set(d, -0x1.05c61p-29f), part)};
}

// e^r = 1 + r + r^2 q, with q off by 2^-28 of e^r.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfRest(D d, V r) {
  constexpr float kTail[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558aap-5f, 0x1.12396ep-7f, 0x1.6a524ep-10f};
  const TwoFloats<V> sum = SumInParts(hn::Set(d, 1), r);
  return hn::Add(sum.high, Fma(hn::Mul(r, r), PolynomialOf(d, r, kTail), sum.low));
}

// y * 2^k, rounded once, for the k of an exp argument, from -151 to 128, and y near 1.
template <class D, class V>
HWY_INLINE V ScaledByPowerOfTwo([[maybe_unused]] D d, V y, const FloatExpArgument<V>& a) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(y.raw, a.k.raw)};
#else
  // Two factors, because f32 can represent neither 2^-151 nor 2^128.
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, a.shifted);
  const auto half = hn::ShiftLeft<23>(hn::ShiftRight<1>(bits)), one = hn::Set(du, 0x3f800000u);
  const auto other_half = hn::Sub(hn::ShiftLeft<23>(bits), half);
  const auto factor = [&](auto exponent) HWY_ATTR { return hn::BitCast(d, hn::Add(exponent, one)); };
  return hn::Mul(hn::Mul(y, factor(half)), factor(other_half));
#endif
}

// e^x, at most 0.8 ulp off, also if the result is subnormal.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOf(D d, V x) {
  // Beyond -104 and 89 the result is 0 and infinity.
  const FloatExpArgument<V> a = ReduceForExp(d, AtMost(d, 89, AtLeast(d, -104, x)));
  return ScaledByPowerOfTwo(d, ExpOfRest(d, a.r), a);
}

// (e^x - 1) / 2 for -104 <= x <= 89.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V HalfExpm1Of(D d, V x) {
  constexpr float kTail[] = {0.5f, 0x1.555554p-3f, 0x1.5554f8p-5f, 0x1.1112dcp-7f, 0x1.6d3a38p-10f, 0x1.9e69e6p-13f};
  const FloatExpArgument<V> a = ReduceForExp(d, x);
  // 2^(k - 1) (r + r^2 q) + (2^(k - 1) - 1/2)
  const V half = hn::Set(d, 0.5f), scale = WithExponentAdded(d, half, a.shifted), scaled = hn::Mul(scale, a.r);
  const TwoFloats<V> sum = SumInParts(hn::Sub(scale, half), scaled);
  return hn::Add(sum.high, Fma(hn::Mul(scaled, a.r), PolynomialOf(d, a.r, kTail), sum.low));
}

// e^x - 1, at most 1.24 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Expm1Of(D d, V x) {
  // Below -18 it rounds to -1.
  const V y = HalfExpm1Of(d, AtMost(d, 89, AtLeast(d, -18, x)));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-25f)), x, hn::Add(y, y));
}

// ---- log

// k ln 2 + ln(1 + f), for 1 + f from sqrt(1/2) to sqrt(2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogOfParts(D d, V k, V f) {
  // ln(1 + f) = f - f^2/2 + f^3 p, with the polynomial off by 2^-30 of the result.
  constexpr float kTail[] = {0x1.555548p-2f,  -0x1.000006p-2f, 0x1.99a476p-3f,  -0x1.555c44p-3f, 0x1.233ba2p-3f,
                             -0x1.fc28cap-4f, 0x1.e6c00ap-4f,  -0x1.de01d8p-4f, 0x1.147334p-4f};
  const V square = hn::Mul(f, f);
  const V tail = Fma(hn::Mul(square, f), PolynomialOf(d, f, kTail), hn::Mul(k, hn::Set(d, 0x1.7f7d1cp-20f)));
  const V low = NegFma(square, hn::Set(d, 0.5f), tail);
  const V high = hn::Mul(k, hn::Set(d, 0x1.62e4p-1f));  // exact: the factor has 15 bits
  const TwoFloats<V> sum = SumInParts(high, f);
  return hn::Add(sum.high, hn::Add(sum.low, low));
}

// The k for which the number with these bits, normal and positive, is 2^k m, with m from sqrt(1/2) to sqrt(2).
template <class DI, class VI>
HWY_INLINE VI NearestExponent(DI di, VI bits) {
  constexpr int32_t kRootOfHalf = 0x3f3504f3;
  return hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, kRootOfHalf)));
}
// x * 2^-k from the bits of x, where both are normal or k = 0.
template <class D, class VI>
HWY_INLINE hn::Vec<D> WithoutExponent(D d, VI bits, VI k) {
  return hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(k)));
}

// An integer converted to a float, for |k| < 2^22.
template <class D, class K>
HWY_INLINE hn::Vec<D> NumberOf(D d, K k) {
  const hn::RebindToSigned<D> di;
  return hn::Sub(hn::BitCast(d, hn::Add(k, hn::Set(di, 0x4b400000))), hn::Set(d, kToInteger));
}

// y, the logarithm of x, if 0 < x < infinity; otherwise the result of the C library.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogOrSpecial(D d, V x, V y) {
  const V infinity = hn::Inf(d), zero = hn::Zero(d);
  const V positive = hn::IfThenElse(hn::Lt(x, infinity), y, x);  // also NaN
  const V not_negative = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), positive);
  return hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), not_negative);
}

// ln x, at most 0.81 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogOf(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto subnormal = hn::Lt(x, hn::Set(d, 0x1p-126f));
  const auto bits = hn::BitCast(di, hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, 0x1p23f)), x));
  const auto k = NearestExponent(di, bits);
  const V f = hn::Sub(WithoutExponent(d, bits, k), hn::Set(d, 1));
  const V exponent = NumberOf(d, k);
  const V y = LogOfParts(d, hn::IfThenElse(subnormal, hn::Sub(exponent, hn::Set(d, 23)), exponent), f);
  return LogOrSpecial(d, x, y);
}

// ln(1 + x), at most 1.39 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log1pOf(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, 1), u = hn::Add(one, x);
  const auto k = NearestExponent(di, hn::BitCast(di, u));
  // 1 + x = 2^k (1 + f): f = 2^-k x + (2^-k - 1) is exact where k is neither 0 nor large.
  const V scaled = WithoutExponent(d, hn::BitCast(di, x), k);
  const auto power = hn::ShiftLeft<23>(hn::Max(hn::Sub(hn::Set(di, 127), k), hn::Zero(di)));
  const V f = hn::Add(scaled, hn::Sub(hn::BitCast(d, power), one));
  const V y = LogOrSpecial(d, u, LogOfParts(d, NumberOf(d, k), f));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0x1p-25f)), x, y);
}

// ---- others

// 1 / sqrt(x), at most 0.5001 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RsqrtOf(D d, V x) {
  const V y = hn::Div(hn::Set(d, 1), hn::Sqrt(x));
  // A Newton step in which 1 - x y^2 is exact except for one rounding. x y is NaN for zeros and infinities.
  const V product = hn::Mul(x, y), product_low = NegFma(x, y, product);
  const V rest = Fma(product_low, y, NegFma(product, y, hn::Set(d, 1)));
  const V better = Fma(hn::Mul(y, hn::Set(d, 0.5f)), rest, y);
  return hn::IfThenElse(hn::Eq(product, product), better, y);
}

// tanh x, at most 2.43 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOf(D d, V x) {
  const V ax = AtMost(d, 10, hn::Abs(x));  // from here on it rounds to 1
  const V t = HalfExpm1Of(d, hn::Add(ax, ax));
  return hn::CopySign(hn::Div(t, hn::Add(t, hn::Set(d, 1))), x);
}

// 1 / (1 + e^-x), at most 2.41 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogisticOf(D d, V x) {
  const V one = hn::Set(d, 1), e = ExpOf(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

// erf x, at most 1.08 ulp off.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ErfOf(D d, V x) {
  constexpr float kBelow[] = {0x1.06eba8p-3f, -0x1.81273ep-2f,  0x1.ce2ce6p-4f, -0x1.b7f71ap-6f,
                              0x1.53f224p-8f, -0x1.a3515ep-11f, 0x1.4771fcp-14f};
  // ln(1 - erf(x)) from 1 to 4.
  constexpr float kAbove[] = {0x1.8b3e9ap-13f, -0x1.212c2cp+0f, -0x1.4434f6p-1f, -0x1.bc189ap-4f,
                              0x1.9d0b56p-6f,  -0x1.139872p-8f, 0x1.ceea56p-12f, -0x1.6c07c8p-16f};
  const V ax = AtMost(d, 4, hn::Abs(x));  // from here on it rounds to 1
  const V below = Fma(ax, PolynomialOf(d, hn::Mul(ax, ax), kBelow), ax);
  const FloatExpArgument<V> a = ReduceForExp(d, PolynomialOf(d, ax, kAbove));
  const V above = hn::Sub(hn::Set(d, 1), WithExponentAdded(d, ExpOfRest(d, a.r), a.shifted));
  return hn::CopySign(hn::IfThenElse(hn::Ge(ax, hn::Set(d, 1)), above, below), x);  // below is NaN for NaN
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_MATH_FLOAT_INL_H_
