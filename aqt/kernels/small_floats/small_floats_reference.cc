#include "aqt/kernels/small_floats/small_floats_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/absmax_reference.h"
#include "aqt/kernels/quantize/quantize_reference.h"

namespace aqt::kernels::reference {
namespace {

// The number format of T: bits of the mantissa, and the smallest and largest exponent of a normal number.
struct Format {
  int mantissa_bits, min_exponent, max_exponent;
};
Format FormatOf(DType dtype) {
  return dtype == DType::kF16    ? Format{10, -14, 15}
         : dtype == DType::kBF16 ? Format{7, -126, 127}
                                 : Format{23, -126, 127};
}

// The exponent of `absmax` rounded to a power of two; `none` for 0.
int PowerOf(float absmax, DType dtype, SmallFloat type, int none) {
  const Format format = FormatOf(dtype);
  if (absmax == 0) return none;
  const int exponent = std::max(std::ilogb(absmax), format.min_exponent);
  // The mantissa as an integer, and the addend of the original: a carry reaches the exponent.
  const double mantissa = std::ldexp(std::abs(double{absmax}), format.mantissa_bits - exponent);
  const double one = std::ldexp(1.0, format.mantissa_bits);
  const double sum = mantissa + std::ldexp(1.0, format.mantissa_bits - (type == SmallFloat::kE2M3 ? 4 : 2));
  if (mantissa < one) return sum < one ? none : format.min_exponent;  // a subnormal number has no leading one
  return sum < 2 * one ? exponent : exponent + 1;
}

// The magnitudes of a type in the order of their codes; the next value of the same kind ends the list.
float MagnitudeOf(SmallFloat type, int code) {
  const int mantissa_bits = type == SmallFloat::kE2M1 ? 1 : 3, bias = type == SmallFloat::kE4M3 ? 7 : 1;
  const int field = code >> mantissa_bits;
  const float mantissa = static_cast<float>(code & ((1 << mantissa_bits) - 1));
  const float leading = field == 0 ? 0 : std::ldexp(1.0f, mantissa_bits);
  return std::ldexp(leading + mantissa, std::max(field, 1) - bias - mantissa_bits);
}
int LargestCode(SmallFloat type) { return type == SmallFloat::kE2M1 ? 7 : type == SmallFloat::kE2M3 ? 31 : 126; }

uint8_t CodeOf(SmallFloat type, float y) {
  if (y == 0) return type == SmallFloat::kE2M3 && std::signbit(y) ? 32 : 0;
  const float magnitude = std::min(std::abs(y), MagnitudeOf(type, LargestCode(type)));
  int code = 0;
  while (code < LargestCode(type) && MagnitudeOf(type, code + 1) <= magnitude) ++code;
  if (code < LargestCode(type)) {
    const double below = magnitude - double{MagnitudeOf(type, code)};
    const double above = MagnitudeOf(type, code + 1) - double{magnitude};
    if (below > above || (below == above && code % 2 == 1)) ++code;
  }
  return static_cast<uint8_t>(code | (y < 0 ? 1 << (BitsOf(type) - 1) : 0));
}

}  // namespace

void MxScales(const float* absmax, int64_t n, DType dtype, SmallFloat type, uint8_t* exponent, float* factor) {
  for (int64_t i = 0; i < n; ++i) {
    // The scale 2^-127 of a group of zeros is 0 in f16, and therefore becomes 1.
    constexpr int kNone = -10000;
    const int power = std::isfinite(absmax[i]) ? PowerOf(absmax[i], dtype, type, kNone) : 10000;
    if (power > FormatOf(dtype).max_exponent) {
      exponent[i] = kNoExponent;
      factor[i] = 0;
      continue;
    }
    const int code = power - (type == SmallFloat::kE4M3 ? 8 : 2) + 127;
    exponent[i] = static_cast<uint8_t>(power == kNone && dtype == DType::kF16 ? 127 : std::max(code, 0));
    factor[i] = std::ldexp(1.0f, 127 - exponent[i]);
  }
}

void E4M3Scales(const float* absmax, int64_t n, DType dtype, float global, Float8E4M3FN* scale, float* factor) {
  for (int64_t i = 0; i < n; ++i) {
    const float s = global * RoundToDType(absmax[i] / 6, dtype);
    scale[i] = RoundTo<Float8E4M3FN>(std::min(s, 448.0f));
    if (ToFloat(scale[i]) == 0) scale[i] = RoundTo<Float8E4M3FN>(0.125f);
    factor[i] = ToFloat(scale[i]) / global;
  }
}

void QuantizeSmallFloats(const QuantizeSmallFloatsArgs& args) {
  const FloatMatrix& x = args.x;
  const int bits = BitsOf(args.type);
  const int64_t row_bytes = x.cols * bits / 8;
  std::fill(args.q, args.q + x.rows * row_bytes, uint8_t{0});
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      const float factor = args.factor[r * (x.cols / args.group) + c / args.group], value = ElementOf(x, r, c);
      float y = args.divide ? value / factor : RoundToDType(value * factor, x.dtype);
      if (args.type == SmallFloat::kE4M3) y += 0.0f;
      const uint8_t code = CodeOf(args.type, y);
      for (int b = 0; b < bits; ++b) {
        const int64_t bit = c * bits + b;
        if ((code >> b & 1) != 0) args.q[r * row_bytes + bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
      }
    }
  }
}

void DecodeSmallFloats(const DecodeSmallFloatsArgs& args) {
  const int bits = BitsOf(args.type);
  for (int64_t i = 0; i < args.n; ++i) {
    int code = 0;
    for (int b = 0; b < bits; ++b) {
      const int64_t bit = i * bits + b;
      code |= (args.q[bit / 8] >> bit % 8 & 1) << b;
    }
    const int sign = 1 << (bits - 1), magnitude = code % sign;
    float value = MagnitudeOf(args.type, magnitude);
    if (args.type == SmallFloat::kE4M3 && magnitude == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    args.x[i] = (code >= sign ? -value : value) * args.scale[i / args.group];
  }
}

}  // namespace aqt::kernels::reference
