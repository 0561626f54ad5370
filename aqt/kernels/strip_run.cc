// The steps of a StripFunction, one strip after the other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/strip.h"
#include "aqt/kernels/strip_internal.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/strip_run.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/convert-inl.h"
#include "aqt/kernels/exp-inl.h"
#include "aqt/kernels/math-float-inl.h"
#include "aqt/kernels/math-inl.h"
#include "aqt/kernels/maximum-inl.h"
#include "aqt/kernels/vector-loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;
using Where = StripFunction::Operand::Where;

constexpr int64_t kLanes = hn::MaxLanes(Tag());
constexpr int64_t kStrip = 8 * kLanes;
constexpr int64_t kSumLanes = 16;  // of a row's sum, as in reduce.h

// The vectors of a strip.
struct Strip {
  V v0, v1, v2, v3, v4, v5, v6, v7;
};

// f(i) for each vector; f(v, i) likewise.
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

// Past the caches, if the vectors are aligned.
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

template <class T>
HWY_INLINE Strip RoundTo(const Strip& a) {
  return Map(a, [](V v, int64_t) HWY_ATTR { return RoundLanes<T>::Apply(Tag(), v); });
}

// Of a strip that RoundTo<T> does not change, but for NaN.
template <class T>
HWY_INLINE void StoreSmall(const Strip& a, T* out) {
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
  alignas(64) T narrow[kStrip];
  StoreSmall(a, narrow);
  for (int64_t i = 0; i < kBytes; i += kVector) {
    hn::Stream(hn::Load(d, reinterpret_cast<const uint8_t*>(narrow) + i), d, reinterpret_cast<uint8_t*>(out) + i);
  }
}

// All bits where x holds.
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

// A loop over the elements becomes vector code of f64.
template <class F>
HWY_NOINLINE void ApplyInMemory(float* x, F f) {
  ForEach(kStrip, x, f, x);
}
template <class F>
HWY_INLINE Strip Apply(const Strip& a, F f) {
  alignas(64) float x[kStrip];
  Store(a, x);
  ApplyInMemory(x, f);
  return Load(x);
}

// Adds a strip to the lanes of a row's sum, its first element to lane `first`.
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

// The sum of the lanes, as a tree.
float SumOfLanes(float* lanes) {
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// As many lines as a strip of these elements has.
template <int kLocality>
HWY_INLINE void Fetch(const char* from, int64_t element_bytes) {
  for (int64_t i = 0; i < kStrip * element_bytes; i += 64) __builtin_prefetch(from + i, /*rw=*/0, kLocality);
}
// From an array that lies in memory, so far ahead of where it is read.
constexpr int64_t kFetchBytes = 8 << 10;

using Kind = StripFunction::Kind;
using Needs = StripFunction::Needs;

// An operand or a result of a step.
struct Place {
  char* memory;
  int64_t step_bytes;  // for each element; 0 of what is only as long as a strip
  bool streams;        // an output
  bool fetches;        // an array
  bool is_number;      // every element is the same
};

// A step and where its operands are.
struct PlacedStep {
  Kind kind;
  Place x, y, z;
};

// Each step may be loaded, kept, written and added up, too.
constexpr int kMaxPlacedSteps = 5 * StripBuilder::kMaxSteps;

struct Memory {
  alignas(64) float slots[StripBuilder::kMaxSteps][kStrip];
  alignas(64) float numbers[StripBuilder::kMaxOperands][kStrip];  // of this row, as often as a strip has elements
  alignas(64) float parts[2][kStrip];                             // x and y of a strip that is not full
  alignas(64) uint16_t small_part[kStrip];                        // x of bf16 or f16 of one
  alignas(64) float row_sums[StripBuilder::kMaxSteps][kSumLanes];
  PlacedStep steps[kMaxPlacedSteps];
};

// Of functions that change a strip. Without it the compiler calls some, and the strip leaves its registers.
#define AQT_ATTR HWY_ATTR __attribute__((always_inline))

// The elements from `offset` on, `count` of them, the first one in this column. kFull: a whole strip.
template <bool kFull, Needs kNeeds>
HWY_INLINE void RunStrip(absl::Span<const PlacedStep> steps, int64_t offset, int64_t column, int64_t count,
                         Memory& memory) {
  const auto at = [&](const Place& place, int part) AQT_ATTR -> const float* {
    char* from = place.memory + offset * place.step_bytes;
    if (kFull && place.fetches) Fetch<3>(from + kFetchBytes, sizeof(float));
    if (kFull || place.step_bytes == 0) return reinterpret_cast<const float*>(from);
    std::memcpy(memory.parts[part], from, count * place.step_bytes);
    return memory.parts[part];
  };
  Strip a = Make([](int64_t) AQT_ATTR { return hn::Zero(Tag()); });
  const auto map = [&](const Place& place, auto f) AQT_ATTR {
    const float* x = at(place, 0);
    if (place.is_number) {
      const V number = LoadAt(x, 0);
      a = Map(a, [&](V v, int64_t) AQT_ATTR { return f(v, number); });
    } else {
      a = Map(a, [&](V v, int64_t i) AQT_ATTR { return f(v, LoadAt(x, i)); });
    }
  };
  const auto number_at = [](const Place& place)
                             AQT_ATTR { return LoadAt(reinterpret_cast<const float*>(place.memory), 0); };
  // f(a * y, x)
  const auto map_product = [&](const PlacedStep& step, auto f) AQT_ATTR {
    const V y = number_at(step.y);
    map(step.x, [&](V v, V w) AQT_ATTR { return f(hn::Mul(v, y), w); });
  };
  // f(a, x * y * z), or f(a, x * y)
  const auto map_loaded = [&](const PlacedStep& step, auto f) AQT_ATTR {
    const V y = number_at(step.y);
    if (step.z.memory == nullptr) {
      map(step.x, [&](V v, V w) AQT_ATTR { return f(v, hn::Mul(w, y)); });
    } else {
      const V z = number_at(step.z);
      map(step.x, [&](V v, V w) AQT_ATTR { return f(v, hn::Mul(hn::Mul(w, y), z)); });
    }
  };
  const auto test = [&](const Place& place, auto f)
                        AQT_ATTR { map(place, [&](V v, V w) AQT_ATTR { return hn::VecFromMask(Tag(), f(v, w)); }); };
  const auto write = [&](const Place& place, auto store) AQT_ATTR {
    char* to = place.memory + offset * place.step_bytes;
    if (kFull || place.step_bytes == 0) return store(to);
    store(reinterpret_cast<char*>(memory.parts[0]));
    std::memcpy(to, memory.parts[0], count * place.step_bytes);
  };
  // T is that of the argument, a null pointer.
  const auto load_small = [&]<class T>(const Place& place, T*) AQT_ATTR {
    const char* from = place.memory + offset * place.step_bytes;
    if (kFull && place.fetches) Fetch<3>(from + kFetchBytes, sizeof(T));
    if (!kFull) from = static_cast<const char*>(std::memcpy(memory.small_part, from, count * sizeof(T)));
    a = LoadSmall(reinterpret_cast<const T*>(from));
  };
  const auto write_small = [&]<class T>(const Place& place, T*) AQT_ATTR {
    char* to = place.memory + offset * place.step_bytes;
    if (kFull && place.streams) return StoreSmallStreamed(a, reinterpret_cast<T*>(to));
    if (kFull) return StoreSmall(a, reinterpret_cast<T*>(to));
    StoreSmall(a, reinterpret_cast<T*>(memory.small_part));
    std::memcpy(to, memory.small_part, count * sizeof(T));
  };
  constexpr bool kSmall = kNeeds >= Needs::kSmallFloats, kFunctions = kNeeds >= Needs::kFunctions;
  const auto apply = [&](auto f) AQT_ATTR {
    if constexpr (kFunctions) a = Apply(a, f);
  };
  constexpr BFloat16* kBf16 = nullptr;
  constexpr Float16* kF16 = nullptr;
  for (const PlacedStep& step : steps) {
    switch (step.kind) {
      case Kind::kCopy: break;
      case Kind::kLoad: a = Load(at(step.x, 0)); break;
      case Kind::kLoadMul: {
        const V y = number_at(step.y);
        a = Map(Load(at(step.x, 0)), [&](V v, int64_t) AQT_ATTR { return hn::Mul(v, y); });
        break;
      }
      case Kind::kLoadBf16:
        if constexpr (kSmall) load_small(step.x, kBf16);
        break;
      case Kind::kLoadF16:
        if constexpr (kSmall) load_small(step.x, kF16);
        break;
      case Kind::kLoadBool: a = LoadBool(reinterpret_cast<const uint8_t*>(at(step.x, 0))); break;
      case Kind::kWrite:
        if (kFull && step.x.streams) {
          StoreStreamed(a, reinterpret_cast<float*>(step.x.memory + offset * step.x.step_bytes));
          break;
        }
        [[fallthrough]];
      case Kind::kKeep: write(step.x, [&](char* to) AQT_ATTR { Store(a, reinterpret_cast<float*>(to)); }); break;
      case Kind::kWriteBf16:
        if constexpr (kSmall) write_small(step.x, kBf16);
        break;
      case Kind::kWriteF16:
        if constexpr (kSmall) write_small(step.x, kF16);
        break;
      case Kind::kWriteBool:
        write(step.x, [&](char* to) AQT_ATTR { StoreBool(a, reinterpret_cast<uint8_t*>(to)); });
        break;
      case Kind::kSumRow: {
        float* lanes = reinterpret_cast<float*>(step.x.memory);
        if (kFull) {
          AddToLanes(a, column, lanes);
        } else {
          Store(a, memory.parts[0]);
          for (int64_t i = 0; i < count; ++i) lanes[(column + i) % kSumLanes] += memory.parts[0][i];
        }
        break;
      }
      case Kind::kAdd: map(step.x, [](V v, V w) AQT_ATTR { return hn::Add(v, w); }); break;
      case Kind::kSub: map(step.x, [](V v, V w) AQT_ATTR { return hn::Sub(v, w); }); break;
      case Kind::kSubFrom: map(step.x, [](V v, V w) AQT_ATTR { return hn::Sub(w, v); }); break;
      case Kind::kMul: map(step.x, [](V v, V w) AQT_ATTR { return hn::Mul(v, w); }); break;
      case Kind::kMulAdd: map_product(step, [](V v, V w) AQT_ATTR { return hn::Add(v, w); }); break;
      case Kind::kMulSub: map_product(step, [](V v, V w) AQT_ATTR { return hn::Sub(v, w); }); break;
      case Kind::kMulSubFrom: map_product(step, [](V v, V w) AQT_ATTR { return hn::Sub(w, v); }); break;
      case Kind::kMulMul: map_product(step, [](V v, V w) AQT_ATTR { return hn::Mul(v, w); }); break;
      case Kind::kAddProduct: map_loaded(step, [](V v, V w) AQT_ATTR { return hn::Add(v, w); }); break;
      case Kind::kSubProduct: map_loaded(step, [](V v, V w) AQT_ATTR { return hn::Sub(v, w); }); break;
      case Kind::kSubFromProduct: map_loaded(step, [](V v, V w) AQT_ATTR { return hn::Sub(w, v); }); break;
      case Kind::kDiv: map(step.x, [](V v, V w) AQT_ATTR { return hn::Div(v, w); }); break;
      case Kind::kDivInto: map(step.x, [](V v, V w) AQT_ATTR { return hn::Div(w, v); }); break;
      case Kind::kMax: map(step.x, [](V v, V w) AQT_ATTR { return MaximumOf(v, w); }); break;
      case Kind::kMin: map(step.x, [](V v, V w) AQT_ATTR { return MinimumOf(v, w); }); break;
      case Kind::kEq: test(step.x, [](V v, V w) AQT_ATTR { return hn::Eq(v, w); }); break;
      case Kind::kNe: test(step.x, [](V v, V w) AQT_ATTR { return hn::Not(hn::Eq(v, w)); }); break;  // also of NaN
      case Kind::kLt: test(step.x, [](V v, V w) AQT_ATTR { return hn::Lt(v, w); }); break;
      case Kind::kLe: test(step.x, [](V v, V w) AQT_ATTR { return hn::Le(v, w); }); break;
      case Kind::kGt: test(step.x, [](V v, V w) AQT_ATTR { return hn::Gt(v, w); }); break;
      case Kind::kGe: test(step.x, [](V v, V w) AQT_ATTR { return hn::Ge(v, w); }); break;
      case Kind::kSelect: {
        const float *x = at(step.x, 0), *y = at(step.y, 1);
        a = Map(
            a, [=](V v, int64_t i) AQT_ATTR { return hn::IfThenElse(hn::MaskFromVec(v), LoadAt(x, i), LoadAt(y, i)); });
        break;
      }
      case Kind::kRoundBf16:
        if constexpr (kSmall) a = RoundTo<BFloat16>(a);
        break;
      case Kind::kRoundF16:
        if constexpr (kSmall) a = RoundTo<Float16>(a);
        break;
      case Kind::kNeg: a = Map(a, [](V v, int64_t) AQT_ATTR { return hn::Neg(v); }); break;
      case Kind::kAbs: a = Map(a, [](V v, int64_t) AQT_ATTR { return hn::Abs(v); }); break;
      case Kind::kFlush: a = Map(a, [](V v, int64_t) AQT_ATTR { return FlushOf(v); }); break;
      case Kind::kSqrt: a = Map(a, [](V v, int64_t) AQT_ATTR { return hn::Sqrt(v); }); break;
      case Kind::kRsqrt: apply([](float v) { return static_cast<float>(Rsqrt(v)); }); break;
      case Kind::kExp:
        if constexpr (kFunctions) a = Map(a, [](V v, int64_t) AQT_ATTR { return ExpOf(Tag(), v); });
        break;
      case Kind::kExpm1: apply([](float v) { return Expm1(v); }); break;
      case Kind::kLog: apply([](float v) { return Log(v); }); break;
      case Kind::kLog1p: apply([](float v) { return Log1p(v); }); break;
      case Kind::kTanh: apply([](float v) { return Tanh(v); }); break;
      case Kind::kLogistic: apply([](float v) { return Logistic(v); }); break;
      case Kind::kErf: apply([](float v) { return Erf(v); }); break;
    }
  }
}

#undef AQT_ATTR

// Of an element that a step of this kind writes to an output; 0 if it writes none.
int64_t WrittenBytes(Kind kind) {
  switch (kind) {
    case Kind::kWrite: return sizeof(float);
    case Kind::kWriteBf16:
    case Kind::kWriteF16: return sizeof(uint16_t);
    case Kind::kWriteBool: return sizeof(bool);
    default: return 0;
  }
}

template <Needs kNeeds>
void RunRows(absl::Span<const StripFunction::Step> steps, absl::Span<const StripFunction::Number> numbers,
             absl::Span<const int> row_sums, const StripCall& call) {
  Memory memory;
  if (call.columns % kStrip != 0) {
    std::fill_n(memory.parts[0], 2 * kStrip, 0.0f);
    std::fill_n(memory.small_part, kStrip, uint16_t{0});
  }
  const auto place = [&](Kind kind, const StripFunction::Operand& operand) -> Place {
    const auto of_strip = [](float* x) { return Place{reinterpret_cast<char*>(x), 0, false, false, false}; };
    const auto array = [](const void* x, int64_t bytes) {
      return Place{static_cast<char*>(const_cast<void*>(x)), bytes, false, false, false};
    };
    const auto input = [&](int64_t bytes) {
      Place place = array(call.arrays[operand.index], bytes);
      place.fetches = operand.index < 32 && (call.fetched >> operand.index & 1) != 0;
      return place;
    };
    if (const int64_t bytes = WrittenBytes(kind); bytes != 0) {
      Place output = array(call.outputs[operand.index], bytes);
      output.streams = (call.streamed >> operand.index & 1) != 0;
      return output;
    }
    switch (operand.where) {
      case Where::kNone: break;
      case Where::kArray: return input(sizeof(float));
      case Where::kBf16Array:
      case Where::kF16Array: return input(sizeof(uint16_t));
      case Where::kBoolArray: return array(call.arrays[operand.index], sizeof(bool));
      case Where::kNumber: {
        Place number = of_strip(memory.numbers[operand.index]);
        number.is_number = true;
        return number;
      }
      case Where::kSlot: return of_strip(memory.slots[operand.index]);
      case Where::kRowSum: return of_strip(memory.row_sums[operand.index]);
    }
    return {nullptr, 0, false, false, false};
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [kind, x, y, z] = steps[i];
    memory.steps[i] = {kind, place(kind, x), place(kind, y), place(kind, z)};
  }
  const absl::Span<const PlacedStep> placed(memory.steps, steps.size());
  const auto set_number = [&](size_t i, int64_t row) { std::fill_n(memory.numbers[i], kStrip, call.numbers[i][row]); };
  bool any_per_row = false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    any_per_row |= numbers[i].per_row;
    if (!numbers[i].per_row && call.rows > 0) set_number(i, 0);
  }
  const bool by_rows = any_per_row || !row_sums.empty();
  const int64_t rows = by_rows ? call.rows : std::min<int64_t>(call.rows, 1);
  const int64_t columns = by_rows ? call.columns : call.rows * call.columns;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i].per_row) set_number(i, row);
    }
    for (size_t i = 0; i < row_sums.size(); ++i) std::fill_n(memory.row_sums[i], kSumLanes, 0.0f);
    const int64_t first = row * columns;
    int64_t column = 0;
    for (; column + kStrip <= columns; column += kStrip) {
      if (call.ahead != nullptr) {
        // Which a few strips' time brings into the L2 cache.
        Fetch<2>(reinterpret_cast<const char*>(call.ahead + first + column), sizeof(float));
      }
      RunStrip<true, kNeeds>(placed, first + column, column, kStrip, memory);
    }
    if (column < columns) RunStrip<false, kNeeds>(placed, first + column, column, columns - column, memory);
    for (size_t i = 0; i < row_sums.size(); ++i) {
      static_cast<float*>(call.outputs[row_sums[i]])[row] = SumOfLanes(memory.row_sums[i]);
    }
  }
  if (call.streamed != 0) hwy::FlushStream();  // before another thread may read
}

void RunRowsAs(Needs needs, absl::Span<const StripFunction::Step> steps,
               absl::Span<const StripFunction::Number> numbers, absl::Span<const int> row_sums, const StripCall& call) {
  switch (needs) {
    case Needs::kArithmetic: return RunRows<Needs::kArithmetic>(steps, numbers, row_sums, call);
    case Needs::kFunctions: return RunRows<Needs::kFunctions>(steps, numbers, row_sums, call);
    case Needs::kSmallFloats: return RunRows<Needs::kSmallFloats>(steps, numbers, row_sums, call);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

void RunStrips(absl::Span<const StripFunction::Step> steps, absl::Span<const StripFunction::Number> numbers,
               absl::Span<const int> row_sums, StripFunction::Needs needs, const StripCall& call, Target target) {
  AQT_HWY_DISPATCH(target, RunRowsAs)(needs, steps, numbers, row_sums, call);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
