// From training through conversion to serving, by the modes of Inject.

#include "aqt/transforms/quantize/inject.h"

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/trace.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

SlotValues Params() {
  return {{Param("fc1/kernel"), RandomArray({DType::kF32, {6, 5}}, 1)},
          {Param("fc1/bias"), RandomArray({DType::kF32, {5}}, 2)},
          {Param("fc2/kernel"), RandomArray({DType::kF32, {4, 5}}, 3)}};
}

InjectConfig WithModes(const DotGeneralConfig& config, QuantMode weights) {
  InjectConfig inject;
  inject.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = config, .rhs_mode = weights});
  inject.rules.push_back({.lhs_origin = OperandOrigin::kParam, .dot_general = config, .lhs_mode = weights});
  return inject;
}

// One set of rules for all modes: weights are found by their dependencies.
TEST(InjectTest, TheModeOfTheWeights) {
  InjectConfig by_mode;
  by_mode.rules.push_back({.dot_general = FullyQuantized()});
  for (const QuantMode mode : {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kServe}) {
    by_mode.param_mode = mode;
    absl::StatusOr<Program> want = Inject(Traced(2), WithModes(FullyQuantized(), mode)),
                            got = Inject(Traced(2), by_mode);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(ToText(*got), ToText(*want));
  }
  // A side that is not quantized is unchanged.
  by_mode.rules[0].dot_general = DotGeneralMake(8, std::nullopt, {.use_fwd_quant = false});
  absl::StatusOr<Program> serving = Inject(Traced(2), by_mode);
  ASSERT_THAT(serving, IsOk());
  EXPECT_EQ(serving->InputsOfKind(SlotKind::kFrozen).size(), 2u);
}

TEST(InjectTest, FoldingTheConvertedProgramGivesTheServingProgram) {
  absl::StatusOr<Program> converted = Inject(Traced(2), WithModes(FullyQuantized(), QuantMode::kConvert));
  ASSERT_THAT(converted, IsOk());
  absl::StatusOr<Folded> folded = Fold(*converted, Params());
  ASSERT_THAT(folded, IsOk());
  absl::StatusOr<Program> served = Inject(Traced(2), WithModes(FullyQuantized(), QuantMode::kServe), &folded->values);
  ASSERT_THAT(served, IsOk());
  const Program serving = Dce(*served, {.drop_inputs = {SlotKind::kParam}});
  EXPECT_EQ(ToText(folded->program), ToText(serving));
  EXPECT_THAT(ToText(serving), HasSubstr("frozen \"mlp/fc1/qrhs/value\""));
  EXPECT_THAT(ToText(serving), HasSubstr("frozen \"mlp/fc2/qlhs/scale\""));
  EXPECT_THAT(ToText(serving), Not(HasSubstr("kernel")));  // the float weights are gone
  EXPECT_THAT(ToText(serving), Not(HasSubstr("key")));     // noise belongs to gradients
  EXPECT_EQ(folded->values.count(Param("fc1/bias")), 1u);
  EXPECT_EQ(folded->values.size(), 5u);
}

// Only a side that rounds stochastically draws noise: the other one is known without a key.
TEST(InjectTest, WeightsFoldThoughActivationsDraw) {
  DotGeneralConfig config = Int8();
  std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).noise = Noise();
  const Program program = *Trace([](In in) { return Values{ops::MatMul(in[0], in[1])}; },
                                 {{kX, {DType::kF32, {2, 6}}}, {Param("w"), {DType::kF32, {6, 5}}}});
  InjectConfig inject{.rules = {{.dot_general = config}}, .param_mode = QuantMode::kConvert};
  absl::StatusOr<Program> converted = Inject(program, inject);
  ASSERT_THAT(converted, IsOk());
  absl::StatusOr<Folded> folded = Fold(*converted, {{Param("w"), RandomArray({DType::kF32, {6, 5}}, 1)}});
  ASSERT_THAT(folded, IsOk());
  EXPECT_TRUE(folded->values.contains({SlotKind::kFrozen, "qrhs/value"}));
  inject.param_mode = QuantMode::kServe;
  EXPECT_THAT(Inject(program, inject, &folded->values), IsOk());
}

// What you train is what you serve: the converting pass, the folded program, and its rows in smaller batches.
void ExpectServedAsTrained(const DotGeneralConfig& weight_rhs, const DotGeneralConfig& weight_lhs,
                           Arithmetic arithmetic, int64_t batch) {
  const auto inject = [&](int64_t rows, QuantMode weights) {
    InjectConfig config;
    config.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = weight_rhs, .rhs_mode = weights});
    config.rules.push_back({.lhs_origin = OperandOrigin::kParam, .dot_general = weight_lhs, .lhs_mode = weights});
    config.semantics.arithmetic = arithmetic;
    return Inject(Traced(rows), config);
  };
  const Slot logits{SlotKind::kData, "logits"};
  SlotValues values = Params();
  values[kX] = RandomArray({DType::kF32, {batch, 6}}, 4);
  values[kKeySlot] = Array::Of<uint32_t>({0, 1}, {2});
  absl::StatusOr<Program> trained = inject(batch, QuantMode::kTrain), converted = inject(batch, QuantMode::kConvert);
  ASSERT_THAT(trained, IsOk());
  ASSERT_THAT(converted, IsOk());
  absl::StatusOr<SlotValues> want = EvalSlots(*trained, values), converting = EvalSlots(*converted, values);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(converting, IsOk());
  EXPECT_TRUE(BitEqual(converting->at(logits), want->at(logits)));

  const auto serve = [&](int64_t first, int64_t rows) {
    absl::StatusOr<Folded> folded = Fold(*inject(rows, QuantMode::kConvert), Params());
    EXPECT_THAT(folded, IsOk());
    const Slot weight{SlotKind::kFrozen, "mlp/fc2/qlhs/value"};
    EXPECT_TRUE(BitEqual(folded->values.at(weight), converting->at(weight)));
    folded->values[kX] = Array::CopyOf(ArrayRef(values[kX].View<float>().data() + first * 6, {rows, 6}));
    absl::StatusOr<SlotValues> out = EvalSlots(folded->program, folded->values);
    EXPECT_THAT(out, IsOk());
    const Array rows_of_want = Array::CopyOf(ArrayRef(want->at(logits).View<float>().data() + first * 4, {rows, 4}));
    EXPECT_TRUE(BitEqual(out->at(logits), rows_of_want))
        << "rows " << first << " .. " << first + rows - 1 << " of " << batch;
  };
  serve(0, batch);
  // Pairs of rows; with IEEE arithmetic also single rows (see Semantics).
  const int64_t rows = arithmetic == Arithmetic::kIeee ? 1 : 2;
  for (int64_t first = 0; first + rows <= batch; first += 5) serve(first, rows);
}

TEST(InjectTest, ServedBitsAreTheTrainedOnes) {
  const DotGeneralConfig weight_rhs = DotGeneralMake(std::nullopt, 8, {.use_fwd_quant = false});
  const DotGeneralConfig weight_lhs = DotGeneralMake(8, std::nullopt, {.use_fwd_quant = false});
  for (const Arithmetic arithmetic : {Arithmetic::kXlaCompatible, Arithmetic::kIeee}) {
    for (const int64_t batch : {1, 7, 32}) {
      ExpectServedAsTrained(FullyQuantized(), FullyQuantized(), arithmetic, batch);
      ExpectServedAsTrained(DotGeneralMake(4, 4), DotGeneralMake(4, 4), arithmetic, batch);
      ExpectServedAsTrained(weight_rhs, weight_lhs, arithmetic, batch);
    }
  }
}

TEST(InjectTest, AMissingFrozenTensorIsNamed) {
  const InjectConfig config = WithModes(FullyQuantized(), QuantMode::kServe);
  absl::StatusOr<Folded> folded = Fold(*Inject(Traced(2), WithModes(FullyQuantized(), QuantMode::kConvert)), Params());
  ASSERT_THAT(folded, IsOk());
  SlotValues frozen = folded->values;
  frozen.erase({SlotKind::kFrozen, "mlp/fc2/qlhs/scale"});
  EXPECT_THAT(Inject(Traced(2), config, &frozen),
              FailsWith(absl::StatusCode::kNotFound,
                        {"[mlp/fc2]", "frozen \"mlp/fc2/qlhs/scale\" is missing", "allow_requantize"}));
  // Detected only when the program runs.
  absl::StatusOr<Program> served = Inject(Traced(2), config);
  ASSERT_THAT(served, IsOk());
  SlotValues values = Params();
  values.insert(frozen.begin(), frozen.end());
  values[kX] = RandomArray({DType::kF32, {2, 6}}, 4);
  EXPECT_THAT(EvalSlots(*served, values), FailsWith(absl::StatusCode::kNotFound, {"frozen \"mlp/fc2/qlhs/scale\""}));

  InjectConfig lenient = config;
  lenient.allow_requantize = true;
  InjectReport report;
  absl::StatusOr<Program> requantizing = Inject(Traced(2), lenient, &frozen, &report);
  ASSERT_THAT(requantizing, IsOk());
  EXPECT_THAT(report.contractions[1].requantized, ElementsAre("lhs"));
  absl::StatusOr<SlotValues> got = EvalSlots(*requantizing, values);
  ASSERT_THAT(got, IsOk());
  folded->values[kX] = values[kX];
  const Slot logits{SlotKind::kData, "logits"};
  EXPECT_TRUE(BitEqual(got->at(logits), EvalSlots(folded->program, folded->values)->at(logits)));
}

// The scale of activations comes from their statistics: a conversion without them would freeze nothing.
TEST(InjectTest, AConversionNeedsItsStatistics) {
  DotGeneralConfig config = Int8();
  config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  InjectConfig inject;
  inject.rules.push_back({.scope = "mlp/fc1", .dot_general = config});
  inject.rules.push_back({.scope = "mlp/fc2"});
  inject.param_mode = inject.data_mode = QuantMode::kConvert;
  absl::StatusOr<Program> converted = Inject(Traced(2), inject);
  ASSERT_THAT(converted, IsOk());
  const std::vector<int> stats = converted->InputsOfKind(SlotKind::kStat);
  ASSERT_FALSE(stats.empty());
  for (const int missing : stats) {
    SlotValues known = Params();
    const Slot& slot = converted->inputs[missing].slot;
    for (const int i : stats) {
      const Aval& aval = converted->aval(converted->inputs[i].var);
      if (i != missing) known[converted->inputs[i].slot] = Array::Zeros(aval.dtype, aval.shape);
    }
    EXPECT_THAT(Fold(*converted, known),
                FailsWith(absl::StatusCode::kNotFound, {"frozen \"mlp/fc1/qlhs/scale\"", slot.ToString()}));
  }
}

TEST(InjectTest, GradientsOfAnInjectedProgramAreQuantized) {
  const Program loss = *Trace([](In in) { return Values{ops::ReduceSum(Model(in)[0])}; }, Inputs(2));
  absl::StatusOr<Program> gradient = Grad(*Inject(loss, All(FullyQuantized())), {1, 2, 3});
  ASSERT_THAT(gradient, IsOk());
  EXPECT_EQ(CountOps(*gradient, "aqt_dot_general_fwd"), 2);
  EXPECT_EQ(CountOps(*gradient, "aqt_dot_general_bwd"), 2);
  EXPECT_EQ(CountOps(*gradient, "dot_general"), 0);
}

}  // namespace
}  // namespace aqt
