// Runs the steps of a StripFunction, strip by strip.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/strip.h"
#include "aqt/kernels/elementwise/strip_internal.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/elementwise/strip_run.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/elementwise/strip_steps-inl.h"

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
  return (kFull ? step->full : step->part)(step, memory, offset, column, count, a.v0, a.v1, a.v2, a.v3, a.v4, a.v5,
                                           a.v6, a.v7);
}

void EndOfSteps(const PlacedStep*, Memory*, int64_t, int64_t, int64_t, V, V, V, V, V, V, V, V) {}

// Both functions of a step.
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

// `streams`: whether an output is streamed.
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

// The bytes per element that a step of this kind writes to an output; 0 if it writes none.
int64_t WrittenBytes(Kind kind) {
  switch (kind) {
    case Kind::kWrite: return sizeof(float);
    case Kind::kWriteBf16:
    case Kind::kWriteF16: return sizeof(uint16_t);
    case Kind::kWriteBool: return sizeof(bool);
    default: return 0;
  }
}

// A place that each call redirects to its array or output.
struct MovedPlace {
  char** memory;
  bool is_output;
  uint8_t index;
};

// The start of prepared memory, with pointers to the rest.
struct Prepared {
  internal::RunPrepared run;
  bool by_rows;                    // some operand is a single row; otherwise dense rows are treated as one
  int64_t ahead_begin, ahead_end;  // bytes of each strip to prefetch from StripCall::ahead; whole lines
  PlacedStep* steps;
  float (*numbers)[kStrip];  // each repeated for all elements of a strip
  float (*slots)[kStrip];
  float (*row_sums)[kSumLanes];
  absl::Span<MovedPlace> moved;
  absl::Span<int> per_row;      // indices of numbers
  absl::Span<int> sum_outputs;  // outputs of the row sums
  Memory memory;
};

// Allocates consecutive arrays, each aligned to a cache line.
class Room {
 public:
  // The offset of the array's first byte.
  template <class T>
  int64_t Take(size_t count) {
    const int64_t begin = bytes_;
    bytes_ += RoundUp(static_cast<int64_t>(count * sizeof(T)), kLine);
    return begin;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kLine = 64;
  int64_t bytes_ = 0;
};

// Offsets within prepared memory.
struct Layout {
  explicit Layout(const internal::StripParts& parts)
      : prepared(room.Take<Prepared>(1)),
        steps(room.Take<PlacedStep>(parts.steps.size() + 1)),
        numbers(room.Take<float[kStrip]>(parts.numbers.size())),
        slots(room.Take<float[kStrip]>(parts.num_slots)),
        row_sums(room.Take<float[kSumLanes]>(parts.row_sums.size())),
        moved(room.Take<MovedPlace>(3 * parts.steps.size())),
        per_row(room.Take<int>(parts.numbers.size())),
        sum_outputs(room.Take<int>(parts.row_sums.size())) {}

  Room room;
  int64_t prepared, steps, numbers, slots, row_sums, moved, per_row, sum_outputs;
};

// Leaves the memory of matrices empty; each call sets it.
Place PlaceOf(Kind kind, const StripFunction::Operand& operand, const StripCall& call, const Prepared& prepared) {
  const auto of_strip = [](float* x) { return Place{reinterpret_cast<char*>(x), 0, false, false, 0}; };
  const auto array = [](int64_t bytes) { return Place{nullptr, bytes, false, false, 0}; };
  const auto input = [&](int64_t bytes) {
    Place place = array(bytes);
    place.is_row = operand.is_row;
    const bool fetches = operand.index < 32 && (call.fetched >> operand.index & 1) != 0;
    place.fetch = fetches ? kFetchBytes / std::popcount(call.fetched) : 0;
    return place;
  };
  if (const int64_t bytes = WrittenBytes(kind); bytes != 0) return array(bytes);
  switch (operand.where) {
    case Where::kNone: break;
    case Where::kArray: return input(sizeof(float));
    case Where::kBf16Array:
    case Where::kF16Array: return input(sizeof(uint16_t));
    case Where::kBoolArray: return array(sizeof(bool));
    case Where::kNumber: {
      Place number = of_strip(prepared.numbers[operand.index]);
      number.is_number = true;
      return number;
    }
    case Where::kSlot: return of_strip(prepared.slots[operand.index]);
    case Where::kRowSum: return of_strip(prepared.row_sums[operand.index]);
  }
  return {};
}

bool IsMoved(const StripFunction::Operand& operand) {
  return operand.where == Where::kArray || operand.where == Where::kBf16Array || operand.where == Where::kF16Array ||
         operand.where == Where::kBoolArray;
}

void SetNumber(const Prepared& prepared, const StripCall& call, int number, int64_t row) {
  std::fill_n(prepared.numbers[number], kStrip, call.numbers[number][row]);
}

void Run(const StripCall& call, void* memory) {
  Prepared& prepared = *static_cast<Prepared*>(memory);
  for (const auto& [place, is_output, index] : prepared.moved) {
    *place = static_cast<char*>(is_output ? call.outputs[index] : const_cast<void*>(call.arrays[index]));
  }
  const PlacedStep* const steps = prepared.steps;
  const V zero = hn::Zero(Tag());
  const bool by_rows = prepared.by_rows || call.row_stride != 0;
  const int64_t rows = by_rows ? call.rows : std::min<int64_t>(call.rows, 1);
  const int64_t columns = by_rows ? call.columns : call.rows * call.columns;
  const int64_t row_stride = call.row_stride != 0 ? call.row_stride : columns;
  for (int64_t row = 0; row < rows; ++row) {
    for (const int number : prepared.per_row) SetNumber(prepared, call, number, row);
    for (size_t i = 0; i < prepared.sum_outputs.size(); ++i) std::fill_n(prepared.row_sums[i], kSumLanes, 0.0f);
    const int64_t first = row * row_stride;
    int64_t column = 0;
    for (; column + kStrip <= columns; column += kStrip) {
      if (call.ahead != nullptr) {
        // A few strips later it is in the L2 cache.
        const char* const next = reinterpret_cast<const char*>(call.ahead + first + column);
        for (int64_t i = prepared.ahead_begin; i < prepared.ahead_end; i += 64) {
          __builtin_prefetch(next + i, /*rw=*/0, /*locality=*/2);
        }
      }
      steps->full(steps, &prepared.memory, first + column, column, kStrip, zero, zero, zero, zero, zero, zero, zero,
                  zero);
    }
    if (column < columns) {
      steps->part(steps, &prepared.memory, first + column, column, columns - column, zero, zero, zero, zero, zero, zero,
                  zero, zero);
    }
    for (size_t i = 0; i < prepared.sum_outputs.size(); ++i) {
      static_cast<float*>(call.outputs[prepared.sum_outputs[i]])[row] = SumOfLanes(prepared.row_sums[i]);
    }
  }
}

// Sets the steps, and records which of their places move.
void PlaceSteps(absl::Span<const StripFunction::Step> steps, const StripCall& call, Prepared& prepared,
                MovedPlace* moved) {
  PlacedStep* placed = prepared.steps;
  MovedPlace* end = moved;
  for (const auto& [kind, x, y, z] : steps) {
    *placed = {nullptr, nullptr, PlaceOf(kind, x, call, prepared), PlaceOf(kind, y, call, prepared),
               PlaceOf(kind, z, call, prepared)};
    const bool writes = WrittenBytes(kind) != 0;
    const auto [full, part] = FunctionsOf(kind, *placed, writes && x.index < 32 && (call.streamed >> x.index & 1) != 0);
    placed->full = full;
    placed->part = part;
    if (IsMoved(x)) *end++ = {&placed->x.memory, writes, x.index};
    if (IsMoved(y)) *end++ = {&placed->y.memory, false, y.index};
    if (IsMoved(z)) *end++ = {&placed->z.memory, false, z.index};
    ++placed;
  }
  *placed = {&EndOfSteps, &EndOfSteps, {}, {}, {}};
  prepared.moved = {moved, static_cast<size_t>(end - moved)};
}

void Prepare(const internal::StripParts& parts, const StripCall& call, void* memory) {
  const Layout layout(parts);
  const auto at = [memory](int64_t offset) { return static_cast<void*>(static_cast<char*>(memory) + offset); };
  Prepared& prepared = *static_cast<Prepared*>(at(layout.prepared));
  prepared.run = &Run;
  prepared.steps = static_cast<PlacedStep*>(at(layout.steps));
  prepared.numbers = static_cast<float(*)[kStrip]>(at(layout.numbers));
  prepared.slots = static_cast<float(*)[kStrip]>(at(layout.slots));
  prepared.row_sums = static_cast<float(*)[kSumLanes]>(at(layout.row_sums));
  std::fill_n(prepared.memory.parts[0], 2 * kStrip, 0.0f);
  std::fill_n(prepared.memory.small_part, kStrip, uint16_t{0});
  PlaceSteps(parts.steps, call, prepared, static_cast<MovedPlace*>(at(layout.moved)));

  int* const per_row = static_cast<int*>(at(layout.per_row));
  size_t num_per_row = 0;
  for (int i = 0; i < static_cast<int>(parts.numbers.size()); ++i) {
    if (parts.numbers[i].per_row) per_row[num_per_row++] = i;
    else SetNumber(prepared, call, i, 0);
  }
  prepared.per_row = {per_row, num_per_row};
  int* const sum_outputs = static_cast<int*>(at(layout.sum_outputs));
  std::copy(parts.row_sums.begin(), parts.row_sums.end(), sum_outputs);
  prepared.sum_outputs = {sum_outputs, parts.row_sums.size()};

  const auto reads_row = [](const StripFunction::Step& step) {
    return step.x.is_row || step.y.is_row || step.z.is_row;
  };
  prepared.by_rows =
      num_per_row > 0 || !parts.row_sums.empty() || std::any_of(parts.steps.begin(), parts.steps.end(), reads_row);
  const auto ahead_at = [](float part) { return static_cast<int64_t>(part * kStrip * sizeof(float) / 64) * 64; };
  prepared.ahead_begin = ahead_at(call.ahead_part.begin);
  prepared.ahead_end = ahead_at(call.ahead_part.end);
}

int64_t Bytes(const internal::StripParts& parts) { return Layout(parts).room.bytes(); }

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {
namespace internal {

int64_t PreparedStripBytes(const StripParts& parts, Target target) { return AQT_HWY_DISPATCH(target, Bytes)(parts); }

void PrepareStrip(const StripParts& parts, const StripCall& call, void* prepared, Target target) {
  AQT_HWY_DISPATCH(target, Prepare)(parts, call, prepared);
}

}  // namespace internal

void FinishStreams() { hwy::FlushStream(); }

}  // namespace aqt::kernels
#endif  // HWY_ONCE
