#include "aqt/quant/numerics/arith.h"

#include <cmath>
#include <limits>

#include "aqt/kernels/simd/scalar_math.h"

namespace aqt::internal {
namespace {

bool IsSmallFloat(DType dtype) { return IsFloat(dtype) && SizeOf(dtype) == 1; }

template <class T>
float CeilToPo2As(float s, bool divide) {
  const float inverse = Div<T>(1.0f, s);
  const float log = Arith<T>::Round(static_cast<float>(kernels::Log(Arith<T>::Flush(inverse))));
  const float ln2 = Arith<T>::Round(static_cast<float>(0x1.62e42fefa39efp-1));
  const float log2 = divide ? Div<T>(log, ln2) : Mul<T>(log, Reciprocal<T>(ln2));
  const float exponent = Arith<T>::Round(std::floor(log2));
  // An infinite or NaN exponent gives 0 or NaN.
  const float power = std::isfinite(exponent) ? std::ldexp(1.0f, static_cast<int>(exponent)) : kernels::Exp(exponent);
  return Div<T>(1.0f, Arith<T>::Flush(Arith<T>::Round(power)));
}

// In f64, which is exact for powers of short numbers; these can be halfway between two f32 numbers.
double PowerF64(double x, double p) {
  constexpr int kLargest = 8;
  if (p == 0 || x == 1) return 1;
  if (x == 0) return p > 0 ? 0 : std::numeric_limits<double>::infinity();
  if (p < 0 || p > kLargest || p != std::floor(p)) return kernels::Exp(p * kernels::Log(x));
  double power = x;
  for (int i = 1; i < static_cast<int>(p); ++i) power *= x;
  return power;
}

}  // namespace

float Power(DType dtype, float x, double p) {
  return VisitFloat(dtype, [&]<class T>() {
    const double power = PowerF64(Arith<T>::Flush(x), HostConstant(dtype, p));
    return Arith<T>::Round(Arith<T>::Flush(static_cast<float>(power)));
  });
}

DType Promote(DType a, DType b) {
  if (a == b) return a;
  if (IsFloat(a) != IsFloat(b)) return IsFloat(a) ? a : b;
  if (!IsFloat(a)) return BitWidth(a) >= BitWidth(b) ? a : b;
  if (IsSmallFloat(a) && IsSmallFloat(b)) return DType::kBF16;
  if (IsSmallFloat(a)) return b;
  if (IsSmallFloat(b)) return a;
  if (SizeOf(a) == SizeOf(b)) return DType::kF32;  // bf16 with f16
  return SizeOf(a) > SizeOf(b) ? a : b;
}

float CeilToPo2(DType dtype, float s, bool divide) {
  return VisitFloat(dtype, [&]<class T>() { return CeilToPo2As<T>(s, divide); });
}

}  // namespace aqt::internal
