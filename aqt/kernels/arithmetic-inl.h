#ifndef AQT_KERNELS_ARITHMETIC_INL_H_
#define AQT_KERNELS_ARITHMETIC_INL_H_

// The type that an arithmetic dtype is computed in, and its operations. For elementwise.cc and reduce.cc.

#include <cstdint>
#include <type_traits>

#include "aqt/core/dtype.h"

namespace aqt::kernels::internal {

// f16 and bf16 are computed in f32.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;

template <class T>
ComputeType<T> Load(T x) {
  if constexpr (std::is_same_v<T, ComputeType<T>>) return x;
  else return ToFloat(x);
}

template <class T>
T Store(ComputeType<T> x) {
  if constexpr (std::is_same_v<T, Float16>) return RoundToFloat16(x);
  else if constexpr (std::is_same_v<T, BFloat16>) return RoundToBFloat16(x);
  else return x;
}

// Signed overflow wraps.
template <class C>
C AddWrapping(C a, C b) {
  if constexpr (std::is_integral_v<C>) return static_cast<C>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  else return a + b;
}

template <class C>
C Maximum(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return a > b ? a : b;
  } else {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return __builtin_signbit(a) ? b : a;
    return a > b ? a : b;
  }
}

template <class C>
C Minimum(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return a < b ? a : b;
  } else {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return __builtin_signbit(a) ? a : b;
    return a < b ? a : b;
  }
}

// Calls f.template operator()<T>() with the storage type of an arithmetic dtype.
template <class F>
void VisitArithmetic(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF16: return f.template operator()<Float16>();
    case DType::kBF16: return f.template operator()<BFloat16>();
    case DType::kF32: return f.template operator()<float>();
    case DType::kF64: return f.template operator()<double>();
    case DType::kS32: return f.template operator()<int32_t>();
    default: AQT_CHECK(!"an arithmetic dtype");
  }
}

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_ARITHMETIC_INL_H_
