// The steps of a StripFunction, one strip after the other.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "aqt/kernels/strip.h"
#include "aqt/kernels/strip_internal.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/strip_run.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/strip_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

using Kind = StripFunction::Kind;
using Where = StripFunction::Operand::Where;

template <class S, bool kFull>
void RunStep(const PlacedStep* step, Memory* memory, int64_t offset, int64_t column, int64_t count, V v0, V v1, V v2,
             V v3, V v4, V v5, V v6, V v7) {
  Strip a{v0, v1, v2, v3, v4, v5, v6, v7};
  S::template Run<kFull>(*step, *memory, {offset, column, count}, a);
  ++step;
  return step->run(step, memory, offset, column, count, a.v0, a.v1, a.v2, a.v3, a.v4, a.v5, a.v6, a.v7);
}

void EndOfSteps(const PlacedStep*, Memory*, int64_t, int64_t, int64_t, V, V, V, V, V, V, V, V) {}

// Both functions of a step: of whole strips and of others.
struct StepFunctions {
  StepFunction full, part;
};
template <class S>
constexpr StepFunctions Of() {
  return {&RunStep<S, true>, &RunStep<S, false>};
}
template <class F>
StepFunctions OfMap2(const PlacedStep& step) {
  return step.x.is_number ? Of<Map2<F, true>>() : Of<Map2<F, false>>();
}
template <class F>
StepFunctions OfProducts(const PlacedStep& step) {
  return step.x.is_number ? Of<OfProduct<F, true>>() : Of<OfProduct<F, false>>();
}
template <class F>
StepFunctions OfWithProduct(const PlacedStep& step) {
  return step.z.memory != nullptr ? Of<WithProduct<F, true>>() : Of<WithProduct<F, false>>();
}

// `streams`: of an output.
StepFunctions FunctionsOf(Kind kind, const PlacedStep& step, bool streams) {
  switch (kind) {
    case Kind::kLoad: return Of<LoadStep>();
    case Kind::kLoadBf16: return Of<LoadSmallStep<BFloat16>>();
    case Kind::kLoadF16: return Of<LoadSmallStep<Float16>>();
    case Kind::kLoadBool: return Of<LoadBoolStep>();
    case Kind::kKeep: return Of<WriteStep<false>>();
    case Kind::kWrite: return streams ? Of<WriteStep<true>>() : Of<WriteStep<false>>();
    case Kind::kWriteBf16:
      return streams ? Of<WriteSmallStep<BFloat16, true>>() : Of<WriteSmallStep<BFloat16, false>>();
    case Kind::kWriteF16: return streams ? Of<WriteSmallStep<Float16, true>>() : Of<WriteSmallStep<Float16, false>>();
    case Kind::kWriteBool: return Of<WriteBoolStep>();
    case Kind::kSumRow: return Of<SumRowStep>();
    case Kind::kAdd: return OfMap2<Sum>(step);
    case Kind::kSub: return OfMap2<Difference>(step);
    case Kind::kSubFrom: return OfMap2<DifferenceFrom>(step);
    case Kind::kMul: return OfMap2<Product>(step);
    case Kind::kSquare: return Of<Map1<Square>>();
    case Kind::kLoadAdd: return Of<LoadTwo<Sum>>();
    case Kind::kLoadSub: return Of<LoadTwo<Difference>>();
    case Kind::kLoadDiv: return step.y.is_number ? Of<LoadDivByNumber>() : Of<LoadTwo<Quotient>>();
    case Kind::kMulAddEach: return Of<OfProduct<Sum, false, true>>();
    case Kind::kLoadMul: return Of<LoadProduct>();
    case Kind::kMulAdd: return OfProducts<Sum>(step);
    case Kind::kMulSub: return OfProducts<Difference>(step);
    case Kind::kMulSubFrom: return OfProducts<DifferenceFrom>(step);
    case Kind::kMulMul: return OfProducts<Product>(step);
    case Kind::kAddProduct: return OfWithProduct<Sum>(step);
    case Kind::kSubProduct: return OfWithProduct<Difference>(step);
    case Kind::kSubFromProduct: return OfWithProduct<DifferenceFrom>(step);
    case Kind::kDiv: return step.x.is_number ? Of<DivByNumber>() : Of<Map2<Quotient, false>>();
    case Kind::kDivInto: return OfMap2<QuotientInto>(step);
    case Kind::kMax: return OfMap2<Larger>(step);
    case Kind::kMin: return OfMap2<Smaller>(step);
    case Kind::kEq: return OfMap2<IsEqual>(step);
    case Kind::kNe: return OfMap2<IsUnequal>(step);
    case Kind::kLt: return OfMap2<IsBelow>(step);
    case Kind::kLe: return OfMap2<IsAtMost>(step);
    case Kind::kGt: return OfMap2<IsAbove>(step);
    case Kind::kGe: return OfMap2<IsAtLeast>(step);
    case Kind::kSelect: return Of<SelectStep>();
    case Kind::kCopy: break;  // no step
    case Kind::kRoundBf16: return Of<Map1<RoundedBf16>>();
    case Kind::kRoundF16: return Of<Map1<RoundedF16>>();
    case Kind::kNeg: return Of<Map1<Negative>>();
    case Kind::kAbs: return Of<Map1<Absolute>>();
    case Kind::kFlush: return Of<Map1<Flushed>>();
    case Kind::kSqrt: return Of<Map1<Root>>();
    case Kind::kRsqrt: return Of<Map1<InverseRoot>>();
    case Kind::kExp: return Of<Map1<Exponential>>();
    case Kind::kExpm1: return Of<Map1<ExponentialMinus1>>();
    case Kind::kLog: return Of<Map1<Logarithm>>();
    case Kind::kLog1p: return Of<Map1<LogarithmOf1Plus>>();
    case Kind::kTanh: return Of<Map1<HyperbolicTangent>>();
    case Kind::kLogistic: return Of<Map1<Sigmoid>>();
    case Kind::kErf: return Of<Map1<ErrorFunction>>();
  }
  return {nullptr, nullptr};
}

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

Place PlaceOf(Kind kind, const StripFunction::Operand& operand, const StripCall& call, Memory& memory) {
  const auto of_strip = [](float* x) { return Place{reinterpret_cast<char*>(x), 0, false, false, 0}; };
  const auto array = [](const void* x, int64_t bytes) {
    return Place{static_cast<char*>(const_cast<void*>(x)), bytes, false, false, 0};
  };
  const auto input = [&](int64_t bytes) {
    Place place = array(call.arrays[operand.index], bytes);
    place.is_row = operand.is_row;
    const bool fetches = operand.index < 32 && (call.fetched >> operand.index & 1) != 0;
    place.fetch = fetches ? kFetchBytes / std::popcount(call.fetched) : 0;
    return place;
  };
  if (const int64_t bytes = WrittenBytes(kind); bytes != 0) return array(call.outputs[operand.index], bytes);
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
  return {};
}

// Sets the steps of `memory`.
void PlaceSteps(absl::Span<const StripFunction::Step> steps, const StripCall& call, Memory& memory) {
  int placed = 0;
  const auto add = [&](StepFunctions functions, const PlacedStep& step) {
    memory.full_steps[placed] = memory.part_steps[placed] = step;
    memory.full_steps[placed].run = functions.full;
    memory.part_steps[placed++].run = functions.part;
  };
  for (const auto& [kind, x, y, z] : steps) {
    const PlacedStep step{nullptr, PlaceOf(kind, x, call, memory), PlaceOf(kind, y, call, memory),
                          PlaceOf(kind, z, call, memory)};
    const bool writes = WrittenBytes(kind) != 0;
    add(FunctionsOf(kind, step, writes && x.index < 32 && (call.streamed >> x.index & 1) != 0), step);
  }
  add({&EndOfSteps, &EndOfSteps}, {});
}

void RunRows(absl::Span<const StripFunction::Step> steps, absl::Span<const StripFunction::Number> numbers,
             absl::Span<const int> row_sums, const StripCall& call) {
  Memory memory;
  if (call.columns % kStrip != 0) {
    std::fill_n(memory.parts[0], 2 * kStrip, 0.0f);
    std::fill_n(memory.small_part, kStrip, uint16_t{0});
  }
  PlaceSteps(steps, call, memory);
  const auto run = [&](const PlacedStep* first, int64_t offset, int64_t column, int64_t count) HWY_ATTR {
    const V zero = hn::Zero(Tag());
    first->run(first, &memory, offset, column, count, zero, zero, zero, zero, zero, zero, zero, zero);
  };
  const auto set_number = [&](size_t i, int64_t row) { std::fill_n(memory.numbers[i], kStrip, call.numbers[i][row]); };
  const auto reads_row = [](const StripFunction::Step& step) {
    return step.x.is_row || step.y.is_row || step.z.is_row;
  };
  bool any_per_row = std::any_of(steps.begin(), steps.end(), reads_row);
  for (size_t i = 0; i < numbers.size(); ++i) {
    any_per_row |= numbers[i].per_row;
    if (!numbers[i].per_row && call.rows > 0) set_number(i, 0);
  }
  const bool by_rows = any_per_row || !row_sums.empty();
  const int64_t rows = by_rows ? call.rows : std::min<int64_t>(call.rows, 1);
  const int64_t columns = by_rows ? call.columns : call.rows * call.columns;
  // Bytes of each strip of what is ahead; whole lines.
  const auto ahead_at = [](float part) { return static_cast<int64_t>(part * kStrip * sizeof(float) / 64) * 64; };
  const int64_t ahead_begin = ahead_at(call.ahead_part.begin), ahead_end = ahead_at(call.ahead_part.end);
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
        const char* const next = reinterpret_cast<const char*>(call.ahead + first + column);
        for (int64_t i = ahead_begin; i < ahead_end; i += 64) __builtin_prefetch(next + i, /*rw=*/0, /*locality=*/2);
      }
      run(memory.full_steps, first + column, column, kStrip);
    }
    if (column < columns) run(memory.part_steps, first + column, column, columns - column);
    for (size_t i = 0; i < row_sums.size(); ++i) {
      static_cast<float*>(call.outputs[row_sums[i]])[row] = SumOfLanes(memory.row_sums[i]);
    }
  }
  if (call.streamed != 0) hwy::FlushStream();  // before another thread may read
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

void RunStrips(absl::Span<const StripFunction::Step> steps, absl::Span<const StripFunction::Number> numbers,
               absl::Span<const int> row_sums, const StripCall& call, Target target) {
  AQT_HWY_DISPATCH(target, RunRows)(steps, numbers, row_sums, call);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
