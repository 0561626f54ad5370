// The functions of math-inl.h for one float. Exp is computed in f32. The others too are computed in f64, but with the
// shorter polynomials that are enough for a result that is rounded to f32: their error before that rounding is at most
// 2^-37.7 of the result, which is less than 0.0001 units in the last place of f32. The coefficients are interpolated in
// Chebyshev nodes. Included once per Highway target, after math-inl.h; all targets give the same bits.

#if defined(AQT_KERNELS_MATH_FLOAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_MATH_FLOAT_INL_H_
#undef AQT_KERNELS_MATH_FLOAT_INL_H_
#else
#define AQT_KERNELS_MATH_FLOAT_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "aqt/kernels/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// ---- parts

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;

HWY_INLINE uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
HWY_INLINE float FloatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// x, or the nearer of the ends; NaN stays.
template <class C>
HWY_INLINE C ClampKeepingNaN(C x, C low, C high) {
  const C above = x < low ? low : x;
  return above > high ? high : above;
}

// x, where e^x of f32 is neither 0 nor infinite.
template <class C>
HWY_INLINE C ClampForFloatExp(C x) {
  return ClampKeepingNaN(x, C{-104}, C{89});
}

// x = k ln 2 + r for |x| <= 104. The product is off by less than 2^-45.
HWY_INLINE ExpArgument ReduceForFloatExp(double x) {
  const double k = Nearest(x * 0x1.71547652b82fep0);
  return {k, x - k * kLn2};
}

// 2^k for an integer k that is the exponent of a double.
HWY_INLINE double PowerOfTwo(double k) { return FromBits(BitsOf(k + (0x1p52 + 1023)) << 52); }

// e^x for |x| <= 104, within 2^-37.7 of itself. NaN of NaN.
HWY_INLINE double ShortExp(double x) {
  const ExpArgument a = ReduceForFloatExp(x);
  const double q = Polynomial(a.r, 0x1.0p-1, 0x1.55555567532adp-3, 0x1.5555555c87148p-5, 0x1.1110c632a3088p-7,
                              0x1.6c16858b7acb9p-10, 0x1.a15179d80ae96p-13, 0x1.a1132015ba37ep-16);
  return (1.0 + (a.r + a.r * a.r * q)) * PowerOfTwo(a.k);
}

// e^x - 1 for |x| <= 104, within 2^-39 of itself. +0 of -0, NaN of NaN.
HWY_INLINE double ShortExpm1(double x) {
  const ExpArgument a = ReduceForFloatExp(x);
  const double q =
      Polynomial(a.r, 0x1.fffffffffe062p-2, 0x1.5555555554f96p-3, 0x1.55555565c7e0ep-5, 0x1.111111170bc08p-7,
                 0x1.6c166bde96885p-10, 0x1.a019c36bc053cp-13, 0x1.a136bf03ec612p-16, 0x1.72ad458027fbcp-19);
  const double scale = PowerOfTwo(a.k);
  return scale * (a.r + a.r * a.r * q) + (scale - 1.0);
}

// ln x of a normal x, within 2^-43 of itself, and as the C library of zeros, infinities, NaN and negative numbers.
HWY_INLINE double ShortLog(double x) {
  const uint64_t bits = BitsOf(x);
  const double m = FromBits((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);  // 1 <= m < 2
  const double k = FromBits((bits >> 52) | 0x4330000000000000ULL) - (0x1p52 + 1023);
  const bool upper = m > 0x1.6a09e667f3bcdp0;
  // As in Log.
  const double f = (upper ? m * 0.5 : m) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double tail = z * Polynomial(z, 0x1.5555555564eb1p-1, 0x1.999998caea16ep-2, 0x1.249323f31607dp-2,
                                     0x1.c67ad2f11250cp-3, 0x1.8c8c9b24dd11ap-3);
  double y = (upper ? k + 1.0 : k) * kLn2 + s * (2.0 + tail);
  y = x == kInfinity ? kInfinity : y;
  y = x == 0 ? -kInfinity : y;
  return x >= 0 ? y : kNaN;
}

// ---- functions

inline constexpr float kExpTail[] = {0x1.0p-1f,     0x1.555554p-3f,  0x1.5554e8p-5f,
                                     0x1.11131p-7f, 0x1.6d4cecp-10f, 0x1.9df86cp-13f};

// In f32, which takes half the time of ShortExp. At most 0.66 units in the last place off; 0.75 where the result is
// subnormal.
HWY_INLINE float Exp(float x) {
  // x = k ln 2 + r + rest, |r| <= 0.3466: the product of k with the upper 15 bits of ln 2 is exact, and so is `part`.
  const float clamped = ClampForFloatExp(x);
  const float shifted = clamped * 0x1.715476p0f + 0x1.8p23f;  // k in the lowest bits
  const float k = shifted - 0x1.8p23f;
  const float part = clamped - k * 0x1.62e4p-1f, low = k * 0x1.7f7d1cp-20f;
  const float r = part - low, rest = (part - r) - low;
  // e^r = 1 + r + r^2 q, where the polynomial is off by 2^-33. 1 + r is `sum` and `sum_low`, exactly.
  const float q = Polynomial(r, kExpTail[0], kExpTail[1], kExpTail[2], kExpTail[3], kExpTail[4], kExpTail[5]);
  const float sum = 1.0f + r, sum_low = (1.0f - sum) + r;
  const float y = sum + (sum_low + (r * r * q + rest));
  // 2^k in two factors: 2^-151 is none of f32, nor is 2^128.
  const uint32_t half = (BitsOf(shifted) >> 1) << 23, other_half = (BitsOf(shifted) << 23) - half;
  return y * FloatFromBits(half + 0x3f800000u) * FloatFromBits(other_half + 0x3f800000u);
}

HWY_INLINE float Expm1(float x) {
  const float y = static_cast<float>(ShortExpm1(ClampForFloatExp(x)));
  return x == 0 ? x : y;  // -0
}

HWY_INLINE float Log(float x) { return static_cast<float>(ShortLog(x)); }

HWY_INLINE float Log1p(float x) {
  // Where 1 + x would lose bits that matter: x - x^2/2 + x^3/3, the next term is below 2^-44 of it.
  const double v = x;
  const double series = v - v * v * (0.5 - v * (1.0 / 3.0));
  const double y = std::fabs(v) < 0x1p-14 ? series : ShortLog(1.0 + v);
  return x == 0 ? x : static_cast<float>(y);  // -0
}

HWY_INLINE float Tanh(float x) {
  const double ax = ClampKeepingNaN(std::fabs(static_cast<double>(x)), 0.0, 10.0);  // from there on it rounds to 1
  const double t = ShortExpm1(2.0 * ax);
  return std::copysign(static_cast<float>(t / (t + 2.0)), x);
}

HWY_INLINE float Logistic(float x) {
  const double e = ShortExp(ClampForFloatExp(-std::fabs(static_cast<double>(x))));
  return static_cast<float>((x < 0 ? e : 1.0) / (1.0 + e));
}

HWY_INLINE float Erf(float x) {
  const double ax = ClampKeepingNaN(std::fabs(static_cast<double>(x)), 0.0, 4.0);  // from there on it rounds to 1
  const double z = ax * ax;
  const double below = ax * Polynomial(z, 0x1.20dd750428cb9p+0, -0x1.812746ade3c08p-2, 0x1.ce2f20a7415c6p-4,
                                       -0x1.b82cbae7577a7p-6, 0x1.56588b32275a7p-8, -0x1.bfe158a7be278p-11,
                                       0x1.f57e9cee106c1p-14, -0x1.d2b8522d6f7cbp-17, 0x1.1c41ab6eec487p-20);
  // From 1 to 4: 1 - e^(-z) q(t).
  const double t = (ax - 2.0) / (ax + 2.0);
  const double q =
      Polynomial(t, 0x1.058671b42abafp-2, -0x1.b57034f345443p-2, 0x1.eeea800b8e63ap-3, -0x1.437efbe8aba5ep-4,
                 0x1.e92de21885c82p-9, 0x1.ca6a333ddd744p-8, -0x1.b69d349da8e08p-11, -0x1.ef02f6013edacp-11);
  const double above = 1.0 - ShortExp(-z) * q;
  return std::copysign(static_cast<float>(ax < 1.0 ? below : above), x);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_MATH_FLOAT_INL_H_
