#include "aqt/kernels/simd/scalar_math.h"

#include <cstdint>
#include <limits>

namespace aqt::kernels {
namespace {

// ln 2 in two parts. The high part has 32 significant bits, so its product with an exponent (11 bits) is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// 2^k for -1022 <= k <= 1023.
double PowerOfTwo(int64_t k) { return __builtin_bit_cast(double, static_cast<uint64_t>(k + 1023) << 52); }

}  // namespace

double Exp(double x) {
  if (x != x) return kNaN;
  if (x > 709.782712893384) return kInfinity;
  if (x < -745.133219101942) return 0;
  // x = k ln 2 + r, |r| <= 0.3466. Adding and subtracting 1.5 * 2^52 rounds to an integer.
  const double k = (x * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  // e^r = 1 + (r + r^2 q(r)), with q the Taylor series 1/2! + r/3! + ... + r^11/13!; the remainder is below 2^-57.
  double q = 1.0 / 6227020800.0;
  q = q * r + 1.0 / 479001600.0;
  q = q * r + 1.0 / 39916800.0;
  q = q * r + 1.0 / 3628800.0;
  q = q * r + 1.0 / 362880.0;
  q = q * r + 1.0 / 40320.0;
  q = q * r + 1.0 / 5040.0;
  q = q * r + 1.0 / 720.0;
  q = q * r + 1.0 / 120.0;
  q = q * r + 1.0 / 24.0;
  q = q * r + 1.0 / 6.0;
  q = q * r + 0.5;
  const double p = 1.0 + (r + r * r * q);
  // 2^k in two exact steps, the second of which may overflow or round to a subnormal.
  const int64_t exponent = static_cast<int64_t>(k);
  const int64_t half = exponent / 2;
  return p * PowerOfTwo(half) * PowerOfTwo(exponent - half);
}

double Log(double x) {
  if (!(x > 0)) return x == 0 ? -kInfinity : kNaN;
  if (x == kInfinity) return x;
  int64_t exponent = 0;
  if (x < 0x1p-1022) {  // subnormal
    x *= 0x1p54;
    exponent = -54;
  }
  uint64_t bits = __builtin_bit_cast(uint64_t, x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
  double m = __builtin_bit_cast(double, bits);  // 1 <= m < 2
  if (m > 0x1.6a09e667f3bcdp0) {
    m *= 0.5;
    exponent += 1;
  }
  // sqrt(1/2) <= m <= sqrt(2); f is exact. With s = f / (2 + f): ln(1 + f) = 2 atanh(s) = 2s + s * tail, tail = 2 s^2/3
  // + 2 s^4/5 + ...; |s| <= 0.1716, and the terms after s^22 add less than 2^-60. Since 2s = f - f^2/2 + s f^2/2, the
  // large term f enters exactly.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double tail = 2.0 / 23.0;
  tail = tail * z + 2.0 / 21.0;
  tail = tail * z + 2.0 / 19.0;
  tail = tail * z + 2.0 / 17.0;
  tail = tail * z + 2.0 / 15.0;
  tail = tail * z + 2.0 / 13.0;
  tail = tail * z + 2.0 / 11.0;
  tail = tail * z + 2.0 / 9.0;
  tail = tail * z + 2.0 / 7.0;
  tail = tail * z + 2.0 / 5.0;
  tail = tail * z + 2.0 / 3.0;
  tail = tail * z;
  const double half_square = 0.5 * f * f;
  const double k = static_cast<double>(exponent);
  return k * kLn2High - ((half_square - (s * (half_square + tail) + k * kLn2Low)) - f);
}

}  // namespace aqt::kernels
