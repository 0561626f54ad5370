#ifndef AQT_KERNELS_SIMD_ARITHMETIC_INL_H_
#define AQT_KERNELS_SIMD_ARITHMETIC_INL_H_

// The type in which an arithmetic dtype is computed, and its operations.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "aqt/core/check.h"
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
C SubtractWrapping(C a, C b) {
  if constexpr (std::is_integral_v<C>) return static_cast<C>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
  else return a - b;
}

// Integer division as in XLA: x / 0 = -1, and the only overflowing quotient, -2^31 / -1, wraps.
template <class C>
C Divide(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    if (b == 0) return -1;
    if (b == -1) return SubtractWrapping(C{0}, a);
  }
  return a / b;
}

inline int32_t MultiplyWrapping(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
inline float MultiplyWrapping(float a, float b) { return a * b; }
inline double MultiplyWrapping(double a, double b) { return a * b; }

// The bitwise and of two floats. For two zeros this is +0 unless both are -0.
inline float CommonBits(float a, float b) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, a) & __builtin_bit_cast(uint32_t, b));
}
inline double CommonBits(double a, double b) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, a) & __builtin_bit_cast(uint64_t, b));
}
// The bitwise or of two floats. For two zeros this is -0 unless both are +0.
inline float AllBits(float a, float b) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, a) | __builtin_bit_cast(uint32_t, b));
}
inline double AllBits(double a, double b) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, a) | __builtin_bit_cast(uint64_t, b));
}

// NaN if an operand is NaN; +0 is above -0. Branchless, so that loops vectorize.
template <class C>
C Maximum(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return a > b ? a : b;
  } else {
    C larger = a > b ? a : b;
    larger = a == b ? CommonBits(a, b) : larger;
    return a != a ? a : larger;  // b if it is NaN
  }
}

template <class C>
C Minimum(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    return a < b ? a : b;
  } else {
    C smaller = a < b ? a : b;
    smaller = a == b ? AllBits(a, b) : smaller;
    return a != a ? a : smaller;
  }
}

// Whether a precedes b in a search for the first maximum or minimum. NaN wins; zeros are equal.
template <class C>
bool IsAbove(C a, C b) {
  return a > b || (a != a && b == b);
}
template <class C>
bool IsBelow(C a, C b) {
  return a < b || (a != a && b == b);
}

// The smallest and the largest value of a type, including infinities.
template <class C>
constexpr C Lowest() {
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::min();
  else return -std::numeric_limits<C>::infinity();
}
template <class C>
constexpr C Highest() {
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::max();
  else return std::numeric_limits<C>::infinity();
}

// Calls f(op), where op(C, C) -> C implements `kind`; returns false for kinds that do not apply to numbers. (The enum
// is a parameter because elementwise.h is a layer above this file.)
template <class C, class BinaryKind, class F>
bool VisitBinary(BinaryKind kind, F&& f) {
  switch (kind) {
    case BinaryKind::kAdd: f([](C a, C b) { return AddWrapping(a, b); }); return true;
    case BinaryKind::kSub: f([](C a, C b) { return SubtractWrapping(a, b); }); return true;
    case BinaryKind::kMul: f([](C a, C b) { return MultiplyWrapping(a, b); }); return true;
    case BinaryKind::kDiv: f([](C a, C b) { return Divide(a, b); }); return true;
    case BinaryKind::kMax: f([](C a, C b) { return Maximum(a, b); }); return true;
    case BinaryKind::kMin: f([](C a, C b) { return Minimum(a, b); }); return true;
    default: return false;
  }
}

// Likewise for CompareKind, with op(C, C) -> bool.
template <class C, class CompareKind, class F>
void VisitCompare(CompareKind kind, F&& f) {
  switch (kind) {
    case CompareKind::kEq: return f([](C a, C b) { return a == b; });
    case CompareKind::kNe: return f([](C a, C b) { return a != b; });
    case CompareKind::kLt: return f([](C a, C b) { return a < b; });
    case CompareKind::kLe: return f([](C a, C b) { return a <= b; });
    case CompareKind::kGt: return f([](C a, C b) { return a > b; });
    case CompareKind::kGe: return f([](C a, C b) { return a >= b; });
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

#endif  // AQT_KERNELS_SIMD_ARITHMETIC_INL_H_
