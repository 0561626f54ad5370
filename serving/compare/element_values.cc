#include "serving/compare/element_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "aqt/core/array_ops.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"

namespace aqt::serving {
namespace {

using io::FileDType;

// Floats of few bits that have no type in memory.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  bool has_nan;  // FNUZ: the code of -0 is NaN
};

std::optional<SmallFloat> ToSmallFloat(FileDType dtype) {
  switch (dtype) {
    case FileDType::kF4: return SmallFloat{2, 1, 1, false};
    case FileDType::kF6E2M3: return SmallFloat{2, 3, 1, false};
    case FileDType::kF6E3M2: return SmallFloat{3, 2, 3, false};
    case FileDType::kF8E4M3FNUZ: return SmallFloat{4, 3, 8, true};
    case FileDType::kF8E5M2FNUZ: return SmallFloat{5, 2, 16, true};
    default: return std::nullopt;
  }
}

double ValueOf(const SmallFloat& type, int code) {
  const int sign = code >> (type.exponent_bits + type.mantissa_bits);
  const int exponent = code >> type.mantissa_bits & ((1 << type.exponent_bits) - 1);
  const int mantissa = code & ((1 << type.mantissa_bits) - 1);
  if (type.has_nan && sign == 1 && exponent == 0 && mantissa == 0) return std::numeric_limits<double>::quiet_NaN();
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << type.mantissa_bits);
  const double value = std::ldexp(significand, std::max(exponent, 1) - type.bias - type.mantissa_bits);
  return sign == 1 ? -value : value;
}

// The value of each code of at most 8 bits.
std::array<double, 256> ValuesOfCodes(FileDType dtype) {
  std::array<double, 256> values;
  const std::optional<SmallFloat> type = ToSmallFloat(dtype);
  for (int code = 0; code < 256; ++code) {
    if (type.has_value()) {
      values[code] = ValueOf(*type, code & ((1 << io::BitWidth(dtype)) - 1));
    } else if (dtype == FileDType::kF8E8M0) {
      values[code] = code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1, code - 127);
    } else {
      values[code] = code != 0;  // BOOL; a byte other than 0 and 1 counts as true
    }
  }
  return values;
}

template <class T>
void FromCodes(FileDType dtype, absl::Span<const uint8_t> bytes, absl::Span<T> values) {
  const std::array<double, 256> of_code = ValuesOfCodes(dtype);
  const size_t width = io::BitWidth(dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t bit = i * width, byte = bit / 8;
    const unsigned pair = bytes[byte] | (byte + 1 < bytes.size() ? bytes[byte + 1] << 8 : 0);
    values[i] = of_code[pair >> bit % 8 & ((1u << width) - 1)];
  }
}

// Integers, read as they are.
template <class Stored, class T>
void FromIntegers(absl::Span<const uint8_t> bytes, absl::Span<T> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    Stored x;
    std::memcpy(&x, &bytes[i * sizeof(x)], sizeof(x));
    values[i] = static_cast<T>(x);
  }
}

void FromArray(DType dtype, absl::Span<const uint8_t> bytes, absl::Span<double> values) {
  const int64_t n = static_cast<int64_t>(values.size());
  AQT_CHECK(CastArray(ArrayRef(dtype, {n}, bytes.data()), MutableArrayRef(values.data(), {n})).ok());
}
void FromArray(DType dtype, absl::Span<const uint8_t> bytes, absl::Span<long double> values) {
  std::vector<double> doubles(values.size());
  FromArray(dtype, bytes, absl::MakeSpan(doubles));
  std::copy(doubles.begin(), doubles.end(), values.begin());
}

}  // namespace

int NumbersPerElement(FileDType dtype) { return dtype == FileDType::kC64 ? 2 : 1; }

bool IsFloatDType(FileDType dtype) {
  const std::optional<DType> in_memory = io::ToDType(dtype);
  if (in_memory.has_value()) return IsFloat(*in_memory);
  return dtype != FileDType::kU16 && dtype != FileDType::kU64;
}

template <class T>
void ElementValues(FileDType dtype, absl::Span<const uint8_t> bytes, absl::Span<T> values) {
  switch (dtype) {
    case FileDType::kBool:
    case FileDType::kF4:
    case FileDType::kF6E2M3:
    case FileDType::kF6E3M2:
    case FileDType::kF8E8M0:
    case FileDType::kF8E4M3FNUZ:
    case FileDType::kF8E5M2FNUZ: return FromCodes(dtype, bytes, values);
    case FileDType::kU16: return FromIntegers<uint16_t>(bytes, values);
    case FileDType::kI64: return FromIntegers<int64_t>(bytes, values);
    case FileDType::kU64: return FromIntegers<uint64_t>(bytes, values);
    case FileDType::kC64: return FromArray(DType::kF32, bytes, values);
    default: return FromArray(*io::ToDType(dtype), bytes, values);
  }
}

template void ElementValues(FileDType, absl::Span<const uint8_t>, absl::Span<double>);
template void ElementValues(FileDType, absl::Span<const uint8_t>, absl::Span<long double>);

}  // namespace aqt::serving
