// The elementwise operations that math-inl.h and math-float-inl.h compute.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/elementwise_internal.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/elementwise_functions.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/exp-inl.h"
#include "aqt/kernels/math-float-inl.h"
#include "aqt/kernels/math-inl.h"
#include "aqt/kernels/vector-loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// Vectors of angles, where none of a block is large.
template <class C, class Plain, class Any>
HWY_INLINE void ForEachAngle(const C* x, int64_t n, C* out, Plain plain, Any any) {
  constexpr int64_t kBlock = 256;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = n - begin < kBlock ? n - begin : kBlock;
    const C* from = x + begin;
    C* to = out + begin;
    int large = 0;
    for (int64_t i = 0; i < m; ++i) large |= !(std::fabs(from[i]) <= C{kMaxPlainAngle});
    if (large == 0) {
      ForEach(m, to, plain, from);
    } else {
      for (int64_t i = 0; i < m; ++i) to[i] = any(from[i]);
    }
  }
}

template <class C>
void FunctionOf(UnaryKind kind, const C* x, int64_t n, C* out) {
  const auto map = [&](auto f) { ForEach(n, out, f, x); };
  switch (kind) {
    case UnaryKind::kRsqrt: return map([](C v) { return static_cast<C>(Rsqrt(v)); });
    case UnaryKind::kCbrt: return map([](C v) { return static_cast<C>(Cbrt(v)); });
    case UnaryKind::kExp:
      if constexpr (std::is_same_v<C, float>) return ExpOfEach(x, n, out);
      else return map([](C v) { return Exp(v); });
    case UnaryKind::kExpm1: return map([](C v) { return Expm1(v); });
    case UnaryKind::kLog: return map([](C v) { return Log(v); });
    case UnaryKind::kLog1p: return map([](C v) { return Log1p(v); });
    case UnaryKind::kTanh: return map([](C v) { return Tanh(v); });
    case UnaryKind::kLogistic: return map([](C v) { return Logistic(v); });
    case UnaryKind::kErf: return map([](C v) { return Erf(v); });
    case UnaryKind::kSin:
      return ForEachAngle(
          x, n, out, [](C v) { return static_cast<C>(PlainSin(v)); }, [](C v) { return static_cast<C>(Sin(v)); });
    case UnaryKind::kCos:
      return ForEachAngle(
          x, n, out, [](C v) { return static_cast<C>(PlainCos(v)); }, [](C v) { return static_cast<C>(Cos(v)); });
    default: AQT_CHECK(!"a function");
  }
}

void FunctionAny(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out) {
  if (dtype == DType::kF64) FunctionOf(kind, static_cast<const double*>(x), n, static_cast<double*>(out));
  else FunctionOf(kind, static_cast<const float*>(x), n, static_cast<float*>(out));
}

template <class C>
void PowOf(const C* a, const C* b, int64_t n, C* out) {
  ForEach(
      n, out, [](C x, C y) { return static_cast<C>(Pow(x, y)); }, a, b);
}

void PowAny(DType dtype, const void* a, const void* b, int64_t n, void* out) {
  if (dtype == DType::kF64) {
    PowOf(static_cast<const double*>(a), static_cast<const double*>(b), n, static_cast<double*>(out));
  } else {
    PowOf(static_cast<const float*>(a), static_cast<const float*>(b), n, static_cast<float*>(out));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

bool IsFunction(UnaryKind kind) {
  switch (kind) {
    case UnaryKind::kRsqrt:
    case UnaryKind::kCbrt:
    case UnaryKind::kExp:
    case UnaryKind::kExpm1:
    case UnaryKind::kLog:
    case UnaryKind::kLog1p:
    case UnaryKind::kSin:
    case UnaryKind::kCos:
    case UnaryKind::kTanh:
    case UnaryKind::kLogistic:
    case UnaryKind::kErf: return true;
    case UnaryKind::kNeg:
    case UnaryKind::kAbs:
    case UnaryKind::kSign:
    case UnaryKind::kRound:
    case UnaryKind::kFloor:
    case UnaryKind::kCeil:
    case UnaryKind::kFlush:
    case UnaryKind::kSqrt:
    case UnaryKind::kNot: return false;
  }
  return false;
}

void UnaryFunction(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, FunctionAny)(kind, dtype, x, n, out);
}

void PowFunction(DType dtype, const void* a, const void* b, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, PowAny)(dtype, a, b, n, out);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
