#include "aqt/kernels/elementwise.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/kernels/arithmetic-inl.h"
#include "aqt/kernels/scalar_math.h"

namespace aqt::kernels {
namespace {

using internal::ComputeType;
using internal::Load;
using internal::Store;

template <class T, class F>
void MapUnary(const void* x, int64_t n, void* out, F f) {
  const T* in = static_cast<const T*>(x);
  T* to = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = Store<T>(f(Load(in[i])));
}

template <class T, class F>
void MapBinary(const void* a, const void* b, int64_t n, void* out, F f) {
  const T* lhs = static_cast<const T*>(a);
  const T* rhs = static_cast<const T*>(b);
  T* to = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = Store<T>(f(Load(lhs[i]), Load(rhs[i])));
}

template <class T, class F>
void MapCompare(const void* a, const void* b, int64_t n, bool* out, F f) {
  const T* lhs = static_cast<const T*>(a);
  const T* rhs = static_cast<const T*>(b);
  for (int64_t i = 0; i < n; ++i) out[i] = f(Load(lhs[i]), Load(rhs[i]));
}

// Like XLA: x / 0 = -1, and the only quotient that overflows, -2^31 / -1, wraps.
int32_t Divide(int32_t a, int32_t b) {
  if (b == 0) return -1;
  if (b == -1) return static_cast<int32_t>(0u - static_cast<uint32_t>(a));
  return a / b;
}

template <class T>
void UnaryOf(UnaryKind kind, const void* x, int64_t n, void* out) {
  using C = ComputeType<T>;
  if constexpr (std::is_integral_v<C>) {
    const auto negate = [](C v) { return static_cast<C>(0u - static_cast<uint32_t>(v)); };
    switch (kind) {
      case UnaryKind::kNeg: return MapUnary<T>(x, n, out, negate);
      case UnaryKind::kAbs: return MapUnary<T>(x, n, out, [&](C v) { return v < 0 ? negate(v) : v; });
      case UnaryKind::kRound:
      case UnaryKind::kFloor:
      case UnaryKind::kFlush:
      case UnaryKind::kExp:
      case UnaryKind::kLog: AQT_CHECK(!"a float operand");
    }
  } else {
    switch (kind) {
      case UnaryKind::kNeg: return MapUnary<T>(x, n, out, [](C v) { return -v; });
      case UnaryKind::kAbs: return MapUnary<T>(x, n, out, [](C v) { return std::fabs(v); });
      case UnaryKind::kRound: return MapUnary<T>(x, n, out, [](C v) { return std::nearbyint(v); });
      case UnaryKind::kFloor: return MapUnary<T>(x, n, out, [](C v) { return std::floor(v); });
      case UnaryKind::kFlush:
        return MapUnary<T>(x, n, out, [](C v) { return std::fabs(v) < C{0x1p-126} ? std::copysign(C{0}, v) : v; });
      case UnaryKind::kExp: return MapUnary<T>(x, n, out, [](C v) { return static_cast<C>(Exp(v)); });
      case UnaryKind::kLog: return MapUnary<T>(x, n, out, [](C v) { return static_cast<C>(Log(v)); });
    }
  }
}

template <class T>
void BinaryOf(BinaryKind kind, const void* a, const void* b, int64_t n, void* out) {
  using C = ComputeType<T>;
  switch (kind) {
    case BinaryKind::kAdd: return MapBinary<T>(a, b, n, out, [](C x, C y) { return internal::AddWrapping(x, y); });
    case BinaryKind::kMax: return MapBinary<T>(a, b, n, out, [](C x, C y) { return internal::Maximum(x, y); });
    case BinaryKind::kMin: return MapBinary<T>(a, b, n, out, [](C x, C y) { return internal::Minimum(x, y); });
    case BinaryKind::kSub:
      return MapBinary<T>(a, b, n, out, [](C x, C y) {
        if constexpr (std::is_integral_v<C>) return static_cast<C>(static_cast<uint32_t>(x) - static_cast<uint32_t>(y));
        else return x - y;
      });
    case BinaryKind::kMul:
      return MapBinary<T>(a, b, n, out, [](C x, C y) {
        if constexpr (std::is_integral_v<C>) return static_cast<C>(static_cast<uint32_t>(x) * static_cast<uint32_t>(y));
        else return x * y;
      });
    case BinaryKind::kDiv:
      return MapBinary<T>(a, b, n, out, [](C x, C y) {
        if constexpr (std::is_integral_v<C>) return Divide(x, y);
        else return x / y;
      });
  }
}

template <class T>
void CompareOf(CompareKind kind, const void* a, const void* b, int64_t n, bool* out) {
  using C = ComputeType<T>;
  switch (kind) {
    case CompareKind::kEq: return MapCompare<T>(a, b, n, out, [](C x, C y) { return x == y; });
    case CompareKind::kNe: return MapCompare<T>(a, b, n, out, [](C x, C y) { return x != y; });
    case CompareKind::kLt: return MapCompare<T>(a, b, n, out, [](C x, C y) { return x < y; });
    case CompareKind::kLe: return MapCompare<T>(a, b, n, out, [](C x, C y) { return x <= y; });
    case CompareKind::kGt: return MapCompare<T>(a, b, n, out, [](C x, C y) { return x > y; });
    case CompareKind::kGe: return MapCompare<T>(a, b, n, out, [](C x, C y) { return x >= y; });
  }
}

template <class T>
void SelectOf(const bool* pred, const void* a, const void* b, int64_t n, void* out) {
  const T* lhs = static_cast<const T*>(a);
  const T* rhs = static_cast<const T*>(b);
  T* to = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = pred[i] ? lhs[i] : rhs[i];
}

}  // namespace

absl::string_view ToString(UnaryKind kind) {
  switch (kind) {
    case UnaryKind::kNeg: return "neg";
    case UnaryKind::kAbs: return "abs";
    case UnaryKind::kRound: return "round";
    case UnaryKind::kFloor: return "floor";
    case UnaryKind::kFlush: return "flush";
    case UnaryKind::kExp: return "exp";
    case UnaryKind::kLog: return "log";
  }
  return "?";
}

absl::string_view ToString(BinaryKind kind) {
  switch (kind) {
    case BinaryKind::kAdd: return "add";
    case BinaryKind::kSub: return "sub";
    case BinaryKind::kMul: return "mul";
    case BinaryKind::kDiv: return "div";
    case BinaryKind::kMax: return "max";
    case BinaryKind::kMin: return "min";
  }
  return "?";
}

absl::string_view ToString(CompareKind kind) {
  switch (kind) {
    case CompareKind::kEq: return "eq";
    case CompareKind::kNe: return "ne";
    case CompareKind::kLt: return "lt";
    case CompareKind::kLe: return "le";
    case CompareKind::kGt: return "gt";
    case CompareKind::kGe: return "ge";
  }
  return "?";
}

bool IsArithmetic(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64 ||
         dtype == DType::kS32;
}

void Unary(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out) {
  internal::VisitArithmetic(dtype, [&]<class T>() { UnaryOf<T>(kind, x, n, out); });
}

void Binary(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out) {
  internal::VisitArithmetic(dtype, [&]<class T>() { BinaryOf<T>(kind, a, b, n, out); });
}

void Compare(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out) {
  if (dtype == DType::kBool) return CompareOf<bool>(kind, a, b, n, out);
  internal::VisitArithmetic(dtype, [&]<class T>() { CompareOf<T>(kind, a, b, n, out); });
}

void Select(DType dtype, const bool* pred, const void* a, const void* b, int64_t n, void* out) {
  VisitDType(dtype, [&]<class T>() { SelectOf<T>(pred, a, b, n, out); });
}

}  // namespace aqt::kernels
