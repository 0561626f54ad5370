// The elementwise operations computed by math-inl.h and math-float-inl.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/elementwise/internal.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/elementwise/functions.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/math-float-inl.h"
#include "aqt/kernels/simd/math-inl.h"
#include "aqt/kernels/simd/vector-loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// Uses the vectorized function `plain` for blocks without a large angle.
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

template <class C, class F>
void ForEachNumber(const C* x, int64_t n, C* out, F f) {
  ForEach(
      n, out, [f](C v) { return static_cast<C>(f(v)); }, x);
}

void FunctionOf(UnaryKind kind, const double* x, int64_t n, double* out) {
  const auto map = [&](auto f) { ForEachNumber(x, n, out, f); };
  switch (kind) {
    case UnaryKind::kRsqrt: return map([](double v) { return Rsqrt(v); });
    case UnaryKind::kCbrt: return map([](double v) { return Cbrt(v); });
    case UnaryKind::kExp: return map([](double v) { return Exp(v); });
    case UnaryKind::kExpm1: return map([](double v) { return Expm1(v); });
    case UnaryKind::kLog: return map([](double v) { return Log(v); });
    case UnaryKind::kLog1p: return map([](double v) { return Log1p(v); });
    case UnaryKind::kTanh: return map([](double v) { return Tanh(v); });
    case UnaryKind::kLogistic: return map([](double v) { return Logistic(v); });
    case UnaryKind::kErf: return map([](double v) { return Erf(v); });
    case UnaryKind::kSin: return ForEachAngle(x, n, out, PlainSin, Sin);
    case UnaryKind::kCos: return ForEachAngle(x, n, out, PlainCos, Cos);
    default: AQT_CHECK(!"a function");
  }
}

// out[i] = f(x[i]), by vectors.
template <class F>
HWY_INLINE void ForEachVector(const float* x, int64_t n, float* out, F f) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, out + i);
  if (i == n) return;
  HWY_ALIGN float rest[kLanes] = {};
  std::copy(x + i, x + n, rest);
  hn::Store(f(d, hn::Load(d, rest)), d, rest);
  std::copy_n(rest, n - i, out + i);
}

void FunctionOf(UnaryKind kind, const float* x, int64_t n, float* out) {
  const auto map = [&](auto f) HWY_ATTR { ForEachVector(x, n, out, f); };
  switch (kind) {
    case UnaryKind::kRsqrt: return map([](auto d, auto v) HWY_ATTR { return RsqrtOf(d, v); });
    case UnaryKind::kExp: return map([](auto d, auto v) HWY_ATTR { return ExpOf(d, v); });
    case UnaryKind::kExpm1: return map([](auto d, auto v) HWY_ATTR { return Expm1Of(d, v); });
    case UnaryKind::kLog: return map([](auto d, auto v) HWY_ATTR { return LogOf(d, v); });
    case UnaryKind::kLog1p: return map([](auto d, auto v) HWY_ATTR { return Log1pOf(d, v); });
    case UnaryKind::kTanh: return map([](auto d, auto v) HWY_ATTR { return TanhOf(d, v); });
    case UnaryKind::kLogistic: return map([](auto d, auto v) HWY_ATTR { return LogisticOf(d, v); });
    case UnaryKind::kErf: return map([](auto d, auto v) HWY_ATTR { return ErfOf(d, v); });
    case UnaryKind::kCbrt: return ForEachNumber(x, n, out, [](double v) { return Cbrt(v); });
    case UnaryKind::kSin: return ForEachAngle(x, n, out, PlainSin, Sin);
    case UnaryKind::kCos: return ForEachAngle(x, n, out, PlainCos, Cos);
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
