// The steps of a strip (strip.h): eight vectors of f32, and the operation of each step. Included once per Highway
// target.

#if defined(AQT_KERNELS_ELEMENTWISE_STRIP_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_ELEMENTWISE_STRIP_STEPS_INL_H_
#undef AQT_KERNELS_ELEMENTWISE_STRIP_STEPS_INL_H_
#else
#define AQT_KERNELS_ELEMENTWISE_STRIP_STEPS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aqt/core/dtype.h"
#include "aqt/kernels/elementwise/strip.h"
#include "aqt/kernels/simd/convert-inl.h"
#include "aqt/kernels/simd/math-float-inl.h"
#include "aqt/kernels/simd/maximum-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;

constexpr int64_t kLanes = hn::MaxLanes(Tag());
constexpr int64_t kStrip = 8 * kLanes;
constexpr int64_t kSumLanes = 16;  // of a row's sum, as in reduce.h

// The vectors of a strip.
struct Strip {
  V v0, v1, v2, v3, v4, v5, v6, v7;
};

// f(i) for each vector; for Map, f(v, i).
template <class F>
HWY_INLINE Strip Make(F f) {
  return {f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)};
}
template <class F>
HWY_INLINE Strip Map(const Strip& a, F f) {
  return {f(a.v0, 0), f(a.v1, 1), f(a.v2, 2), f(a.v3, 3), f(a.v4, 4), f(a.v5, 5), f(a.v6, 6), f(a.v7, 7)};
}

HWY_INLINE V LoadAt(const float* x, int64_t i) { return hn::LoadU(Tag(), x + i * kLanes); }

HWY_INLINE Strip Load(const float* x) {
  return Make([=](int64_t i) HWY_ATTR { return LoadAt(x, i); });
}

HWY_INLINE void Store(const Strip& a, float* out) {
  Map(a, [=](V v, int64_t i) HWY_ATTR {
    hn::StoreU(v, Tag(), out + i * kLanes);
    return v;
  });
}

// Bypasses the caches if the vectors are aligned.
HWY_INLINE void StoreStreamed(const Strip& a, float* out) {
  if (reinterpret_cast<uintptr_t>(out) % (kLanes * sizeof(float)) != 0) return Store(a, out);
  Map(a, [=](V v, int64_t i) HWY_ATTR {
    hn::Stream(v, Tag(), out + i * kLanes);
    return v;
  });
}

// T: BFloat16 or Float16.
template <class T>
HWY_INLINE Strip LoadSmall(const T* x) {
  return Make([=](int64_t i) HWY_ATTR { return LoadFloat(Tag(), x + i * kLanes); });
}

#if HWY_TARGET == HWY_AVX3
// Calls store(i, elements 32 i .. 32 i + 31) for a strip as bf16.
template <class F>
HWY_INLINE void ForEachBf16Vector(const Strip& a, F store) {
  alignas(64) static constexpr uint16_t kUpperHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                            23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                            45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i halves = _mm512_load_si512(kUpperHalves);
  const auto with_one_nan = [](V v) HWY_ATTR {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(_mm512_castps_si512(v.raw), is_nan, _mm512_set1_epi32(0x7fc00000));
  };
  const auto both = [&](V low, V high)
                        HWY_ATTR { return _mm512_permutex2var_epi16(with_one_nan(low), halves, with_one_nan(high)); };
  store(0, both(a.v0, a.v1));
  store(1, both(a.v2, a.v3));
  store(2, both(a.v4, a.v5));
  store(3, both(a.v6, a.v7));
}
#endif

// Stores a strip that rounding to T leaves unchanged, except for NaN.
template <class T>
HWY_INLINE void StoreSmall(const Strip& a, T* out) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ForEachBf16Vector(a, [=](int64_t i, __m512i v) HWY_ATTR { _mm512_storeu_si512(out + 32 * i, v); });
  }
#endif
  Map(a, [=](V v, int64_t i) HWY_ATTR {
    StoreFloat(Tag(), v, out + i * kLanes);
    return v;
  });
}

template <class T>
HWY_INLINE void StoreSmallStreamed(const Strip& a, T* out) {
  constexpr hn::ScalableTag<uint8_t> d;
  constexpr int64_t kVector = hn::MaxLanes(d), kBytes = kStrip * sizeof(T);
  if (kBytes % kVector != 0 || reinterpret_cast<uintptr_t>(out) % kVector != 0) return StoreSmall(a, out);
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ForEachBf16Vector(
        a, [=](int64_t i, __m512i v) HWY_ATTR { _mm512_stream_si512(reinterpret_cast<__m512i*>(out + 32 * i), v); });
  }
#endif
  alignas(64) T narrow[kStrip];
  StoreSmall(a, narrow);
  for (int64_t i = 0; i < kBytes; i += kVector) {
    hn::Stream(hn::Load(d, reinterpret_cast<const uint8_t*>(narrow) + i), d, reinterpret_cast<uint8_t*>(out) + i);
  }
}

// All bits set where x is true.
HWY_INLINE Strip LoadBool(const uint8_t* x) {
  return Make([=](int64_t i) HWY_ATTR {
    const hn::RebindToSigned<Tag> d;
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto wide = hn::PromoteTo(d, hn::LoadU(bytes, x + i * kLanes));
    return hn::BitCast(Tag(), hn::VecFromMask(d, hn::Ne(wide, hn::Zero(d))));
  });
}

HWY_INLINE void StoreBool(const Strip& a, uint8_t* out) {
  Map(a, [=](V v, int64_t i) HWY_ATTR {
    const hn::RebindToSigned<Tag> d;
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    hn::StoreU(hn::DemoteTo(bytes, hn::And(hn::BitCast(d, v), hn::Set(d, 1))), bytes, out + i * kLanes);
    return v;
  });
}

HWY_INLINE V FlushOf(V x) {
  const V zero = hn::CopySign(hn::Zero(Tag()), x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(Tag(), 0x1p-126f)), zero, x);
}

// Adds a strip to the lanes of a row's sum; the first element goes to lane `first`.
HWY_INLINE void AddToLanes(const Strip& a, int64_t first, float* lanes) {
  if constexpr (kLanes == 1) {
    Map(a, [=](V v, int64_t i) HWY_ATTR {
      lanes[(first + i) % kSumLanes] += hn::GetLane(v);
      return v;
    });
  } else {
    constexpr int64_t kVectors = kSumLanes / kLanes;
    V sums[kVectors];
    for (int64_t j = 0; j < kVectors; ++j) sums[j] = LoadAt(lanes, j);
    Map(a, [&](V v, int64_t i) HWY_ATTR { return sums[i % kVectors] = hn::Add(sums[i % kVectors], v); });
    for (int64_t j = 0; j < kVectors; ++j) hn::StoreU(sums[j], Tag(), lanes + j * kLanes);
  }
}

// Sums the lanes as a tree.
HWY_INLINE float SumOfLanes(float* lanes) {
#pragma GCC unroll 4
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// Prefetches as many lines as a strip of these elements has.
HWY_INLINE void Fetch(const char* from, int64_t element_bytes) {
  for (int64_t i = 0; i < kStrip * element_bytes; i += 64) __builtin_prefetch(from + i);
}
// Total prefetch distance of the arrays that are in memory. They share L1 with everything else.
constexpr int32_t kFetchBytes = 8 << 10;

// An operand or a result of a step.
struct Place {
  char* memory;
  int64_t step_bytes;  // per element; 0 for a buffer that is only as long as a strip
  bool is_row;         // a single-row array
  bool is_number;      // all elements are equal
  int32_t fetch;       // prefetch distance in bytes for an array that is in memory, or 0
};

// The part of the matrices in a strip: `count` elements starting at `offset`, the first one in column `column`.
struct Part {
  int64_t offset, column, count;
};

struct Memory;
struct PlacedStep;

// Computes one step on the accumulator's vectors and jumps to the next step. All steps have the same parameters, so the
// strip stays in registers, and the code of each step is as good as in isolation.
using StepFunction = void (*)(const PlacedStep* step, Memory* memory, int64_t offset, int64_t column, int64_t count,
                              V v0, V v1, V v2, V v3, V v4, V v5, V v6, V v7);

// A step and the locations of its operands.
struct PlacedStep {
  StepFunction full, part;  // for a full strip, and for a partial one
  Place x, y, z;
};

// Buffers for the operands of a partial strip.
struct Memory {
  alignas(64) float parts[2][kStrip];       // x and y
  alignas(64) uint16_t small_part[kStrip];  // x in bf16 or f16
};

// ---- operands

HWY_INLINE char* Begin(const Place& place, const Part& part) {
  return place.memory + (place.is_row ? part.column : part.offset) * place.step_bytes;
}

// The elements of an f32 or bool operand; kIndex distinguishes the operands of a step.
template <bool kFull, int kIndex = 0>
HWY_INLINE const float* At(const Place& place, const Part& part, Memory& memory) {
  const char* const from = Begin(place, part);
  if (kFull && place.fetch != 0) Fetch(from + place.fetch, sizeof(float));
  if (kFull || place.step_bytes == 0) return reinterpret_cast<const float*>(from);
  std::memcpy(memory.parts[kIndex], from, part.count * place.step_bytes);
  return memory.parts[kIndex];
}

HWY_INLINE V NumberAt(const Place& place) { return LoadAt(reinterpret_cast<const float*>(place.memory), 0); }

// Calls store(address of the result).
template <bool kFull, class F>
HWY_INLINE void WriteTo(const Place& place, const Part& part, Memory& memory, F store) {
  char* const to = Begin(place, part);
  if (kFull || place.step_bytes == 0) return store(to);
  store(reinterpret_cast<char*>(memory.parts[0]));
  std::memcpy(to, memory.parts[0], part.count * place.step_bytes);
}

// ---- operations of steps, on two vectors or on one

#define AQT_OF_TWO(Name, value)                           \
  struct Name {                                           \
    static HWY_INLINE V Apply(V a, V x) { return value; } \
  }
#define AQT_OF_ONE(Name, value)                      \
  struct Name {                                      \
    static HWY_INLINE V Apply(V a) { return value; } \
  }

AQT_OF_TWO(Sum, hn::Add(a, x));
AQT_OF_TWO(Difference, hn::Sub(a, x));
AQT_OF_TWO(DifferenceFrom, hn::Sub(x, a));
AQT_OF_TWO(Product, hn::Mul(a, x));
AQT_OF_TWO(Quotient, hn::Div(a, x));
AQT_OF_TWO(QuotientInto, hn::Div(x, a));
AQT_OF_TWO(Larger, MaximumOf(a, x));
AQT_OF_TWO(Smaller, MinimumOf(a, x));
AQT_OF_TWO(IsEqual, hn::VecFromMask(Tag(), hn::Eq(a, x)));
AQT_OF_TWO(IsUnequal, hn::VecFromMask(Tag(), hn::Not(hn::Eq(a, x))));  // also for NaN
AQT_OF_TWO(IsBelow, hn::VecFromMask(Tag(), hn::Lt(a, x)));
AQT_OF_TWO(IsAtMost, hn::VecFromMask(Tag(), hn::Le(a, x)));
AQT_OF_TWO(IsAbove, hn::VecFromMask(Tag(), hn::Gt(a, x)));
AQT_OF_TWO(IsAtLeast, hn::VecFromMask(Tag(), hn::Ge(a, x)));
AQT_OF_ONE(Square, hn::Mul(a, a));
AQT_OF_ONE(RoundedBf16, RoundLanes<BFloat16>::Apply(Tag(), a));
AQT_OF_ONE(RoundedF16, RoundLanes<Float16>::Apply(Tag(), a));
AQT_OF_ONE(Negative, hn::Neg(a));
AQT_OF_ONE(Absolute, hn::Abs(a));
AQT_OF_ONE(Flushed, FlushOf(a));
AQT_OF_ONE(Root, hn::Sqrt(a));
AQT_OF_ONE(Exponential, ExpOf(Tag(), a));
AQT_OF_ONE(InverseRoot, RsqrtOf(Tag(), a));
AQT_OF_ONE(ExponentialMinus1, Expm1Of(Tag(), a));
AQT_OF_ONE(Logarithm, LogOf(Tag(), a));
AQT_OF_ONE(LogarithmOf1Plus, Log1pOf(Tag(), a));
AQT_OF_ONE(HyperbolicTangent, TanhOf(Tag(), a));
AQT_OF_ONE(Sigmoid, LogisticOf(Tag(), a));
AQT_OF_ONE(ErrorFunction, ErfOf(Tag(), a));

#undef AQT_OF_TWO
#undef AQT_OF_ONE

// The range of magnitudes in which QuotientsBy avoids divisions.
constexpr float kLeastOfQuotient = 0x1p-60f, kMostOfQuotient = 0x1p60f;

// x / n, correctly rounded, where all lanes of n hold the same number. If x and n are in the range above,
//   y = 1 / n, q = x y, q + (x - q n) y
// with these roundings is the quotient, and takes less time than a division. Nothing overflows or underflows, so only
// the significands matter. Before rounding, the sum differs from the quotient by less than 2^-22 ulp. It could be wrong
// only where the quotient is that close to the midpoint of two floats. strip_test.cc lists these quotients. All of them
// were checked, and the test checks those for a subset of the divisors.
HWY_INLINE Strip QuotientsBy(V n, const Strip& x) {
  const hn::RebindToUnsigned<Tag> du;
  const auto twice = [](float bound) { return 2 * __builtin_bit_cast(uint32_t, bound); };
  // Twice the bits of the magnitude, relative to the lower bound.
  const auto key = [&](V v) HWY_ATTR {
    const auto bits = hn::BitCast(du, v);
    return hn::Sub(hn::Add(bits, bits), hn::Set(du, twice(kLeastOfQuotient)));
  };
  const V y = hn::Div(hn::Set(Tag(), 1), n);
  auto largest = key(n);
  const Strip quotients = Map(x, [&](V v, int64_t) HWY_ATTR {
    largest = hn::Max(largest, key(v));
    const V q = hn::Mul(v, y);
    return Fma(NegFma(q, n, v), y, q);
  });
  const auto range = hn::Set(du, twice(kMostOfQuotient) - twice(kLeastOfQuotient));
  if (hn::AllFalse(du, hn::Gt(largest, range))) [[likely]]
    return quotients;
  return Map(x, [&](V v, int64_t) HWY_ATTR { return hn::Div(v, n); });
}

// ---- steps: Run updates the accumulator

// a = F(a, x). kNumber: x is a number.
template <class F, bool kNumber>
struct Map2 {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    if constexpr (kNumber) {
      const V number = NumberAt(step.x);
      a = Map(a, [&](V v, int64_t) HWY_ATTR { return F::Apply(v, number); });
    } else {
      const float* const x = At<kFull>(step.x, part, memory);
      a = Map(a, [&](V v, int64_t i) HWY_ATTR { return F::Apply(v, LoadAt(x, i)); });
    }
  }
};

// a = a / x, a number.
struct DivByNumber {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory&, const Part&, Strip& a) {
    a = QuotientsBy(NumberAt(step.x), a);
  }
};

// a = F(a).
template <class F>
struct Map1 {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep&, Memory&, const Part&, Strip& a) {
    a = Map(a, [](V v, int64_t) HWY_ATTR { return F::Apply(v); });
  }
};

struct LoadStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    a = Load(At<kFull>(step.x, part, memory));
  }
};

// a = F(x, y).
template <class F>
struct LoadTwo {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    const float *const x = At<kFull>(step.x, part, memory), *const y = At<kFull, 1>(step.y, part, memory);
    a = Make([=](int64_t i) HWY_ATTR { return F::Apply(LoadAt(x, i), LoadAt(y, i)); });
  }
};

// a = x * y, where y is a number.
struct LoadProduct {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    const float* const x = At<kFull>(step.x, part, memory);
    const V y = NumberAt(step.y);
    a = Make([&](int64_t i) HWY_ATTR { return hn::Mul(LoadAt(x, i), y); });
  }
};

// a = F(a * y, x). kNumber: x is a number. y is a number unless kEach.
template <class F, bool kNumber, bool kEach = false>
struct OfProduct {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    if constexpr (kEach) {
      const float *const x = At<kFull>(step.x, part, memory), *const y = At<kFull, 1>(step.y, part, memory);
      a = Map(a, [&](V v, int64_t i) HWY_ATTR { return F::Apply(hn::Mul(v, LoadAt(y, i)), LoadAt(x, i)); });
    } else {
      const float* const x = At<kFull>(step.x, part, memory);
      const V number = LoadAt(x, 0), y = NumberAt(step.y);
      a = Map(a, [&](V v, int64_t i) HWY_ATTR { return F::Apply(hn::Mul(v, y), kNumber ? number : LoadAt(x, i)); });
    }
  }
};

// a = F(a, x * y * z), or F(a, x * y) without z.
template <class F, bool kHasZ>
struct WithProduct {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    const float* const x = At<kFull>(step.x, part, memory);
    const V y = NumberAt(step.y);
    if constexpr (kHasZ) {
      const V z = NumberAt(step.z);
      a = Map(a, [&](V v, int64_t i) HWY_ATTR { return F::Apply(v, hn::Mul(hn::Mul(LoadAt(x, i), y), z)); });
    } else {
      a = Map(a, [&](V v, int64_t i) HWY_ATTR { return F::Apply(v, hn::Mul(LoadAt(x, i), y)); });
    }
  }
};

// a = x / y, where y is a number.
struct LoadDivByNumber {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    a = QuotientsBy(NumberAt(step.y), Load(At<kFull>(step.x, part, memory)));
  }
};

struct SelectStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    const float *const x = At<kFull>(step.x, part, memory), *const y = At<kFull, 1>(step.y, part, memory);
    a = Map(a, [&](V v, int64_t i) HWY_ATTR { return hn::IfThenElse(hn::MaskFromVec(v), LoadAt(x, i), LoadAt(y, i)); });
  }
};

struct LoadBoolStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    a = LoadBool(reinterpret_cast<const uint8_t*>(At<kFull>(step.x, part, memory)));
  }
};

// T: BFloat16 or Float16.
template <class T>
struct LoadSmallStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    const char* from = Begin(step.x, part);
    if (kFull && step.x.fetch != 0) Fetch(from + step.x.fetch, sizeof(T));
    if (!kFull) from = static_cast<const char*>(std::memcpy(memory.small_part, from, part.count * sizeof(T)));
    a = LoadSmall(reinterpret_cast<const T*>(from));
  }
};

// kStreams: bypasses the caches.
template <bool kStreams>
struct WriteStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    WriteTo<kFull>(step.x, part, memory, [&](char* to) HWY_ATTR {
      if (kFull && kStreams) StoreStreamed(a, reinterpret_cast<float*>(to));
      else Store(a, reinterpret_cast<float*>(to));
    });
  }
};

template <class T, bool kStreams>
struct WriteSmallStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    char* const to = Begin(step.x, part);
    if (kFull && kStreams) return StoreSmallStreamed(a, reinterpret_cast<T*>(to));
    if (kFull) return StoreSmall(a, reinterpret_cast<T*>(to));
    StoreSmall(a, reinterpret_cast<T*>(memory.small_part));
    std::memcpy(to, memory.small_part, part.count * sizeof(T));
  }
};

struct WriteBoolStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    WriteTo<kFull>(step.x, part, memory, [&](char* to) HWY_ATTR { StoreBool(a, reinterpret_cast<uint8_t*>(to)); });
  }
};

struct SumRowStep {
  template <bool kFull>
  static HWY_INLINE void Run(const PlacedStep& step, Memory& memory, const Part& part, Strip& a) {
    float* const lanes = reinterpret_cast<float*>(step.x.memory);
    if (kFull) return AddToLanes(a, part.column, lanes);
    // A zero beyond the end changes no lane: none is -0, since each starts as +0.
    Store(a, memory.parts[0]);
    std::fill(memory.parts[0] + part.count, memory.parts[0] + kStrip, 0.0f);
    AddToLanes(Load(memory.parts[0]), part.column, lanes);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_ELEMENTWISE_STRIP_STEPS_INL_H_
