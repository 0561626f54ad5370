#ifndef AQT_CORE_DTYPE_INL_H_
#define AQT_CORE_DTYPE_INL_H_

// Definition of ConvertElement; included only by dtype.h.

#include <cmath>
#include <limits>
#include <type_traits>

#include "aqt/core/dtype.h"

namespace aqt {
namespace internal {

template <class T>
inline constexpr bool kIsSmallFloat = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16> ||
                                      std::is_same_v<T, Float8E4M3FN> || std::is_same_v<T, Float8E5M2>;
template <class T>
inline constexpr bool kIsFloat = kIsSmallFloat<T> || std::is_floating_point_v<T>;
template <class T>
inline constexpr bool kIsNibble = std::is_same_v<T, Int2> || std::is_same_v<T, Int4>;

// A double that rounds to the same value as x in any type with at most 51 bits of precision: x itself if a double can
// represent it, otherwise x truncated with its last bit set ("round to odd").
double RoundToOdd(int64_t x);

template <class To>
constexpr int64_t LowestInteger() {
  if constexpr (std::is_same_v<To, Int4>) return -8;
  else if constexpr (std::is_same_v<To, Int2>) return -2;
  else return static_cast<int64_t>(std::numeric_limits<To>::min());
}
template <class To>
constexpr int64_t HighestInteger() {
  if constexpr (std::is_same_v<To, Int4>) return 7;
  else if constexpr (std::is_same_v<To, Int2>) return 1;
  else return static_cast<int64_t>(std::numeric_limits<To>::max());
}

template <class To>
To FromInt64(int64_t x) {
  if constexpr (kIsNibble<To>) return To{static_cast<int8_t>(x)};
  else return static_cast<To>(x);
}

}  // namespace internal

template <class To, class From>
To ConvertElement(From x, Overflow overflow) {
  using internal::kIsFloat;
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (internal::kIsNibble<From>) {
    return ConvertElement<To, int8_t>(x.value, overflow);
  } else if constexpr (internal::kIsSmallFloat<From>) {
    return ConvertElement<To, float>(ToFloat(x), overflow);
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (kIsFloat<To>) {
    if constexpr (std::is_same_v<From, float> && std::is_same_v<To, BFloat16>) {
      if (overflow == Overflow::kIeee) return RoundToBFloat16(x);
    } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Float16>) {
      if (overflow == Overflow::kIeee) return RoundToFloat16(x);
    }
    if constexpr (std::is_same_v<From, int64_t>) {
      if constexpr (std::is_same_v<To, double>) return static_cast<double>(x);
      else return RoundTo<To>(internal::RoundToOdd(x), overflow);
    } else {
      return RoundTo<To>(static_cast<double>(x), overflow);
    }
  } else {  // to an integer
    constexpr int64_t kLow = internal::LowestInteger<To>(), kHigh = internal::HighestInteger<To>();
    if constexpr (std::is_floating_point_v<From>) {
      if (std::isnan(x)) return internal::FromInt64<To>(0);
      // 2^63 is exact in both float types; kHigh of s64, which is 2^63 - 1, is not.
      if (static_cast<double>(x) >=
          (kHigh == std::numeric_limits<int64_t>::max() ? 0x1p63 : static_cast<double>(kHigh)))
        return internal::FromInt64<To>(kHigh);
      if (static_cast<double>(x) <= static_cast<double>(kLow)) return internal::FromInt64<To>(kLow);
      return internal::FromInt64<To>(static_cast<int64_t>(x));
    } else {
      const int64_t v = static_cast<int64_t>(x);
      return internal::FromInt64<To>(v < kLow ? kLow : v > kHigh ? kHigh : v);
    }
  }
}

}  // namespace aqt

#endif  // AQT_CORE_DTYPE_INL_H_
