#ifndef AQT_CORE_DTYPE_H_
#define AQT_CORE_DTYPE_H_

// Element types, their storage structs, and exact conversions between them.
//
// s2 and s4 are logical types: one value per byte, sign extended. Packed forms exist only in kernel panels and in
// files. Only the conversions here know bit layouts. All of them round once, to nearest, ties to even; conversions from
// f64 never go through f32.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "aqt/core/check.h"

namespace aqt {

// The type of an array's elements.
// clang-format off
enum class DType : uint8_t {
  kBool, kS2, kS4, kS8, kU8, kS16, kS32, kU32, kS64,
  kE4M3FN,  // 1-4-3, bias 7, no infinity, NaN = 0x7f and 0xff, largest finite value 448
  kE5M2,    // 1-5-2, bias 15, IEEE-like, largest finite value 57344
  kF16, kBF16, kF32, kF64,
};
inline constexpr int kNumDTypes = 15;  // the number of values of DType

// Storage for the types that C++ lacks. `bits` is the encoding; == compares encodings.
struct Float16 { uint16_t bits = 0; bool operator==(const Float16&) const = default; };
struct BFloat16 { uint16_t bits = 0; bool operator==(const BFloat16&) const = default; };
struct Float8E4M3FN { uint8_t bits = 0; bool operator==(const Float8E4M3FN&) const = default; };
struct Float8E5M2 { uint8_t bits = 0; bool operator==(const Float8E5M2&) const = default; };
struct Int4 { int8_t value = 0; bool operator==(const Int4&) const = default; };  // -8..7
struct Int2 { int8_t value = 0; bool operator==(const Int2&) const = default; };  // -2..1

namespace internal {
template <class T> struct DTypeOf;
template <> struct DTypeOf<bool> { static constexpr DType value = DType::kBool; };
template <> struct DTypeOf<Int2> { static constexpr DType value = DType::kS2; };
template <> struct DTypeOf<Int4> { static constexpr DType value = DType::kS4; };
template <> struct DTypeOf<int8_t> { static constexpr DType value = DType::kS8; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = DType::kU8; };
template <> struct DTypeOf<int16_t> { static constexpr DType value = DType::kS16; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = DType::kS32; };
template <> struct DTypeOf<uint32_t> { static constexpr DType value = DType::kU32; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = DType::kS64; };
template <> struct DTypeOf<Float8E4M3FN> { static constexpr DType value = DType::kE4M3FN; };
template <> struct DTypeOf<Float8E5M2> { static constexpr DType value = DType::kE5M2; };
template <> struct DTypeOf<Float16> { static constexpr DType value = DType::kF16; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = DType::kBF16; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::kF32; };
template <> struct DTypeOf<double> { static constexpr DType value = DType::kF64; };
}  // namespace internal
// clang-format on

// The DType whose storage type is T.
template <class T>
inline constexpr DType kDTypeOf = internal::DTypeOf<T>::value;

// Calls `f.template operator()<T>()` with T the storage type of `dtype`, and returns the result.
// Example: VisitDType(d, [&]<class T>() { return sizeof(T); }).
template <class F>
decltype(auto) VisitDType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool: return f.template operator()<bool>();
    case DType::kS2: return f.template operator()<Int2>();
    case DType::kS4: return f.template operator()<Int4>();
    case DType::kS8: return f.template operator()<int8_t>();
    case DType::kU8: return f.template operator()<uint8_t>();
    case DType::kS16: return f.template operator()<int16_t>();
    case DType::kS32: return f.template operator()<int32_t>();
    case DType::kU32: return f.template operator()<uint32_t>();
    case DType::kS64: return f.template operator()<int64_t>();
    case DType::kE4M3FN: return f.template operator()<Float8E4M3FN>();
    case DType::kE5M2: return f.template operator()<Float8E5M2>();
    case DType::kF16: return f.template operator()<Float16>();
    case DType::kBF16: return f.template operator()<BFloat16>();
    case DType::kF32: return f.template operator()<float>();
    case DType::kF64: return f.template operator()<double>();
  }
  internal::CheckFailed(__FILE__, __LINE__, "dtype is one of the enumerators");
}

// Bytes per element in memory (1 for bool, s2, s4).
int64_t SizeOf(DType dtype);
// Significant bits: 1 for bool, 2 for s2, 4 for s4, otherwise 8 * SizeOf.
int BitWidth(DType dtype);
bool IsFloat(DType dtype);    // e4m3fn, e5m2, f16, bf16, f32, f64
bool IsInteger(DType dtype);  // s2 .. s64; bool is neither
// s2, s4 and s8: the inputs of the s8 x s8 -> s32 kernels.
bool IsByteInteger(DType dtype);
// The smallest value of an integer type.
int64_t IntegerMin(DType dtype);
// The largest value of an integer type.
int64_t IntegerMax(DType dtype);
// The largest finite value of a float type.
double MaxFinite(DType dtype);

// "bool", "s2", "s4", "s8", "u8", "s16", "s32", "u32", "s64", "e4m3fn", "e5m2", "f16", "bf16", "f32", "f64".
// Configurations use the same names.
absl::string_view ToString(DType dtype);
// The inverse of ToString; nullopt for any other text.
std::optional<DType> DTypeFromString(absl::string_view text);
std::ostream& operator<<(std::ostream& os, DType dtype);

// ---- floats: decoding is exact

// The value of x.
float ToFloat(Float16 x);
float ToFloat(Float8E4M3FN x);
float ToFloat(Float8E5M2 x);
inline float ToFloat(BFloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }
inline float ToFloat(float x) { return x; }

// ---- floats: encoding

// What an infinity becomes, and a finite value that rounds beyond the largest finite one.
enum class Overflow : uint8_t {
  kIeee,      // infinity; NaN in e4m3fn, which has no infinity
  kSaturate,  // the largest finite value, with the sign of x
};

// Rounds x to T once (nearest, ties to even, gradual underflow). A NaN becomes the canonical quiet NaN with the sign of
// x. T is Float16, BFloat16, Float8E4M3FN, Float8E5M2, float or double.
template <class T>
T RoundTo(double x, Overflow overflow = Overflow::kIeee);

extern template Float16 RoundTo<Float16>(double, Overflow);
extern template BFloat16 RoundTo<BFloat16>(double, Overflow);
extern template Float8E4M3FN RoundTo<Float8E4M3FN>(double, Overflow);
extern template Float8E5M2 RoundTo<Float8E5M2>(double, Overflow);
extern template float RoundTo<float>(double, Overflow);
extern template double RoundTo<double>(double, Overflow);

// RoundTo<BFloat16>(x, kIeee) of an f32, computed with integer operations only.
inline BFloat16 RoundToBFloat16(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16 & 0x8000u) | 0x7fc0u)};
  return {static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
// RoundTo<Float16>(x, kIeee) of an f32, computed with integer operations only.
Float16 RoundToFloat16(float x);

// ---- conversion between any two types

// Converts one element. Exact if the destination can represent the value; otherwise
//   to float:   nearest, ties to even, `overflow` as above; s64 and u32 also round once;
//   to integer: toward zero, saturating; NaN becomes 0;
//   to bool:    x != 0 (NaN is true);
//   to the same type: x itself.
template <class To, class From>
To ConvertElement(From x, Overflow overflow = Overflow::kIeee);

}  // namespace aqt

#include "aqt/core/dtype-inl.h"  // ConvertElement

#endif  // AQT_CORE_DTYPE_H_
