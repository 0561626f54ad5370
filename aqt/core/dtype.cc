#include "aqt/core/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>

namespace aqt {
namespace {

struct Info {
  absl::string_view name;
  int8_t bytes;
  int8_t bits;
  bool is_float;
  bool is_integer;
  int64_t lowest, highest;  // for integers
  double max_finite;        // for floats
};

template <class T>
constexpr Info Integer(absl::string_view name, int bits) {
  return {name,
          sizeof(T),
          static_cast<int8_t>(bits),
          false,
          true,
          internal::LowestInteger<T>(),
          internal::HighestInteger<T>(),
          0};
}
constexpr Info Float(absl::string_view name, int bytes, double max_finite) {
  return {name, static_cast<int8_t>(bytes), static_cast<int8_t>(8 * bytes), true, false, 0, 0, max_finite};
}

constexpr std::array<Info, kNumDTypes> kInfo = {{
    {"bool", 1, 1, false, false, 0, 1, 0},
    Integer<Int2>("s2", 2),
    Integer<Int4>("s4", 4),
    Integer<int8_t>("s8", 8),
    Integer<uint8_t>("u8", 8),
    Integer<int16_t>("s16", 16),
    Integer<int32_t>("s32", 32),
    Integer<uint32_t>("u32", 32),
    Integer<int64_t>("s64", 64),
    Float("e4m3fn", 1, 448.0),
    Float("e5m2", 1, 57344.0),
    Float("f16", 2, 65504.0),
    Float("bf16", 2, 0x1.fep127),
    Float("f32", 4, std::numeric_limits<float>::max()),
    Float("f64", 8, std::numeric_limits<double>::max()),
}};

const Info& InfoOf(DType dtype) {
  AQT_CHECK(static_cast<int>(dtype) < kNumDTypes);
  return kInfo[static_cast<int>(dtype)];
}

// A binary interchange format: sign, exponent field, `mantissa` bits. The codes below omit the sign bit.
struct Format {
  int mantissa;
  int min_exponent;     // of the smallest normal number
  uint32_t sign;        // the sign bit
  uint32_t max_finite;  // code of the largest finite value
  uint32_t overflow;    // code of infinity, or of NaN if the format has no infinity
  uint32_t nan;         // code of the canonical quiet NaN
};

// clang-format off
template <class T> constexpr Format kFormat = {};
template <> constexpr Format kFormat<Float16> = {10, -14, 0x8000, 0x7bff, 0x7c00, 0x7e00};
template <> constexpr Format kFormat<BFloat16> = {7, -126, 0x8000, 0x7f7f, 0x7f80, 0x7fc0};
template <> constexpr Format kFormat<Float8E4M3FN> = {3, -6, 0x80, 0x7e, 0x7f, 0x7f};
template <> constexpr Format kFormat<Float8E5M2> = {2, -14, 0x80, 0x7b, 0x7c, 0x7e};
// clang-format on

// The neighbours of x are 2^(max(exponent(x), min_exponent) - mantissa) apart. Dividing by that is exact, so rint() is
// the only rounding. A carry into the next binade is also the natural carry of the code.
uint32_t Encode(double x, const Format& f, Overflow overflow) {
  const uint32_t sign = std::signbit(x) ? f.sign : 0;
  if (std::isnan(x)) return sign | f.nan;
  const double magnitude = std::fabs(x);
  const uint32_t beyond = sign | (overflow == Overflow::kSaturate ? f.max_finite : f.overflow);
  if (std::isinf(x)) return beyond;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  if (exponent > 200) return beyond;  // beyond all formats; keeps the code below within 32 bits
  const double steps = std::rint(std::ldexp(magnitude, f.mantissa - exponent));  // 0 .. 2^(mantissa+1)
  const uint32_t code = (static_cast<uint32_t>(exponent - f.min_exponent) << f.mantissa) + static_cast<uint32_t>(steps);
  return code > f.max_finite ? beyond : sign | code;
}

// The value of a code including its sign; the inverse of Encode.
double Decode(uint32_t code, const Format& f) {
  const double sign = code & f.sign ? -1.0 : 1.0;
  const uint32_t magnitude = code & (f.sign - 1);
  if (magnitude > f.max_finite) {
    if (magnitude == f.overflow && f.overflow != f.nan) return sign * std::numeric_limits<double>::infinity();
    return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
  }
  const uint32_t field = magnitude >> f.mantissa;
  const uint32_t fraction = magnitude & ((1u << f.mantissa) - 1);
  if (field == 0) return sign * std::ldexp(fraction, f.min_exponent - f.mantissa);
  return sign * std::ldexp(fraction + (1u << f.mantissa), static_cast<int>(field) - 1 + f.min_exponent - f.mantissa);
}

template <class T>
std::array<float, 256> DecodeTable() {
  std::array<float, 256> table;
  for (uint32_t code = 0; code < 256; ++code) table[code] = static_cast<float>(Decode(code, kFormat<T>));
  return table;
}

}  // namespace

int64_t SizeOf(DType dtype) { return InfoOf(dtype).bytes; }
int BitWidth(DType dtype) { return InfoOf(dtype).bits; }
bool IsFloat(DType dtype) { return InfoOf(dtype).is_float; }
bool IsInteger(DType dtype) { return InfoOf(dtype).is_integer; }
bool IsByteInteger(DType dtype) { return dtype == DType::kS2 || dtype == DType::kS4 || dtype == DType::kS8; }
int64_t IntegerMin(DType dtype) { return InfoOf(dtype).lowest; }
int64_t IntegerMax(DType dtype) { return InfoOf(dtype).highest; }
double MaxFinite(DType dtype) { return InfoOf(dtype).max_finite; }
absl::string_view ToString(DType dtype) { return InfoOf(dtype).name; }
std::ostream& operator<<(std::ostream& os, DType dtype) { return os << ToString(dtype); }

std::optional<DType> DTypeFromString(absl::string_view text) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kInfo[i].name == text) return static_cast<DType>(i);
  }
  return std::nullopt;
}

float ToFloat(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t field = x.bits >> 10 & 0x1f, fraction = x.bits & 0x3ff;
  if (field == 0) {  // zero and subnormal: fraction * 2^-24, exact in f32
    const float v = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
  }
  const uint32_t exponent = field == 31 ? 255 : field + 112;
  return std::bit_cast<float>(sign | exponent << 23 | fraction << 13);
}

float ToFloat(Float8E4M3FN x) {
  static const std::array<float, 256> table = DecodeTable<Float8E4M3FN>();
  return table[x.bits];
}

float ToFloat(Float8E5M2 x) {
  static const std::array<float, 256> table = DecodeTable<Float8E5M2>();
  return table[x.bits];
}

template <class T>
T RoundTo(double x, Overflow overflow) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isinf(x) && overflow == Overflow::kSaturate) return std::copysign(std::numeric_limits<double>::max(), x);
    return x;
  } else if constexpr (std::is_same_v<T, float>) {
    const float y = static_cast<float>(x);
    if (std::isinf(y) && overflow == Overflow::kSaturate) return std::copysign(std::numeric_limits<float>::max(), y);
    return y;
  } else {
    return T{static_cast<decltype(T::bits)>(Encode(x, kFormat<T>, overflow))};
  }
}

template Float16 RoundTo<Float16>(double, Overflow);
template BFloat16 RoundTo<BFloat16>(double, Overflow);
template Float8E4M3FN RoundTo<Float8E4M3FN>(double, Overflow);
template Float8E5M2 RoundTo<Float8E5M2>(double, Overflow);
template float RoundTo<float>(double, Overflow);
template double RoundTo<double>(double, Overflow);

Float16 RoundToFloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  const uint32_t magnitude = u & 0x7fffffff;
  uint32_t code;
  if (magnitude > 0x7f800000) {
    code = 0x7e00;
  } else if (magnitude >= 0x477ff000) {  // 65520 and above round to infinity
    code = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // normal: 2^-14 and above
    const uint32_t rebiased = magnitude - (112u << 23);
    code = (rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13;
  } else if (magnitude > 0x33000000) {                          // subnormal: above 2^-25
    const int shift = 126 - static_cast<int>(magnitude >> 23);  // 14 .. 24
    const uint32_t fraction = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t half = 1u << (shift - 1), kept = fraction >> shift, lost = fraction & ((1u << shift) - 1);
    code = kept + (lost > half || (lost == half && (kept & 1)));
  } else {
    code = 0;
  }
  return {static_cast<uint16_t>(sign | code)};
}

namespace internal {

double RoundToOdd(int64_t x) {
  const uint64_t magnitude = x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  const int drop = std::max(0, 11 - std::countl_zero(magnitude | 1));
  uint64_t kept = magnitude >> drop;
  if (kept << drop != magnitude) kept |= 1;
  const double y = std::ldexp(static_cast<double>(kept), drop);
  return x < 0 ? -y : y;
}

}  // namespace internal
}  // namespace aqt
