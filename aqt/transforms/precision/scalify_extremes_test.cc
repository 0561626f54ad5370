// Programs with zeros, infinities, NaN, subnormal and large numbers among their inputs and constants: Scalify changes
// neither their values nor the positions of infinities and NaN.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random_programs.h"
#include "aqt/testing/same_bits.h"
#include "aqt/transforms/precision/scaled.h"
#include "aqt/transforms/precision/scalify.h"

namespace aqt {
namespace {

using Values = absl::Span<const Value>;
constexpr float kInf = std::numeric_limits<float>::infinity();
const Shape kShape{4, 4};

// `large`: includes numbers near the limits of dtypes.
double Special(std::mt19937& random, bool large) {
  constexpr float kNumbers[] = {0,     -0.0f, kInf,  -kInf,    NAN,      0,      kInf,  1,          -3,
                                1e-6f, 1e4f,  65504, 0x1p-24f, 0x1p-14f, 1e-40f, 3e38f, -0x1p-126f, 1e20f};
  return kNumbers[random() % (large ? std::size(kNumbers) : 9)];
}

// One operation on earlier values, constants, a plain scalar and a plain array.
class Step {
 public:
  Step(std::mt19937& random, bool large, Values values, Values in)
      : random_(random), large_(large), values_(values), in_(in) {}

  Value operator()() {
    const Value x = Any(), y = Any();
    switch (random_() % 31) {
      case 0: return x + y;
      case 1: return x - y;
      case 2: return x * y;
      case 3: return x / y;
      case 4: return ops::Max(x, y);
      case 5: return ops::Min(x, y);
      case 6: return ops::Select(ops::Less(x, y), x, y);
      case 7: return ops::Select(ops::Greater(x, y), Any(), Any());
      case 8: return ops::MatMul(x, y);
      case 9: return ops::Exp(x);
      case 10: return ops::Sin(x);
      case 11: return ops::Sign(x);
      case 12: return ops::Tanh(x);
      case 13: return ops::IntegerPow(x, static_cast<int>(random_() % 8) - 3);
      case 14: return Rows(ops::ReduceSum(x, {1}, true));
      case 15: return Rows(ops::ReduceProd(x, {1}, true));
      case 16: return Rows(ops::ReduceMax(x, {1}, true));
      case 17: return Rows(ops::ReduceMin(x, {1}, true));
      case 18: return ops::Slice(ops::Concatenate({{x, y}}, 0), {2, 0}, {6, 4});
      case 19: return ops::Clamp(x, y, Any());
      case 20: return ops::Pow(ops::Abs(x), y);
      case 21: return ops::DynamicRescaleMax(x);
      case 22: return ops::DynamicRescaleL1(x);
      case 23: return ops::DynamicRescaleL2(x);
      case 24: return ops::SetScaling(x, std::ldexp(1.0, static_cast<int>(random_() % 9) - 4));
      case 25: return ops::CumulativeSum(x, 0);
      case 26: {
        const Value e = ops::Exp(x - Rows(ops::ReduceMax(x, {1}, true)));
        return e / Rows(ops::ReduceSum(e, {1}, true));
      }
      case 27: return ops::Cast(ops::IsFinite(x), x.dtype());
      case 28: return ops::Cast(ops::Cast(x, DType::kF32), x.dtype());
      case 29: return ops::StopScaling(x);
      default: return -x;
    }
  }

 private:
  Value Rows(const Value& x) { return ops::BroadcastTo(x, kShape); }
  Value Any() {
    const DType dtype = values_[0].dtype();
    switch (random_() % 8) {
      case 0: return ops::BroadcastTo(ValueOrNumber(Special(random_, large_)).As(dtype), kShape);
      case 1: return ops::BroadcastTo(in_[2], kShape);  // a scalar
      case 2: return in_[3];                            // a plain array
      default: return values_[random_() % values_.size()];
    }
  }
  std::mt19937& random_;
  const bool large_;
  Values values_, in_;
};

struct Drawn {
  Program program;
  SlotValues plain, scaled;
  ScalifyOptions options;
};

// An input with a power-of-two scale that keeps all of its numbers.
void AddScaled(const Slot& slot, const Array& numbers, double scale, Drawn& drawn) {
  const Array data = *(Value(numbers) * (1 / scale)).ToArray();
  const bool is_exact = SameBits(*(Value(data) * scale).ToArray(), numbers);
  drawn.options.scaled_inputs[slot] = DType::kF32;
  drawn.scaled[slot] = is_exact ? data : numbers;
  drawn.scaled[ScaleSlot(slot)] = Array::Scalar(is_exact ? static_cast<float>(scale) : 1.0f);
}

// A program of the first `steps` steps; each is an output.
Drawn Draw(uint32_t seed, int steps) {
  std::mt19937 random(seed);
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const DType dtype = kDTypes[seed % 3];
  const bool large = seed % 2 == 0;
  std::vector<Array> inputs;  // two that are scaled, a scalar, an array
  for (const Shape& shape : {kShape, kShape, Shape{}, kShape}) {
    std::vector<float> numbers(shape.num_elements());
    const bool has_special = random() % 3 == 0 || (shape.rank() == 0 && random() % 2 == 0);
    for (float& number : numbers) {
      const bool special = has_special && (shape.rank() == 0 || random() % 4 == 0);
      number = static_cast<float>(static_cast<int>(random() % 13) - 6) / 4;
      if (special) number = static_cast<float>(Special(random, large));
    }
    inputs.push_back(Cast(Array::FromSpan<float>(numbers, shape), dtype));
  }
  const auto trace = [&](Values in) {
    std::vector<Value> values = {in[0], in[1]};
    for (int i = 0; i < steps; ++i) {
      std::mt19937 own(seed + 100000 * static_cast<uint32_t>(i + 1));
      values.push_back(Step(own, large, values, in)());
    }
    return std::vector<Value>(values.begin() + 2, values.end());
  };
  Drawn drawn;
  drawn.program = *testing::TraceWith(trace, inputs);
  drawn.options.rules = {.rounding = random() % 2 == 0 ? ScaleRounding::kDown : ScaleRounding::kUp,
                         .scale_dtype = DType::kF32};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Slot& slot = drawn.program.inputs[i].slot;
    drawn.plain[slot] = drawn.scaled[slot] = inputs[i];
    if (i < 2) AddScaled(slot, inputs[i], std::ldexp(1.0, static_cast<int>(random() % 9) - 4), drawn);
  }
  return drawn;
}

std::vector<double> Doubles(const Array& array) {
  const Array wide = Cast(array, DType::kF64);
  return {wide.View<double>().begin(), wide.View<double>().end()};
}

enum class Outcome {
  kSame,
  kLeftRange,  // data or values of the plain program left the range of their dtype: later results may differ
  kDiffers,
};

// Compares the results of one step. The data of the scaled program times the scale are the value, in f64.
Outcome Compare(absl::Span<const double> data, double scale, absl::Span<const double> want, DType dtype) {
  // Smaller numbers are subnormal, and the terms of sums slightly above it may be.
  const double least = dtype == DType::kF16 ? 0x1p-14 : 0x1p-121;
  const auto is_small = [&](double x) { return x != 0 && std::fabs(x) < least; };
  Outcome outcome = Outcome::kSame;
  for (size_t i = 0; i < want.size(); ++i) {
    const double value = data[i] * scale;
    const bool underflow = is_small(data[i]) || is_small(want[i]) || is_small(want[i] / scale) || is_small(value);
    const bool data_overflow = std::isinf(data[i]) && std::isfinite(want[i]);
    const bool plain_overflow = std::isinf(want[i]) && std::isfinite(value) && std::fabs(value) > MaxFinite(dtype);
    if (underflow || data_overflow || plain_overflow) return Outcome::kLeftRange;
    if (std::isnan(want[i]) ? !std::isnan(value) : value != want[i]) outcome = Outcome::kDiffers;
  }
  return outcome;
}

Outcome OutcomeOf(const Drawn& drawn, const ScalifyCompat& compat, std::string& message) {
  ScalifyOptions options = drawn.options;
  options.rules.compat = compat;
  const absl::StatusOr<Program> transformed = Scalify(drawn.program, options);
  if (!transformed.ok()) {
    message = transformed.status().ToString();
    return Outcome::kDiffers;
  }
  const SlotValues got = *EvalSlots(*transformed, drawn.scaled), want = *EvalSlots(drawn.program, drawn.plain);
  for (const Program::Port& port : drawn.program.outputs) {
    const Array& array = got.at(port.slot);
    const auto scale = got.find(ScaleSlot(port.slot));
    const double factor = scale == got.end() ? 1 : Doubles(scale->second)[0];
    const Outcome outcome = Compare(Doubles(array), factor, Doubles(want.at(port.slot)), array.dtype());
    if (outcome == Outcome::kDiffers) {
      message = absl::StrCat("output ", port.slot.path, "\ngot  ", absl::StrJoin(Doubles(array), " "), "\nscale ",
                             factor, "\nwant ", absl::StrJoin(Doubles(want.at(port.slot)), " "));
    }
    if (outcome != Outcome::kSame) return outcome;
  }
  return Outcome::kSame;
}

TEST(ScalifyExtremes, ValuesAreThoseOfThePlainProgram) {
  constexpr uint32_t kPrograms = 600;
  constexpr int kSteps = 6;
  uint32_t left_range = 0, original_differs = 0;
  for (uint32_t seed = 0; seed < kPrograms; ++seed) {
    std::string message;
    const auto outcome = [&](int steps) { return OutcomeOf(Draw(seed, steps), {}, message); };
    const Outcome of_all = outcome(kSteps);
    left_range += of_all == Outcome::kLeftRange;
    if (of_all == Outcome::kDiffers) {
      const int steps = testing::Shrink(kSteps, [&](int fewer) { return outcome(fewer) == Outcome::kDiffers; });
      outcome(steps);
      ADD_FAILURE() << "seed " << seed << ": " << message << "\n" << ToText(Draw(seed, steps).program);
    }
    std::string ignored;
    original_differs += OutcomeOf(Draw(seed, kSteps), {.degenerate_scales = true}, ignored) == Outcome::kDiffers;
  }
  EXPECT_LT(left_range, kPrograms / 4);
  EXPECT_GT(original_differs, kPrograms / 20);
}

}  // namespace
}  // namespace aqt
