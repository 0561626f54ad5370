// Functions of one double, built only from operations that IEEE 754 rounds identically on every machine (the C library
// differs between versions). They are branchless, so that loops over them vectorize. Included once per Highway target,
// after hwy/highway.h; all targets give the same bits. The rounding mode must be to nearest even, and a * b + c must
// round twice. Tests measure the bounds.

#if defined(AQT_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_MATH_INL_H_
#undef AQT_KERNELS_SIMD_MATH_INL_H_
#else
#define AQT_KERNELS_SIMD_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- parts

HWY_INLINE uint64_t BitsOf(double x) { return __builtin_bit_cast(uint64_t, x); }
HWY_INLINE double FromBits(uint64_t bits) { return __builtin_bit_cast(double, bits); }

// The nearest integer, for |x| < 2^51.
HWY_INLINE double Nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

// c0 + c1 x + c2 x^2 + ..., by Horner's rule.
template <class T>
HWY_INLINE T Polynomial(T, T c) {
  return c;
}
template <class T, class... C>
HWY_INLINE T Polynomial(T x, T c, C... rest) {
  return x * Polynomial(x, rest...) + c;
}

// A sum of two doubles, where the second is below half a unit in the last place of the first.
struct TwoDoubles {
  double high, low;
};

// a + b exactly.
HWY_INLINE TwoDoubles ExactSum(double a, double b) {
  const double sum = a + b, b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

// The upper 26 bits of x, |x| < 2^996.
HWY_INLINE double UpperHalf(double x) {
  const double c = x * 0x1.0000002p27;
  return c - (c - x);
}

// a * b exactly, if nothing overflows or underflows.
HWY_INLINE TwoDoubles ExactProduct(double a, double b) {
  const double product = a * b, a1 = UpperHalf(a), b1 = UpperHalf(b), a2 = a - a1, b2 = b - b1;
  return {product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2};
}

// p * 2^k for an integer k in -1080 .. 1030 and p near 1, in two steps. The first is exact; the second may overflow or
// round to a subnormal.
HWY_INLINE double TimesPowerOfTwo(double p, double k) {
  const auto power = [](double e) { return FromBits(BitsOf(e + (0x1p52 + 1023)) << 52); };
  const double half = Nearest(k * 0.5);
  return p * power(half) * power(k - half);
}

// ---- exp

// ln 2 in two parts. The high part has 32 significant bits, so its product with an exponent (11 bits) is exact.
inline constexpr double kLn2High = 0x1.62e42feep-1;
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// x = k ln 2 + r, |r| <= 0.3466; for |x| < 800.
struct ExpArgument {
  double k, r;
};
HWY_INLINE ExpArgument ReduceForExp(double x) {
  const double k = Nearest(x * 0x1.71547652b82fep0);
  return {k, (x - k * kLn2High) - k * kLn2Low};
}

// e^r - 1 = r + r^2 q(r), with q the Taylor series 1/2! + r/3! + ... + r^11/13!; the remainder is below 2^-57.
HWY_INLINE double ExpTail(double r) {
  const double q = Polynomial(r, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0, 1.0 / 40320.0,
                              1.0 / 362880.0, 1.0 / 3628800.0, 1.0 / 39916800.0, 1.0 / 479001600.0, 1.0 / 6227020800.0);
  return r + r * r * q;
}

// x clamped to -746 .. 710, beyond which e^x is 0 or infinity. Arbitrary for NaN.
HWY_INLINE double ClampForExp(double x) {
  const double above = x > -746.0 ? x : -746.0;
  return above < 710.0 ? above : 710.0;
}

// The same bits as kernels::Exp (scalar_math.h).
HWY_INLINE double Exp(double x) {
  const ExpArgument a = ReduceForExp(ClampForExp(x));
  double y = TimesPowerOfTwo(1.0 + ExpTail(a.r), a.k);
  y = x > 709.782712893384 ? kInfinity : y;
  y = x < -745.133219101942 ? 0.0 : y;
  return x == x ? y : kNaN;
}

// e^x - 1.
HWY_INLINE double Expm1(double x) {
  const ExpArgument a = ReduceForExp(ClampForExp(x));
  // 2^k (e^r - 1) + (2^k - 1), at half scale because 2^1024 is too large.
  const double scale = TimesPowerOfTwo(1.0, a.k - 1.0);
  double y = 2.0 * (scale * ExpTail(a.r) + (scale - 0.5));
  y = x > 709.782712893384 ? kInfinity : y;
  y = std::fabs(x) < 0x1p-54 ? x : y;  // also -0
  return x == x ? y : kNaN;
}

// ---- log

// x = m 2^k with sqrt(1/2) <= m <= sqrt(2), for 0 < x < infinity.
struct LogArgument {
  double k, m;
};
HWY_INLINE LogArgument ReduceForLog(double x) {
  const bool subnormal = x < 0x1p-1022;
  const uint64_t bits = BitsOf(subnormal ? x * 0x1p54 : x);
  const double m = FromBits((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);  // 1 <= m < 2
  const double k = FromBits((bits >> 52) | 0x4330000000000000ULL) - (0x1p52 + 1023) - (subnormal ? 54.0 : 0.0);
  const bool upper = m > 0x1.6a09e667f3bcdp0;
  return {upper ? k + 1.0 : k, upper ? m * 0.5 : m};
}

// The same bits as kernels::Log (scalar_math.h).
HWY_INLINE double Log(double x) {
  // f is exact. With s = f / (2 + f): ln(1 + f) = 2 atanh(s) = 2s + s * tail, tail = 2 s^2/3 + 2 s^4/5 + ...; |s| <=
  // 0.1716, and the terms after s^22 add less than 2^-60. Since 2s = f - f^2/2 + s f^2/2, the large term f enters
  // exactly.
  const LogArgument a = ReduceForLog(x);
  const double f = a.m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double tail = z * Polynomial(z, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0,
                                     2.0 / 17.0, 2.0 / 19.0, 2.0 / 21.0, 2.0 / 23.0);
  const double half_square = 0.5 * f * f;
  double y = a.k * kLn2High - ((half_square - (s * (half_square + tail) + a.k * kLn2Low)) - f);
  y = x == kInfinity ? kInfinity : y;
  y = x == 0 ? -kInfinity : y;
  return x >= 0 ? y : kNaN;
}

// ln(1 + x).
HWY_INLINE double Log1p(double x) {
  const TwoDoubles u = ExactSum(1.0, x);
  double y = Log(u.high) + u.low / u.high;
  y = x == kInfinity ? kInfinity : y;
  y = x == -1.0 ? -kInfinity : y;
  return x == 0 ? x : y;
}

// ---- power

// ln(m 2^k) to about 65 bits, for the results of ReduceForLog.
HWY_INLINE TwoDoubles PreciseLog(const LogArgument& a) {
  // As in Log, with s and s^3 in two parts.
  const double f = a.m - 1.0;
  const TwoDoubles d = ExactSum(a.m, 1.0);
  const double s = f / d.high;
  const TwoDoubles product = ExactProduct(s, d.high);
  const double s_low = (((f - product.high) - product.low) - s * d.low) / d.high;
  const TwoDoubles z = ExactProduct(s, s);
  const double z_low = z.low + 2.0 * s * s_low;
  const double tail = z.high * z.high *
                      Polynomial(z.high, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0,
                                 2.0 / 17.0, 2.0 / 19.0, 2.0 / 21.0, 2.0 / 23.0, 2.0 / 25.0);
  constexpr double kThirdHigh = 2.0 / 3.0, kThirdLow = 0x1.5555555555555p-55;  // their sum is 2/3 to 107 bits
  const TwoDoubles third = ExactProduct(z.high, kThirdHigh);
  const double third_low = third.low + (z.high * kThirdLow + z_low * kThirdHigh);
  const TwoDoubles cube = ExactProduct(s, third.high);
  const double cube_low = cube.low + (s * third_low + s_low * third.high) + s * tail;
  // k ln 2 + 2 s + cube, largest term first.
  const TwoDoubles first = ExactSum(a.k * kLn2High, 2.0 * s);
  const TwoDoubles second = ExactSum(first.high, cube.high);
  const double low = first.low + second.low + (cube_low + (2.0 * s_low + a.k * kLn2Low));
  const double high = second.high + low;
  return {high, low - (high - second.high)};
}

// x^y as defined by IEEE 754 and the C library.
HWY_INLINE double Pow(double x, double y) {
  const double ax = std::fabs(x);
  // With a larger |y|, every power other than 1 overflows or is 0.
  const double ay = std::fabs(y) < 0x1p64 ? std::fabs(y) : 0x1p64;
  const double yc = std::copysign(ay, y);
  const TwoDoubles log = PreciseLog(ReduceForLog(ax));
  const TwoDoubles product = ExactProduct(yc, log.high);
  const double exponent = ClampForExp(product.high);
  const ExpArgument a = ReduceForExp(exponent);
  const double low = exponent == product.high ? product.low + yc * log.low : 0.0;
  const double tail = ExpTail(a.r);
  double p = TimesPowerOfTwo(1.0 + (tail + low * (1.0 + tail)), a.k);
  p = product.high > 709.9 ? kInfinity : p;
  p = product.high < -745.3 ? 0.0 : p;
  const double beyond_one = y > 0.0 ? kInfinity : 0.0, below_one = y > 0.0 ? 0.0 : kInfinity;
  p = ax == 0.0 ? below_one : p;
  p = ax == kInfinity ? beyond_one : p;
  // For negative finite x the result is defined only for an integer y, and is negative if y is odd. From 2^52 (2^53) on
  // every double is an integer (an even one).
  const double half = ay * 0.5;
  const double whole = ay < 0x1p52 ? (ay + 0x1p52) - 0x1p52 : ay;
  const double whole_half = half < 0x1p52 ? (half + 0x1p52) - 0x1p52 : half;
  const double of_integer = whole_half == half ? p : -p;
  double of_other = ax == kInfinity ? p : kNaN;
  of_other = ax == 0.0 ? p : of_other;
  const double negative = whole == ay ? of_integer : of_other;
  p = std::copysign(1.0, x) < 0.0 ? negative : p;
  p = x == x ? p : kNaN;
  p = y == y ? p : kNaN;
  p = y == 0.0 ? 1.0 : p;
  return x == 1.0 ? 1.0 : p;
}

// ---- functions of exp

HWY_INLINE double Tanh(double x) {
  const double ax = std::fabs(x) < 22.0 ? std::fabs(x) : 22.0;  // from here on it rounds to 1
  const double t = Expm1(2.0 * ax);
  const double y = std::copysign(t / (t + 2.0), x);
  return x == x ? y : kNaN;
}

// 1 / (1 + e^-x).
HWY_INLINE double Logistic(double x) {
  const double e = Exp(-std::fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

HWY_INLINE double Erf(double x) {
  const double ax = std::fabs(x) < 6.0 ? std::fabs(x) : 6.0;  // from here on it rounds to 1
  const double z = ax * ax;
  // Below 1: the Taylor series, the sum of 2/sqrt(pi) (-1)^n z^n / (n! (2n + 1)), times x. The first coefficient has a
  // low part.
  const double series =
      Polynomial(z, 0x1.1ae3a914fed8p-56, -0x1.812746b0379e7p-2, 0x1.ce2f21a042be2p-4, -0x1.b82ce31288b51p-6,
                 0x1.565bcd0e6a53fp-8, -0x1.c02db40040b86p-11, 0x1.f9a326f9b89b7p-14, -0x1.f4d25c3e0c2ebp-17,
                 0x1.b9e6c9dc651a3p-20, -0x1.5f742ec43e71ap-23, 0x1.fcc5720624c1cp-27, -0x1.51d7181c5d36dp-30,
                 0x1.9e6ad5e55a73p-34, -0x1.d8453cb0c46eap-38, 0x1.f683ae4a97007p-42, -0x1.f56f071a885cfp-46,
                 0x1.d70b3537f4765p-50, -0x1.a2007af3447f6p-54, 0x1.5f7919bc67b8cp-58);
  const double below = ax * 0x1.20dd750429b6dp+0 + ax * series;
  // From 1 to 6: 1 - e^(-z) q(t), with q interpolated at 15 Chebyshev nodes; off by at most 2^-57.
  const double t = (ax - 3.0) / (ax + 3.0);
  const double q =
      Polynomial(t, 0x1.6e9827d229d2dp-3, -0x1.4e102b9cf8512p-2, 0x1.f6ff20410599bp-3, -0x1.336ffbef08cbbp-3,
                 0x1.258b13b0139fep-4, -0x1.8fa58eb5bd68fp-6, 0x1.17c838fea5806p-8, 0x1.73101ea8fe252p-11,
                 -0x1.39085a31b18abp-11, 0x1.7b9fc8eb630e9p-15, 0x1.0cb1db32e0c9fp-14, -0x1.af2329d757293p-17,
                 -0x1.0cb4611cc29f6p-17, 0x1.0f9a79cee3e31p-19, 0x1.57a5fe2b9b75ep-20);
  const double above = 1.0 - Exp(-z) * q;
  const double y = std::copysign(ax < 1.0 ? below : above, x);
  return x == x ? y : kNaN;
}

HWY_INLINE double Rsqrt(double x) { return 1.0 / std::sqrt(x); }

// Halley's step: improves t as the cube root of r. The relative error e becomes 2/3 e^3. `quotient` is r / t^2.
HWY_INLINE double CbrtStep(double t, double quotient) { return t + t * ((quotient - t) / ((t + t) + quotient)); }

HWY_INLINE double Cbrt(double x) {
  const double ax = std::fabs(x);
  // |x| = r 8^q, r = m 2^j with j of -1, 0, 1.
  const LogArgument a = ReduceForLog(ax);
  const double q = Nearest(a.k * (1.0 / 3.0));
  const double j = a.k - 3.0 * q;
  const double power = j > 0 ? 2.0 : j < 0 ? 0.5 : 1.0;
  const double root = j > 0 ? 0x1.428a2f98d728bp+0 : j < 0 ? 0x1.965fea53d6e3dp-1 : 1.0;
  const double r = a.m * power;
  // Interpolated at 5 Chebyshev nodes: off by at most 2^-16, and by 2^-48 after one step.
  const double first = root * Polynomial(a.m, 0x1.d093b879ad8bbp-2, 0x1.cb216702c9e3cp-1, -0x1.0c2b25ead3b18p-1,
                                         0x1.acbd9f5c037d1p-3, -0x1.26e9dff4bb58fp-5);
  // 26 bits, so that its square is exact. An error below 2^-25 becomes less than 2^-75 after the step, apart from the
  // rounding of a small correction and of the result.
  const double t = UpperHalf(CbrtStep(first, r / (first * first)));
  const double scale = FromBits(BitsOf(q + (0x1p52 + 1023)) << 52);
  const double y = std::copysign(CbrtStep(t, r / (t * t)) * scale, x);
  return ax == 0 || ax == kInfinity || x != x ? x : y;
}

// ---- sine and cosine

// x = q pi/2 + r.high + r.low modulo 2 pi, |r| <= 0.79. Only the last two bits of q matter.
struct Angle {
  uint64_t q;
  TwoDoubles r;
};

// For |x| <= kMaxPlainAngle. pi/2 is split into three parts of 33 bits, whose products with an integer below 2^20 are
// exact, and a fourth part.
inline constexpr double kMaxPlainAngle = 0x1p20;
HWY_INLINE Angle ReduceAngle(double x) {
  const double shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  const double k = shifted - 0x1.8p52;
  const double first = x - k * 0x1.921fb544p+0;  // exact
  const TwoDoubles second = ExactSum(first, -(k * 0x1.0b4611a6p-34));
  const TwoDoubles third = ExactSum(second.high, -(k * 0x1.3198a2ep-69));
  const double low = (second.low + third.low) - k * 0x1.b839a252049c1p-104;
  const double high = third.high + low;
  return {BitsOf(shifted), {high, low - (high - third.high)}};
}

// For any finite x from 2^20 on; slow. x is an integer m times a power of two. Of its product with 2/pi only the bits
// of weight 2 and below matter; they come from m times 192 bits of 2/pi.
inline Angle ReduceLargeAngle(double x) {
  // 2/pi, preceded by a word of zeros.
  static constexpr uint64_t kTwoOverPi[] = {0,
                                            0xa2f9836e4e441529,
                                            0xfc2757d1f534ddc0,
                                            0xdb6295993c439041,
                                            0xfe5163abdebbc561,
                                            0xb7246e3a424dd2e0,
                                            0x06492eea09d1921c,
                                            0xfe1deb1cb129a73e,
                                            0xe88235f52ebb4484,
                                            0xe99c7026b45f7e41,
                                            0x3991d639835339f4,
                                            0x9c845f8bbdf9283b,
                                            0x1ff897ffde05980f,
                                            0xef2f118b5a0a6d1f,
                                            0x6d367ecf27cb09b7,
                                            0x4f463f669e5fea2d,
                                            0x7527bac7ebe5f17b,
                                            0x3d0739f78a5292ea,
                                            0x6bfb5fb11f8d5d08,
                                            0x56033046fc7b6bab,
                                            0xf0cfbc209af4361d};
  const uint64_t bits = BitsOf(x);
  const uint64_t m = (bits & 0xfffffffffffffULL) | 0x10000000000000ULL;
  const int first = static_cast<int>(bits >> 52 & 0x7ff) - 1023 - 52 - 2 + 64;  // the bit of weight 2
  const uint64_t* word = kTwoOverPi + first / 64;
  const int shift = first % 64;
  uint64_t window[3];
  for (int i = 0; i < 3; ++i) window[i] = shift == 0 ? word[i] : word[i] << shift | word[i + 1] >> (64 - shift);
  // The product modulo 2^192: two bits before the binary point, 190 after it.
  unsigned __int128 carry = static_cast<unsigned __int128>(m) * window[2];
  uint64_t low = static_cast<uint64_t>(carry);
  carry = static_cast<unsigned __int128>(m) * window[1] + (carry >> 64);
  uint64_t middle = static_cast<uint64_t>(carry);
  uint64_t high = m * window[0] + static_cast<uint64_t>(carry >> 64);
  uint64_t q = high >> 62;
  high <<= 2;
  high |= middle >> 62;
  middle = middle << 2 | low >> 62;
  low <<= 2;
  const bool negative = high >> 63 != 0;  // the nearer integer is above
  if (negative) {
    ++q;
    low = ~low;  // the last bit does not matter
    middle = ~middle;
    high = ~high;
  }
  double weight = 0x1p-64;
  while (high >> 63 == 0) {  // at most about 62 times
    high = high << 1 | middle >> 63;
    middle = middle << 1 | low >> 63;
    low <<= 1;
    weight *= 0.5;
  }
  const double turn_high = static_cast<double>(high >> 11 << 11) * weight;
  const double turn_low = static_cast<double>((high << 53) | (middle >> 11)) * weight * 0x1p-53;
  const double sign = negative != (bits >> 63 != 0) ? -1.0 : 1.0;
  const TwoDoubles product = ExactProduct(turn_high, 0x1.921fb54442d18p+0);
  const double rest = product.low + (turn_high * 0x1.1a62633145c07p-54 + turn_low * 0x1.921fb54442d18p+0);
  const double sum = product.high + rest;
  return {bits >> 63 != 0 ? 0 - q : q, {sign * sum, sign * (rest - (sum - product.high))}};
}

// sin(x + quadrants pi/2), given the reduced angle of x.
HWY_INLINE double SinOf(const Angle& angle, uint64_t quadrants) {
  const uint64_t q = angle.q + quadrants;
  const double r = angle.r.high, low = angle.r.low, z = r * r;
  const double sin_tail = Polynomial(z, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362880.0, -1.0 / 39916800.0,
                                     1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0);
  const double sin = r + (low * (1.0 - 0.5 * z) + r * (z * sin_tail));
  const double cos_tail = Polynomial(z, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0, -1.0 / 3628800.0, 1.0 / 479001600.0,
                                     -1.0 / 87178291200.0, 1.0 / 20922789888000.0);
  const double half = 0.5 * z, first = 1.0 - half;
  const double cos = first + (((1.0 - first) - half) + (z * z * cos_tail - r * low));
  return FromBits(BitsOf((q & 1) != 0 ? cos : sin) ^ (q & 2) << 62);
}

// For |x| <= kMaxPlainAngle.
HWY_INLINE double PlainSin(double x) {
  const double y = SinOf(ReduceAngle(x), 0);
  return std::fabs(x) < 0x1p-27 ? x : y;  // also -0
}
HWY_INLINE double PlainCos(double x) { return SinOf(ReduceAngle(x), 1); }

inline double Sin(double x) {
  if (std::fabs(x) <= kMaxPlainAngle) return PlainSin(x);
  return std::fabs(x) < kInfinity ? SinOf(ReduceLargeAngle(x), 0) : kNaN;
}
inline double Cos(double x) {
  if (std::fabs(x) <= kMaxPlainAngle) return PlainCos(x);
  return std::fabs(x) < kInfinity ? SinOf(ReduceLargeAngle(x), 1) : kNaN;
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_MATH_INL_H_
