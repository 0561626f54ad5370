// The elementwise operations that take one or a few processor instructions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/elementwise/internal.h"
#include "aqt/kernels/simd/arithmetic-inl.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/elementwise/arithmetic.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"
#include "aqt/kernels/simd/vector-loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- conversions

template <class T>
void WidenOf(const T* x, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(LoadFloat(d, x + i), d, out + i);
  for (; i < n; ++i) out[i] = ToFloat(x[i]);
}

template <class T>
void NarrowOf(const float* x, int64_t n, T* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreFloat(d, RoundLanes<T>::Apply(d, hn::LoadU(d, x + i)), out + i);
  for (; i < n; ++i) {
    if constexpr (std::is_same_v<T, Float16>) out[i] = RoundToFloat16(x[i]);
    else out[i] = RoundToBFloat16(x[i]);
  }
}

void WidenAny(DType dtype, const void* x, int64_t n, float* out) {
  if (dtype == DType::kF16) WidenOf(static_cast<const Float16*>(x), n, out);
  else WidenOf(static_cast<const BFloat16*>(x), n, out);
}

void NarrowAny(DType dtype, const float* x, int64_t n, void* out) {
  if (dtype == DType::kF16) NarrowOf(x, n, static_cast<Float16*>(out));
  else NarrowOf(x, n, static_cast<BFloat16*>(out));
}

// ---- one element

HWY_INLINE int32_t Wrap(uint32_t x) { return static_cast<int32_t>(x); }
HWY_INLINE uint32_t Unsigned(int32_t x) { return static_cast<uint32_t>(x); }

// ---- arrays

void UnaryS32(UnaryKind kind, const int32_t* x, int64_t n, int32_t* out) {
  switch (kind) {
    case UnaryKind::kNeg:
      return ForEach(
          n, out, [](int32_t v) { return Wrap(0u - Unsigned(v)); }, x);
    case UnaryKind::kAbs:
      return ForEach(
          n, out, [](int32_t v) { return v < 0 ? Wrap(0u - Unsigned(v)) : v; }, x);
    case UnaryKind::kSign:
      return ForEach(
          n, out, [](int32_t v) { return (v > 0) - (v < 0); }, x);
    default: AQT_CHECK(!"a kind that takes s32");
  }
}

template <class C>
void UnaryFloat(UnaryKind kind, const C* x, int64_t n, C* out) {
  const auto map = [&](auto f) { ForEach(n, out, f, x); };
  switch (kind) {
    case UnaryKind::kNeg: return map([](C v) { return -v; });
    case UnaryKind::kAbs: return map([](C v) { return std::fabs(v); });
    case UnaryKind::kSign: return map([](C v) { return v > 0 ? C{1} : v < 0 ? C{-1} : v; });
    case UnaryKind::kRound: return map([](C v) { return std::nearbyint(v); });
    case UnaryKind::kFloor: return map([](C v) { return std::floor(v); });
    case UnaryKind::kCeil: return map([](C v) { return std::ceil(v); });
    case UnaryKind::kFlush: return map([](C v) { return std::fabs(v) < C{0x1p-126} ? std::copysign(C{0}, v) : v; });
    case UnaryKind::kSqrt: return map([](C v) { return std::sqrt(v); });
    default: AQT_CHECK(!"a kind that takes floats");
  }
}

template <class C>
void BinaryOf(BinaryKind kind, const C* a, const C* b, int64_t n, C* out) {
  AQT_CHECK(internal::VisitBinary<C>(kind, [&](auto f) { ForEach(n, out, f, a, b); }));
}

template <class C>
void CompareOf(CompareKind kind, const C* a, const C* b, int64_t n, bool* out) {
  internal::VisitCompare<C>(kind, [&](auto f) { ForEach(n, out, f, a, b); });
}

template <class C>
void IntegerPowOf(int64_t exponent, const C* x, int64_t n, C* out) {
  constexpr int64_t kBlock = 512;
  C power[kBlock], product[kBlock];
  const uint64_t magnitude = exponent < 0 ? 0 - static_cast<uint64_t>(exponent) : static_cast<uint64_t>(exponent);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = std::min(kBlock, n - begin);
    std::copy_n(x + begin, m, power);
    bool any = false;
    for (uint64_t bits = magnitude; bits != 0; bits >>= 1) {
      if ((bits & 1) != 0 && any) {
        ForEach(
            m, product, [](C a, C b) { return internal::MultiplyWrapping(a, b); }, product, power);
      } else if ((bits & 1) != 0) {
        std::copy_n(power, m, product);
        any = true;
      }
      if (bits > 1) {
        ForEach(
            m, power, [](C a) { return internal::MultiplyWrapping(a, a); }, power);
      }
    }
    if (!any) std::fill_n(product, m, C{1});
    if constexpr (!std::is_integral_v<C>) {
      if (exponent < 0) {
        ForEach(
            m, product, [](C a) { return 1 / a; }, product);
      }
    }
    std::copy_n(product, m, out + begin);
  }
}

// ---- by dtype

// Calls f with the compute type of `dtype`.
template <class F>
void VisitComputed(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32: return f(float{});
    case DType::kF64: return f(double{});
    case DType::kS32: return f(int32_t{});
    default: AQT_CHECK(!"f32, f64 or s32");
  }
}

void UnaryAny(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out) {
  if (dtype == DType::kBool) {
    AQT_CHECK(kind == UnaryKind::kNot);
    return ForEach(
        n, static_cast<bool*>(out), [](bool v) { return !v; }, static_cast<const bool*>(x));
  }
  VisitComputed(dtype, [&]<class C>(C) {
    if constexpr (std::is_integral_v<C>) UnaryS32(kind, static_cast<const C*>(x), n, static_cast<C*>(out));
    else UnaryFloat(kind, static_cast<const C*>(x), n, static_cast<C*>(out));
  });
}

void BinaryAny(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out) {
  if (dtype == DType::kBool) {
    const bool *x = static_cast<const bool*>(a), *y = static_cast<const bool*>(b);
    bool* to = static_cast<bool*>(out);
    AQT_CHECK(kind == BinaryKind::kAnd || kind == BinaryKind::kOr);
    if (kind == BinaryKind::kAnd) {
      return ForEach(
          n, to, [](bool v, bool w) -> bool { return v & w; }, x, y);
    }
    return ForEach(
        n, to, [](bool v, bool w) -> bool { return v | w; }, x, y);
  }
  VisitComputed(dtype, [&]<class C>(C) {
    BinaryOf(kind, static_cast<const C*>(a), static_cast<const C*>(b), n, static_cast<C*>(out));
  });
}

void CompareAny(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out) {
  if (dtype == DType::kBool) {
    return CompareOf(kind, static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b), n, out);
  }
  VisitComputed(dtype,
                [&]<class C>(C) { CompareOf(kind, static_cast<const C*>(a), static_cast<const C*>(b), n, out); });
}

void ClampAny(DType dtype, const void* low, const void* x, const void* high, int64_t n, void* out) {
  VisitComputed(dtype, [&]<class C>(C) {
    ForEach(
        n, static_cast<C*>(out), [](C from, C v, C to) { return internal::Minimum(internal::Maximum(v, from), to); },
        static_cast<const C*>(low), static_cast<const C*>(x), static_cast<const C*>(high));
  });
}

void IntegerPowAny(DType dtype, int64_t exponent, const void* x, int64_t n, void* out) {
  VisitComputed(dtype, [&]<class C>(C) { IntegerPowOf(exponent, static_cast<const C*>(x), n, static_cast<C*>(out)); });
}

// ---- bits

template <class T>
void SelectOf(const bool* pred, const void* a, const void* b, int64_t n, void* out) {
  ForEach(
      n, static_cast<T*>(out),
      [](uint8_t p, T x, T y) -> T {
        const T mask = static_cast<T>(T{0} - static_cast<T>(p));
        return (x & mask) | (y & static_cast<T>(~mask));
      },
      reinterpret_cast<const uint8_t*>(pred), static_cast<const T*>(a), static_cast<const T*>(b));
}

void SelectAny(int64_t bytes, const bool* pred, const void* a, const void* b, int64_t n, void* out) {
  switch (bytes) {
    case 1: return SelectOf<uint8_t>(pred, a, b, n, out);
    case 2: return SelectOf<uint16_t>(pred, a, b, n, out);
    case 4: return SelectOf<uint32_t>(pred, a, b, n, out);
    case 8: return SelectOf<uint64_t>(pred, a, b, n, out);
    default: AQT_CHECK(!"1, 2, 4 or 8 bytes");
  }
}

// The layout of a float type; `T` holds its bits.
template <class T>
struct Layout {
  int exponent_bits, mantissa_bits;
  T exponent() const { return static_cast<T>(((T{1} << exponent_bits) - 1) << mantissa_bits); }
  T sign() const { return static_cast<T>(T{1} << (exponent_bits + mantissa_bits)); }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

template <class T>
void IsFiniteOf(const Layout<T>& layout, const void* x, int64_t n, bool* out) {
  const T exponent = layout.exponent();
  ForEach(
      n, out, [=](T v) { return (v & exponent) != exponent; }, static_cast<const T*>(x));
}

template <class T>
void ReducePrecisionOf(const Layout<T>& layout, Precision precision, const void* x, int64_t n, void* out) {
  const T exponent = layout.exponent(), sign = layout.sign();
  // Rounds to nearest, ties to even, in the last kept bit. A carry into the exponent is correct, up to infinity.
  const int dropped = std::max(layout.mantissa_bits - precision.mantissa_bits, 0);
  const T kept = static_cast<T>(~((T{1} << dropped) - 1));
  const T half = static_cast<T>(dropped > 0 ? (T{1} << (dropped - 1)) - 1 : 0);
  const T odd = static_cast<T>(dropped > 0 ? 1 : 0);
  // Biased exponents above `largest` overflow; those below `smallest` become zero.
  const bool narrow = precision.exponent_bits < layout.exponent_bits;
  const int bias = layout.bias(), reach = narrow ? (1 << (precision.exponent_bits - 1)) - 1 : 0;
  const T largest = narrow ? static_cast<T>(static_cast<T>(bias + reach) << layout.mantissa_bits) : exponent;
  const T smallest = narrow ? static_cast<T>(static_cast<T>(bias - reach + 1) << layout.mantissa_bits) : T{0};
  ForEach(
      n, static_cast<T*>(out),
      [=](T v) -> T {
        const T magnitude = v & static_cast<T>(~sign);
        T rounded = static_cast<T>(magnitude + half + (static_cast<T>(magnitude >> dropped) & odd)) & kept;
        rounded = (rounded & exponent) > largest ? exponent : rounded;
        rounded = rounded < smallest ? T{0} : rounded;
        rounded = magnitude == exponent ? exponent : rounded;
        return (v & sign) | (magnitude > exponent ? magnitude : rounded);
      },
      static_cast<const T*>(x));
}

template <class F>
void VisitLayout(DType dtype, F f) {
  switch (dtype) {
    case DType::kF16: return f(Layout<uint16_t>{5, 10});
    case DType::kBF16: return f(Layout<uint16_t>{8, 7});
    case DType::kF32: return f(Layout<uint32_t>{8, 23});
    case DType::kF64: return f(Layout<uint64_t>{11, 52});
    default: AQT_CHECK(!"f16, bf16, f32 or f64");
  }
}

void IsFiniteAny(DType dtype, const void* x, int64_t n, bool* out) {
  VisitLayout(dtype, [&](const auto& layout) { IsFiniteOf(layout, x, n, out); });
}

void ReducePrecisionAny(DType dtype, Precision precision, const void* x, int64_t n, void* out) {
  VisitLayout(dtype, [&](const auto& layout) { ReducePrecisionOf(layout, precision, x, n, out); });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {
namespace internal {

void Widen(DType dtype, const void* x, int64_t n, float* out, Target target) {
  AQT_HWY_DISPATCH(target, WidenAny)(dtype, x, n, out);
}

void Narrow(DType dtype, const float* x, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, NarrowAny)(dtype, x, n, out);
}

void UnaryArithmetic(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, UnaryAny)(kind, dtype, x, n, out);
}

void BinaryArithmetic(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, BinaryAny)(kind, dtype, a, b, n, out);
}

void CompareArithmetic(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out,
                       Target target) {
  AQT_HWY_DISPATCH(target, CompareAny)(kind, dtype, a, b, n, out);
}

void ClampArithmetic(DType dtype, const void* low, const void* x, const void* high, int64_t n, void* out,
                     Target target) {
  AQT_HWY_DISPATCH(target, ClampAny)(dtype, low, x, high, n, out);
}

void IntegerPowArithmetic(DType dtype, int64_t exponent, const void* x, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, IntegerPowAny)(dtype, exponent, x, n, out);
}

}  // namespace internal

void Select(DType dtype, const bool* pred, const void* a, const void* b, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, SelectAny)(SizeOf(dtype), pred, a, b, n, out);
}

void IsFinite(DType dtype, const void* x, int64_t n, bool* out, Target target) {
  if (dtype == DType::kS32) std::fill_n(out, n, true);
  else AQT_HWY_DISPATCH(target, IsFiniteAny)(dtype, x, n, out);
}

void ReducePrecision(DType dtype, Precision precision, const void* x, int64_t n, void* out, Target target) {
  AQT_HWY_DISPATCH(target, ReducePrecisionAny)(dtype, precision, x, n, out);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
