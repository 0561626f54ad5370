// Contractions in scaled arithmetic, float and quantized, with their gradients. AQT_TEST_SEED=N AQT_TEST_CASES=1
// repeats a failing case.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/config/config.h"
#include "aqt/testing/contractions.h"
#include "aqt/testing/environment.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/precision/scaled.h"
#include "aqt/transforms/precision/scalify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FloatContraction;
using ::aqt::testing::FromEnvironment;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;
using Draw = ContractionProblem (*)(Random&);

const Slot kWeights{SlotKind::kData, "weights"};
const Slot kGradLhs{SlotKind::kData, "grad(lhs)"}, kGradRhs{SlotKind::kData, "grad(rhs)"};

// A contraction, its loss sum(out * weights) and the gradients: weights is the gradient of the output.
absl::StatusOr<Program> StepOf(const ContractionProblem& problem, const Aval& out) {
  const QuantizedDotOptions options{.config = problem.config, .key_slot = "key", .semantics = problem.semantics};
  std::vector<Input> inputs = InputsFor(problem);
  inputs.push_back({kWeights, out});
  const absl::StatusOr<Program> loss = Trace(
      [&](In in) {
        const In operands = in.subspan(0, inputs.size() - 1);
        const Value product = problem.is_float()
                                  ? FloatContraction(problem.dims, operands)
                                  : QuantizedContraction(operands, problem.dims, options, "dot", SourceLine());
        return Values{ops::ReduceSum(product * in[inputs.size() - 1]), product};
      },
      inputs, std::vector<Slot>{{SlotKind::kData, "loss"}, OutSlot()});
  return loss.ok() ? ValueAndGrad(*loss, {0, 1}) : loss;
}

// A random problem with ordinary numbers, in a dtype in which no scale of the test over- or underflows; null for some
// seeds.
std::optional<ContractionProblem> DrawProblem(Draw draw, Random& random) {
  ContractionProblem problem = draw(random);
  for (Array* operand : {&problem.lhs, &problem.rhs}) {
    if (operand->dtype() == DType::kF16) return std::nullopt;
    // An empty row has the scale of a row of ones (docs/precision.md).
    if (!problem.is_float() && operand->num_elements() == 0) return std::nullopt;
    *operand = RandomArray(operand->aval(), random.Next());
  }
  for (const DotGeneralRawConfig* raw : {&problem.config.fwd, &problem.config.dlhs, &problem.config.drhs}) {
    if (raw->dg_accumulator_dtype == DType::kF16) return std::nullopt;
  }
  if (!problem.is_float() && random.Below(3) == 0) {
    DotGeneralConfig states = problem.config;
    AddStates(random, states);
    problem.config.fwd = states.fwd;
    if (!std::holds_alternative<ConvDims>(problem.dims)) problem.config = states;
  }
  return problem;
}

Array Times(const Array& x, double number) { return *(Value(x) * number).ToArray(); }

// The value of an output, scaled or not, in its own dtype.
Array ValueOf(const SlotValues& out, const Slot& slot) {
  const auto scale = out.find(ScaleSlot(slot));
  const Array& data = out.at(slot);
  if (scale == out.end()) return data;
  return Cast(*scaled::ToArray({Value(data), Value(scale->second)}, DType::kF32).ToArray(), data.dtype());
}

class ScalifyContractions : public ::testing::TestWithParam<Draw> {
 protected:
  // Runs a step with plain operands and, scalified, with data and scales. Checks that the results are the same.
  static void Compare(const ContractionProblem& problem, const Program& step, Random& random, ScalePolicy policy,
                      SlotValues& out) {
    ScalifyOptions options{.rules = {.scale_dtype = DType::kF32, .quantized = policy}};
    SlotValues plain = SomeStats(step, random), scaled = plain;
    plain.merge(ValuesOf(problem));
    scaled.merge(ValuesOf(problem));
    for (const Program::Port& port : step.inputs) {
      const Slot& slot = port.slot;
      if (slot == kWeights) scaled[slot] = plain[slot] = RandomArray(step.aval(port.var), 11);
      if (slot != LhsSlot() && slot != RhsSlot() && slot != kWeights) continue;
      const double scale = std::ldexp(1.0, static_cast<int>(random.Below(9)) - 4);
      options.scaled_inputs[slot] = DType::kF32;
      scaled[ScaleSlot(slot)] = Array::Scalar(static_cast<float>(scale));
      plain[slot] = Times(scaled[slot], scale);
    }
    const absl::StatusOr<Program> transformed = Scalify(step, options);
    ASSERT_THAT(transformed, IsOk());
    const absl::StatusOr<SlotValues> want = EvalSlots(step, plain), got = EvalSlots(*transformed, scaled);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    for (const auto& [slot, array] : *want) {
      ASSERT_TRUE(SameBits(ValueOf(*got, slot), array)) << slot.ToString() << "\n" << ToText(*transformed);
    }
    out = *got;
  }

  const int64_t first_seed_ = FromEnvironment("AQT_TEST_SEED", 1);
  const int64_t wanted_ = FromEnvironment("AQT_TEST_CASES", 200);
};

// With power-of-two scales a contraction and its gradients have the bits of the plain ones, for every configuration.
TEST_P(ScalifyContractions, HaveTheBitsOfPlainOnes) {
  int64_t legal = 0, scaled_out = 0, scaled_gradients = 0;
  for (int64_t tries = 0; legal < wanted_ && tries < 60 * wanted_; ++tries) {
    Random random(static_cast<uint64_t>(first_seed_ + tries));
    const std::optional<ContractionProblem> problem = DrawProblem(GetParam(), random);
    if (!problem.has_value()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", first_seed_ + tries, ": ", problem->ToString()));
    const absl::StatusOr<Program> loss = LossOf(*problem);
    if (!loss.ok()) continue;
    const absl::StatusOr<Program> step = StepOf(*problem, loss->aval(loss->outputs[1].var));
    if (!step.ok()) continue;
    ++legal;
    SlotValues out;
    Compare(*problem, *step, random, random.Below(4) == 0 ? ScalePolicy::kUnscale : ScalePolicy::kPropagate, out);
    if (HasFatalFailure()) return;
    scaled_out += out.contains(ScaleSlot(OutSlot())) ? 1 : 0;
    scaled_gradients += out.contains(ScaleSlot(kGradLhs)) && out.contains(ScaleSlot(kGradRhs)) ? 1 : 0;
  }
  EXPECT_EQ(legal, wanted_);
  EXPECT_GT(scaled_out, wanted_ / 2);
  EXPECT_GT(scaled_gradients, wanted_ / 2);
}

std::string KindName(const ::testing::TestParamInfo<Draw>& info) {
  constexpr const char* kNames[] = {"Dot", "Conv", "Ragged", "Einsum"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Kinds, ScalifyContractions,
                         ::testing::Values(&RandomDotContraction, &RandomConvProblem, &RandomRaggedProblem,
                                           &RandomEinsumProblem),
                         KindName);

// ---- which operands keep their scales

// [4,8] x [8,4], with f32 scales 2, 4 and, for the gradient of the output, 8; scales of results are not rounded.
SlotValues StepWithScales(const ContractionDims& dims, const DotGeneralConfig& config,
                          ScalePolicy policy = ScalePolicy::kPropagate) {
  const ContractionProblem problem{.config = config,
                                   .dims = dims,
                                   .lhs = RandomArray({DType::kF32, {4, 8}}, 1),
                                   .rhs = RandomArray({DType::kF32, {8, 4}}, 2)};
  const Program step = *StepOf(problem, {DType::kF32, {4, 4}});
  SlotValues values = InitialStats(step);
  values.merge(ValuesOf(problem));
  values[kWeights] = RandomArray({DType::kF32, {4, 4}}, 3);
  ScalifyOptions options{.rules = {.rounding = ScaleRounding::kNone, .scale_dtype = DType::kF32, .quantized = policy}};
  float scale = 1;
  for (const Slot& slot : {LhsSlot(), RhsSlot(), kWeights}) {
    options.scaled_inputs[slot] = DType::kF32;
    values[ScaleSlot(slot)] = Array::Scalar(scale *= 2);
  }
  return *EvalSlots(*Scalify(step, options), values);
}

// The scale of an output; 0 if it has none.
float ScaleOf(const SlotValues& out, const Slot& slot) {
  const auto it = out.find(ScaleSlot(slot));
  return it == out.end() ? 0 : it->second.View<float>()[0];
}

void ExpectScales(const SlotValues& out, double product, double grad_lhs, double grad_rhs) {
  EXPECT_FLOAT_EQ(ScaleOf(out, OutSlot()), static_cast<float>(product));
  EXPECT_FLOAT_EQ(ScaleOf(out, kGradLhs), static_cast<float>(grad_lhs));
  EXPECT_FLOAT_EQ(ScaleOf(out, kGradRhs), static_cast<float>(grad_rhs));
}

// The rule of dot_general, s1 s2 sqrt(n), for each of the three products: sums of 8, 4 and 4 terms. The gradient of the
// output is `weights`, with the scale 8.
TEST(ScalesOfContractions, FollowTheRule) {
  const double fwd = 2 * 4 * std::sqrt(8.0), dlhs = 8 * 4 * std::sqrt(4.0), drhs = 8 * 2 * std::sqrt(4.0);
  ExpectScales(StepWithScales(MatMulDims(), {}), fwd, dlhs, drhs);
  ExpectScales(StepWithScales(EinsumDims{"ij,jk->ik"}, {}), fwd, dlhs, drhs);
  const DotGeneralConfig int8 = *FullyQuantized({.use_stochastic_rounding = false});
  ExpectScales(StepWithScales(MatMulDims(), int8), fwd, dlhs, drhs);
  ExpectScales(StepWithScales(EinsumDims{"ij,jk->ik"}, int8), fwd, dlhs, drhs);
  ExpectScales(StepWithScales(MatMulDims(), int8, ScalePolicy::kUnscale), 0, 0, 0);
}

// An operand whose range does not follow its scale is unscaled first; the others keep their scales.
TEST(ScalesOfContractions, RangesThatDoNotFollow) {
  const double root8 = std::sqrt(8.0), root4 = 2;
  const Calibration kinds[] = {Constant{.bound = 2.0}, AbsMax{.po2_scale = true}, AbsMean{.p = 2},
                               DelayedScaling{.amax_history_length = 2}};
  for (const Calibration& calibration : kinds) {
    SCOPED_TRACE(NameOf(calibration));
    DotGeneralConfig config = *FullyQuantized({.use_stochastic_rounding = false});
    config.dlhs.rhs.use_fwd_quant = config.drhs.rhs.use_fwd_quant = false;
    config.fwd.lhs.quantizer.calibration = calibration;
    // dlhs does not depend on lhs.
    ExpectScales(StepWithScales(MatMulDims(), config), 4 * root8, 8 * 4 * root4, 8 * root4);
  }
}

}  // namespace
}  // namespace aqt
