#include "aqt/quant/numerics/fp_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/quant/numerics/arith.h"

namespace aqt::internal {
namespace {

uint32_t BitsOf(float v) { return __builtin_bit_cast(uint32_t, v); }
float FromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr uint32_t kSign = 0x80000000u, kMantissa = 0x007FFFFFu;

// Works on the bit pattern of f32. A bf16 value is its upper half, and random bits are added there, too.
float RoundRadix2(const FpFormat& format, bool stochastic, uint32_t random16, float x) {
  const int drop = 23 - format.nmant;
  const uint32_t tail = (1u << drop) - 1;
  const uint32_t add = stochastic ? (random16 << 16) & tail : 1u << (drop - 1);
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = (bits + add) & ~tail;  // may carry into the exponent and even the sign
  const uint32_t lowest = 127u - (format.has_subnormals ? 1 : 0);
  const uint32_t low = lowest << 23;
  const uint32_t high = ((lowest + (1u << format.nexp) - 1) << 23) | (kMantissa & ~tail);
  float v = FromBits((rounded & kSign) | std::clamp(rounded & ~kSign, low, high));
  if (format.has_subnormals) {
    if (std::clamp(bits & ~kSign, low, high) >> 23 == lowest) {  // |x| < 1
      const float steps = static_cast<float>(1 << format.nmant);
      // Multiples of 2^-nmant below 1: exact in bf16.
      const float noise = stochastic ? FromBits((random16 << 7) | 0x3F800000u) - 1.5f + 0x1p-17f : 0.0f;
      v = std::nearbyint(FlushSubnormal(x) * steps + noise) / steps;
    }
    if (format.nexp == 0) {
      const float max = static_cast<float>(FpMax(format));
      v = v < -max ? -max : v > max ? max : v;
    }
  } else if (stochastic && std::fabs(x) < 1) {
    v = x > FromBits((random16 << 7) | 0x40000000u) - (3.0f - 0x1p-16f) ? 1.0f : -1.0f;
  }
  return v;
}

// floor(log4(v)) for v > 0, within -4 .. 3 (values beyond are treated the same).
int FloorLog4(float v) {
  int e = -4;
  while (e < 3 && v >= std::ldexp(1.0f, 2 * (e + 1))) ++e;
  return e;
}

float RoundRadix4(bool stochastic, uint32_t random16, float x) {
  float magnitude = std::fabs(x);
  if (stochastic) {
    // Rounds up to the next power with a probability proportional to the distance from this one.
    const float power = magnitude == 0 ? 0.0f : std::ldexp(1.0f, std::ilogb(magnitude) & ~1);  // 4^floor(log4)
    const float u = FromBits((random16 << 7) | 0x3F800000u) - 1.0f;
    magnitude += u * (4 * power - power);
  } else {
    magnitude *= 1.6f;
  }
  // NaN for a NaN, and for an infinity whose distance to the next power is drawn (inf - inf).
  if (std::isnan(magnitude)) return magnitude;
  const int e = FloorLog4(magnitude);
  return e < -3 ? 0.0f : std::copysign(std::ldexp(1.0f, 2 * e), x);
}

}  // namespace

absl::Status ValidateFpFormat(const FpFormat& format) {
  if (format.radix != 2 && format.radix != 4) {
    return absl::InvalidArgumentError(absl::StrCat("Fp: radix ", format.radix, ", expected 2 or 4"));
  }
  if (format.nexp < 0 || format.nexp > 7 || format.nmant < 0 || format.nmant > 6) {
    return absl::InvalidArgumentError(
        absl::StrCat("Fp: nexp = ", format.nexp, ", nmant = ", format.nmant, "; expected 0 to 7 and 0 to 6"));
  }
  if (format.radix == 2 && format.nexp == 0 && format.nmant == 0) {
    return absl::InvalidArgumentError("Fp: a format without exponent and mantissa bits has no values");
  }
  if (format.minexp != 0 || format.has_two_nan || format.has_naninf) {
    return absl::UnimplementedError(
        "Fp: AQT describes formats with minexp, has_two_nan or has_naninf, but rounds to none; for e4m3fn and e5m2 use "
        "Fp8");
  }
  return absl::OkStatus();
}

double FpMax(const FpFormat& format) {
  if (format.radix == 4) return 64;
  const double fraction = 1 - std::ldexp(1.0, -format.nmant);  // (2^nmant - 1) / 2^nmant
  if (format.nexp == 0 && format.has_subnormals) return fraction;
  return std::ldexp(1 + fraction, (1 << format.nexp) - 1 - (format.has_subnormals ? 1 : 0));
}

std::optional<float> LargestWithoutNan(const Fp& numerics, DType dtype) {
  const FpFormat& format = numerics.format;
  if (format.radix == 2 && !(format.nexp == 0 && format.has_subnormals)) return std::nullopt;
  // The distance from infinity to the next power of 4 is NaN. From 0x1.ffp127 on, f32 rounds to an infinite bf16.
  if (format.radix == 4 && numerics.stochastic_rounding) {
    return dtype == DType::kF16 ? 65504 : dtype == DType::kBF16 ? 0x1.fep127f : 0x1.fefffep127f;
  }
  return std::numeric_limits<float>::infinity();
}

void RoundFpRow(const FpFormat& format, const Draws& draws, float* y, int64_t n) {
  const bool stochastic = draws.numbers != nullptr;
  std::array<uint32_t, kPiece> random = {};
  if (stochastic) kernels::FillRandom(*draws.numbers, draws.first, draws.stride, n, random.data(), draws.target);
  for (int64_t i = 0; i < n; ++i) {
    y[i] =
        format.radix == 4 ? RoundRadix4(stochastic, random[i], y[i]) : RoundRadix2(format, stochastic, random[i], y[i]);
  }
}

}  // namespace aqt::internal
