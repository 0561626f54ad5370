// Random programs of 2 to 6 contractions of all four kinds, with reshapes, transposes, activations and sums between
// them: trained, calibrated, converted and served, a program gives the bits of its expansion, and a served one also
// those of the prepared program, on one thread and on two. Each is saved and loaded on the way.
//
// AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing program; AQT_TEST_CASES=N draws more of them.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/ops/functions.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/runtime/executable.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/contractions.h"
#include "aqt/testing/environment.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FromEnvironment;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kLoss{SlotKind::kData, "loss"}, kOut{SlotKind::kData, "out"};
const Aval kXAval{DType::kF32, {3, 7, 5}};

// One contraction of the activation with a weight, and the operations on its result.
struct Step {
  ContractionProblem problem;  // only the shapes of its arrays are used
  bool weight_is_lhs = false;
  bool transposes = false;  // the activation has its axes reversed
  enum class After { kNothing, kRelu, kSquash } after = After::kNothing;
  std::optional<size_t> adds = std::nullopt;  // the result of an earlier step; 0: x

  bool has_state() const {
    return HasState(problem.config.fwd.lhs.quantizer) || HasState(problem.config.fwd.rhs.quantizer);
  }
  const Aval& activation() const { return (weight_is_lhs ? problem.rhs : problem.lhs).aval(); }
  const Aval& weight() const { return (weight_is_lhs ? problem.lhs : problem.rhs).aval(); }
};

std::string NameOf(size_t step) { return absl::StrCat("c", step); }
Slot WeightSlot(size_t step) { return {SlotKind::kParam, absl::StrCat(NameOf(step), "/kernel")}; }
Slot GroupsSlot(size_t step) { return {SlotKind::kData, absl::StrCat(NameOf(step), "/groups")}; }

// An array of this aval with elements of x, possibly repeated, or zeros if x is empty.
Value Fit(const Value& x, const Aval& aval) {
  const int64_t have = x.shape().num_elements(), want = aval.shape.num_elements();
  Value flat = ops::Reshape(x, {have});
  if (have == 0) {
    flat = ops::Pad(flat, {0}, {want});
  } else if (have < want) {
    const int64_t copies = (want + have - 1) / have;
    flat = ops::Reshape(ops::BroadcastInDim(flat, {copies, have}, {1}), {copies * have});
  }
  if (flat.shape()[0] > want) flat = ops::Slice(flat, {0}, {want});
  return ops::Cast(ops::Reshape(flat, aval.shape), aval.dtype);
}

Value FitReversed(const Value& x, const Aval& aval) {
  Shape shape;
  Axes reversed;
  for (int64_t axis = aval.shape.rank() - 1; axis >= 0; --axis) {
    shape.push_back(aval.shape[axis]);
    reversed.push_back(axis);
  }
  return ops::Transpose(Fit(x, {aval.dtype, shape}), reversed);
}

struct Model {
  std::vector<Step> steps;
  bool by_rules = false;     // Inject quantizes; or the model does, each contraction with its own semantics
  Semantics semantics = {};  // of the rules

  bool has_state() const {
    return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.has_state(); });
  }
  std::string ToString() const {
    std::string text = by_rules ? "by rules:" : "by itself:";
    for (const Step& step : steps) {
      absl::StrAppend(&text, "\n  ", step.problem.ToString(), step.weight_is_lhs ? " weight first" : "",
                      step.has_state() ? " with state" : "");
    }
    return text;
  }

  // A rule's result for each side, for a model that quantizes itself.
  QuantizedDotOptions OptionsOf(const Step& step, QuantMode mode) const {
    const DotGeneralRawConfig& fwd = step.problem.config.fwd;
    QuantizedDotOptions options{
        .config = step.problem.config, .with_gradient = mode == QuantMode::kTrain, .semantics = step.problem.semantics};
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const bool left = side == Side::kLhs, is_weight = left == step.weight_is_lhs;
      const Quantizer& quantizer = (left ? fwd.lhs : fwd.rhs).quantizer;
      const bool has_state = HasState(quantizer);
      const bool changes = mode == QuantMode::kCalibrate ? has_state : is_weight || has_state;
      if (!IsQuantized(quantizer.numerics) || !changes) continue;
      (left ? options.lhs_mode : options.rhs_mode) = mode;
      if (!is_weight) (left ? options.lhs_freezer : options.rhs_freezer) = FreezerMode::kScale;
    }
    return options;
  }

  Value Contract(size_t i, const Value& x, const Value& weight, QuantMode mode) const {
    const Step& step = steps[i];
    Values operands = {x, weight};
    if (step.weight_is_lhs) std::swap(operands[0], operands[1]);
    if (step.problem.group_sizes.has_value()) {
      operands.push_back(InputSlot(GroupsSlot(i), step.problem.group_sizes->aval()));
    }
    const NamedScope scope(NameOf(i));
    if (by_rules || step.problem.is_float()) return testing::FloatContraction(step.problem.dims, operands);
    return QuantizedContraction(operands, step.problem.dims, OptionsOf(step, mode), NameOf(i),
                                std::source_location::current());
  }

  // Loss and output.
  Values Run(In in, QuantMode mode) const {
    Values results = {in[0]};
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      const Value x =
          step.transposes ? FitReversed(results.back(), step.activation()) : Fit(results.back(), step.activation());
      Value out = Contract(i, x, InputSlot(WeightSlot(i), step.weight()), mode);
      if (step.adds.has_value()) out = out + Fit(results[*step.adds], out.aval());
      switch (step.after) {
        case Step::After::kNothing: break;
        case Step::After::kRelu: out = ops::Relu(out); break;
        case Step::After::kSquash: out = out / (ops::Abs(out) + 1.0); break;
      }
      results.push_back(out);
    }
    const Value& out = results.back();
    return {ops::ReduceSum(out * Value(LossWeights(out.aval()))), out};
  }

  absl::StatusOr<Program> In(QuantMode mode, const SlotValues* frozen = nullptr) const {
    AQT_ASSIGN_OR_RETURN(const Program program, Trace([&](absl::Span<const Value> in) { return Run(in, mode); },
                                                      {{kX, kXAval}}, {kLoss, kOut}));
    if (!by_rules) return program;
    InjectConfig config{.rules = {}, .param_mode = mode, .data_mode = mode, .semantics = semantics};
    for (size_t i = 0; i < steps.size(); ++i) {
      const ContractionProblem& problem = steps[i].problem;
      if (problem.is_float()) continue;
      config.rules.push_back(
          {.scope = NameOf(i), .ops = {std::string(KindOf(problem.dims))}, .dot_general = problem.config});
    }
    return Inject(program, config, frozen);
  }

  SlotValues Params(Random& random) const {
    SlotValues params;
    const bool all_magnitudes = random.Below(3) == 0;  // also so small that products are subnormal
    for (size_t i = 0; i < steps.size(); ++i) {
      const double magnitude = all_magnitudes ? RandomMagnitude(random) : 1;
      params.emplace(WeightSlot(i), RandomArray(steps[i].weight(), random.Next(), -2 * magnitude, 2 * magnitude));
    }
    return params;
  }
  SlotValues Data(Random& random) const {
    SlotValues data = {{kX, RandomArray(kXAval, random.Next())},
                       {{SlotKind::kKey, kSharedKeySlot}, KeyArray(static_cast<uint32_t>(random.Next()))}};
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].problem.group_sizes.has_value()) data.emplace(GroupsSlot(i), *steps[i].problem.group_sizes);
    }
    return data;
  }
};

bool IsEmpty(const ContractionProblem& problem) {
  return problem.lhs.num_elements() == 0 || problem.rhs.num_elements() == 0;
}

// A legal contraction. Most quantize something, and few are empty, because results would be trivial otherwise.
ContractionProblem DrawProblem(Random& random, ContractionProblem (*draw)(Random&), const Semantics* semantics) {
  const bool is_float = random.Below(4) == 0, may_be_empty = random.Below(25) == 0, has_states = random.Below(4) == 0;
  while (true) {
    ContractionProblem problem = draw(random);
    if (problem.is_float() != is_float || (IsEmpty(problem) && !may_be_empty)) continue;
    if (semantics != nullptr) problem.semantics = *semantics;
    if (!is_float && has_states) {
      DotGeneralConfig with_states = problem.config;
      AddStates(random, with_states);
      problem.config.fwd = with_states.fwd;
      if (!std::holds_alternative<ConvDims>(problem.dims)) problem.config = with_states;
    }
    if (LossOf(problem).ok()) return problem;
  }
}

Model DrawModel(Random& random) {
  Model model{.steps = {}, .by_rules = random.Below(2) == 0, .semantics = RandomSemantics(random)};
  std::array draws = {&RandomDotContraction, &RandomConvProblem, &RandomEinsumProblem, &RandomRaggedProblem};
  for (size_t i = draws.size(); i > 1; --i) std::swap(draws[i - 1], draws[random.Below(static_cast<int64_t>(i))]);
  const size_t num_steps = static_cast<size_t>(2 + random.Below(5));
  for (size_t i = 0; i < num_steps; ++i) {
    Step step{.problem = DrawProblem(random, draws[i % draws.size()], model.by_rules ? &model.semantics : nullptr),
              .weight_is_lhs = random.Below(4) == 0,
              .transposes = random.Below(3) == 0,
              .after = Pick(random, {Step::After::kNothing, Step::After::kRelu, Step::After::kSquash})};
    if (random.Below(2) == 0) step.adds = random.Below(static_cast<int64_t>(i) + 1);
    model.steps.push_back(std::move(step));
  }
  return model;
}

// Whether some of the numbers are finite and nonzero: only these can show a wrong bit.
bool SaysSomething(const Array& x) {
  const Array wide = Cast(x, DType::kF64);
  const absl::Span<const double> numbers = wide.View<double>();
  return std::any_of(numbers.begin(), numbers.end(),
                     [](double number) { return std::isfinite(number) && number != 0; });
}

class RandomProgramsTest : public ::testing::Test {
 protected:
  void ExpectSame(const SlotValues& got, const SlotValues& want) {
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [slot, array] : got) ASSERT_TRUE(SameBits(array, want.at(slot))) << slot.ToString();
  }

  // The program after saving and loading.
  void SaveAndLoad(const Program& program, Program& loaded) {
    const absl::StatusOr<std::string> bytes = SaveProgram(program, ops::ProgramCodecs());
    ASSERT_THAT(bytes, IsOk());
    absl::StatusOr<Program> back = LoadProgram(*bytes, ops::ProgramCodecs());
    ASSERT_THAT(back, IsOk());
    ASSERT_EQ(ToText(*back, {.source_lines = true}), ToText(program, {.source_lines = true}));
    ASSERT_EQ(*SaveProgram(*back, ops::ProgramCodecs()), *bytes);
    loaded = *std::move(back);
  }

  // The values of the program. Checks that its expansion and an Executable give the same, on one thread and on two, all
  // read from a file except the program itself.
  void Evaluate(const absl::StatusOr<Program>& program, const SlotValues& values, SlotValues& results) {
    ASSERT_THAT(program, IsOk());
    const absl::StatusOr<Program> expanded = Expand(*program);
    ASSERT_THAT(expanded, IsOk());
    for (const Equation& eqn : expanded->eqns) {
      const auto* composite = std::get_if<CompositeOp>(&eqn.op);
      ASSERT_FALSE(composite != nullptr && composite->impl->has_expansion()) << OpName(eqn.op);
    }
    Program loaded, loaded_expanded;
    ASSERT_NO_FATAL_FAILURE(SaveAndLoad(*program, loaded));
    ASSERT_NO_FATAL_FAILURE(SaveAndLoad(*expanded, loaded_expanded));
    const absl::StatusOr<Executable> executable = Executable::Make(loaded);
    ASSERT_THAT(executable, IsOk());
    const absl::StatusOr<SlotValues> evaluated = EvalSlots(loaded, values);
    ASSERT_THAT(evaluated, IsOk());
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool_)}) {
      const UseExecutor threads(executor);
      const absl::StatusOr<SlotValues> fused = EvalSlots(*program, values), meant = EvalSlots(loaded_expanded, values);
      ASSERT_THAT(fused, IsOk());
      ASSERT_THAT(meant, IsOk());
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*fused, *meant));
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*evaluated, *fused));
      const absl::StatusOr<SlotValues> executed = executable->RunSlots(values);
      ASSERT_THAT(executed, IsOk());
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*executed, *fused));
      if (executor != nullptr) {
        ASSERT_NO_FATAL_FAILURE(ExpectSame(*fused, results));
      }
      results = *fused;
    }
  }

  // In mode CONVERT; then the frozen tensors are served. Returns whether all weights can be frozen.
  void Serve(const Model& model, const SlotValues& known, const SlotValues& data, bool& is_served) {
    const absl::StatusOr<Program> convert = model.In(QuantMode::kConvert);
    is_served = !absl::IsUnimplemented(convert.status());  // a calibration bias, ahead of time
    if (!is_served) return;
    SlotValues values = known, converted, served;
    values.insert(data.begin(), data.end());
    ASSERT_NO_FATAL_FAILURE(Evaluate(convert, values, converted));
    SlotValues frozen = known;
    for (const auto& [slot, array] : converted) {
      if (slot.kind == SlotKind::kFrozen) frozen.emplace(slot, array);
    }
    absl::StatusOr<Program> serve = model.In(QuantMode::kServe, &frozen);
    ASSERT_THAT(serve, IsOk());
    serve = Dce(*serve, {.drop_inputs = {SlotKind::kParam}});
    values = frozen;
    values.insert(data.begin(), data.end());
    ASSERT_NO_FATAL_FAILURE(Evaluate(serve, values, served));
    ASSERT_TRUE(SameBits(served.at(kOut), converted.at(kOut))) << "served and converted";
    const absl::StatusOr<PreparedProgram> prepared = PreparedProgram::Make({*serve}, frozen);
    ASSERT_THAT(prepared, IsOk());
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool_)}) {
      const UseExecutor threads(executor);
      const absl::StatusOr<SlotValues> results = prepared->Eval(data);
      ASSERT_THAT(results, IsOk());
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*results, served));
    }
  }

  kernels::ThreadPool pool_{2};
};

TEST_F(RandomProgramsTest, FusedExpandedAndPreparedAgree) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), wanted = FromEnvironment("AQT_TEST_CASES", 500);
  std::map<std::string, int64_t> seen;
  for (int64_t i = 0; i < wanted; ++i) {
    Random random(static_cast<uint64_t>(first_seed + i));
    const Model model = DrawModel(random);
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + i, ", ", model.ToString()));
    SlotValues known = model.Params(random);
    const SlotValues data = model.Data(random);

    const absl::StatusOr<Program> loss = model.In(QuantMode::kTrain);
    ASSERT_THAT(loss, IsOk());
    std::vector<int> wrt = loss->InputsOfKind(SlotKind::kParam);
    wrt.push_back(0);
    const absl::StatusOr<Program> gradients = ValueAndGrad(*loss, wrt);
    ASSERT_THAT(gradients, IsOk());
    known.merge(SomeStats(*gradients, random));
    SlotValues values = known, trained, inferred, calibrated;
    values.insert(data.begin(), data.end());
    ASSERT_NO_FATAL_FAILURE(Evaluate(gradients, values, trained));
    ASSERT_NO_FATAL_FAILURE(Evaluate(loss, values, inferred));
    ASSERT_TRUE(SameBits(inferred.at(kOut), trained.at(kOut))) << "with and without gradients";
    if (model.has_state()) {
      ASSERT_NO_FATAL_FAILURE(Evaluate(model.In(QuantMode::kCalibrate), values, calibrated));
    }
    bool is_served = false;
    ASSERT_NO_FATAL_FAILURE(Serve(model, known, data, is_served));

    seen["served"] += is_served;
    seen["an output"] += SaysSomething(trained.at(kOut));
    seen["a gradient of x"] += SaysSomething(trained.at({SlotKind::kData, "grad(x)"}));
    seen[model.by_rules ? "by rules" : "by itself"] += 1;
    seen["calibrated"] += model.has_state();
    std::map<std::string, int> kinds;
    for (const Step& step : model.steps) {
      ++kinds[std::string(KindOf(step.problem.dims))];
      seen[absl::StrCat(step.problem.is_float() ? "float " : "quantized ", KindOf(step.problem.dims))] += 1;
      seen["weight first"] += step.weight_is_lhs;
    }
    seen["all four kinds"] += kinds.size() == 4;
  }
  if (wanted < 100) return;
  for (const char* feature : {"served", "an output", "a gradient of x"})
    EXPECT_GE(seen[feature], wanted / 2) << feature;
  for (const char* feature : {"by rules", "by itself", "calibrated", "weight first", "all four kinds",
                              "float dot_general", "float conv", "float einsum", "float ragged_dot",
                              "quantized dot_general", "quantized conv", "quantized einsum", "quantized ragged_dot"}) {
    EXPECT_GE(seen[feature], wanted / 10) << feature;
  }
}

}  // namespace
}  // namespace aqt
