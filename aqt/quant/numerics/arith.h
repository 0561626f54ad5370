#ifndef AQT_QUANT_NUMERICS_ARITH_H_
#define AQT_QUANT_NUMERICS_ARITH_H_

// The elementary operations of AQT on XLA's CPU backend. Internal.
//
// A value of f32, bf16 or f16 is held in a float. Each operation computes in f32 and immediately rounds its result to
// the dtype. Subnormal f32 and bf16 numbers are treated as zero, as operands and as results; those of f16 are not (they
// are normal numbers of f32, in which the operation is computed).

#include <cmath>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/subnormals.h"

namespace aqt::internal {

template <class T>
struct Arith;

template <>
struct Arith<float> {
  static float Round(float v) { return v; }
  static float Flush(float v) { return FlushSubnormal(v); }
};
template <>
struct Arith<BFloat16> {
  static float Round(float v) { return ToFloat(RoundToBFloat16(v)); }
  static float Flush(float v) { return FlushSubnormal(v); }
};
template <>
struct Arith<Float16> {
  static float Round(float v) { return ToFloat(RoundToFloat16(v)); }
  static float Flush(float v) { return v; }
};

template <class T>
float Mul(float a, float b) {
  using A = Arith<T>;
  return A::Round(A::Flush(A::Flush(a) * A::Flush(b)));
}
template <class T>
float Add(float a, float b) {
  using A = Arith<T>;
  return A::Round(A::Flush(A::Flush(a) + A::Flush(b)));
}
template <class T>
float Sub(float a, float b) {
  using A = Arith<T>;
  return A::Round(A::Flush(A::Flush(a) - A::Flush(b)));
}
template <class T>
float Div(float a, float b) {
  using A = Arith<T>;
  return A::Round(A::Flush(A::Flush(a) / A::Flush(b)));
}

// The factor by which XLA on CPU multiplies instead of dividing by the constant c. It is not rounded to bf16 for bf16:
// reciprocal and product are one operation in f32.
template <class T>
float Reciprocal(float c) {
  return std::is_same_v<T, Float16> ? Div<T>(1.0f, c) : Div<float>(1.0f, c);
}

// 1 / s in the dtype of s, or 1 if that is infinite: the factor that x is multiplied by.
template <class T>
float InverseScale(float s) {
  const float inverse = Div<T>(1.0f, s);
  return std::isinf(inverse) ? 1.0f : inverse;
}

// f.template operator()<T>() with the storage type of f32, bf16 or f16.
template <class F>
decltype(auto) VisitFloat(DType dtype, F&& f) {
  AQT_DCHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16);
  switch (dtype) {
    case DType::kBF16: return f.template operator()<BFloat16>();
    case DType::kF16: return f.template operator()<Float16>();
    default: return f.template operator()<float>();
  }
}

inline bool IsArithmeticFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// A host constant: rounded to f32, then to `dtype`.
inline float HostConstant(DType dtype, double value) {
  return VisitFloat(dtype, [&]<class T>() { return Arith<T>::Round(static_cast<float>(value)); });
}

// x^p for x >= 0, with p rounded to `dtype` first like every host constant: correctly rounded to f32 (except for about
// one value in 10^7 that is too close to a midpoint), then to `dtype`.
float Power(DType dtype, float x, double p);

// The dtype in which an operation on both is computed, as in JAX: the wider of two floats (f32 for bf16 with f16), the
// float of a float and an integer, the wider of two integers; an 8-bit float ranks below bf16 and f16.
DType Promote(DType a, DType b);

// 1 / 2^floor(log2(1 / s)), each operation rounded to `dtype`, with log2(v) = ln(v) * Reciprocal(ln 2), or ln(v) / ln 2
// when `divide`, ln correctly rounded. For most s it is the smallest power of two that is not below s.
float CeilToPo2(DType dtype, float s, bool divide);

}  // namespace aqt::internal

#endif  // AQT_QUANT_NUMERICS_ARITH_H_
