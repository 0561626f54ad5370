#include "aqt/transforms/inject.h"
#include "aqt/quant/config/semantics.h"

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/eval.h"
#include "aqt/graph/grad.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/quantized_dot.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/fold.h"
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

// (x [B,6], w1 [6,5], b1 [5], w2 [4,5]): the second weight is the lhs of its contraction. Nothing here knows about
// quantization.
Values Model(In in) {
  const NamedScope scope("mlp");
  Value hidden;
  {
    const NamedScope layer("fc1");
    hidden = ops::MatMul(in[0], in[1]) + in[2];
  }
  hidden = ops::Max(hidden, 0.0);
  const NamedScope layer("fc2");
  const DotDims dims = {.lhs_contracting = {1}, .rhs_contracting = {1}, .lhs_batch = {}, .rhs_batch = {}};
  return {ops::Transpose(ops::DotGeneral(in[3], hidden, dims), {1, 0})};
}

Slot Param(const char* path) { return {SlotKind::kParam, path}; }
const Slot kX{SlotKind::kData, "x"};
const Slot kKeySlot{SlotKind::kKey, "aqt"};

std::vector<Input> Inputs(int64_t batch) {
  return {{kX, {DType::kF32, {batch, 6}}},
          {Param("fc1/kernel"), {DType::kF32, {6, 5}}},
          {Param("fc1/bias"), {DType::kF32, {5}}},
          {Param("fc2/kernel"), {DType::kF32, {4, 5}}}};
}

Program Traced(int64_t batch) { return *Trace(Model, Inputs(batch), std::vector<Slot>{{SlotKind::kData, "logits"}}); }

SlotValues Params() {
  return {{Param("fc1/kernel"), RandomArray({DType::kF32, {6, 5}}, 1)},
          {Param("fc1/bias"), RandomArray({DType::kF32, {5}}, 2)},
          {Param("fc2/kernel"), RandomArray({DType::kF32, {4, 5}}, 3)}};
}

// Forward in int8, gradients in float: no key.
DotGeneral Int8() { return DotGeneralMake(8, 8); }

InjectConfig All(const DotGeneral& config) {
  InjectConfig inject;
  inject.rules.push_back({.scope = "mlp/.*", .dot_general = config});
  return inject;
}

TEST(InjectTest, ProgramText) {
  absl::StatusOr<Program> program = Inject(Traced(2), All(Int8()));
  ASSERT_THAT(program, IsOk());
  const char* attributes =
      "fwd=(int8:s8 absmax * int8:s8 absmax -> s32), dlhs=(float * float use_fwd_quant), "
      "drhs=(float * float use_fwd_quant)} ";
  EXPECT_EQ(ToText(*program), absl::StrCat(R"(in %0: f32[2,6] data "x"
in %1: f32[6,5] param "fc1/kernel"
in %2: f32[5] param "fc1/bias"
in %3: f32[4,5] param "fc2/kernel"
const %4: f32[] = 0
%5: f32[2,5] = aqt_dot_general(%0, %1) {dims=(([1],[0]),([],[])), )",
                                           attributes, R"(@mlp/fc1
%6: f32[2,5] = broadcast(%2) {axes=[1]} @mlp/fc1
%7: f32[2,5] = add(%5, %6) @mlp/fc1
%8: f32[2,5] = broadcast(%4) {axes=[]} @mlp
%9: f32[2,5] = max(%7, %8) @mlp
%10: f32[4,2] = aqt_dot_general(%3, %9) {dims=(([1],[1]),([],[])), )",
                                           attributes, R"(@mlp/fc2
%11: f32[2,4] = transpose(%10) {permutation=[1,0]} @mlp/fc2
out %11 data "logits"
)"));
  EXPECT_EQ(program->eqns[0].where.line, Traced(2).eqns[0].where.line);
}

// A rule for layers of one kind names their axes, negative ones counting from the end; the batch may have any extent.
TEST(InjectTest, Tiles) {
  DotGeneral tiled = Int8();
  tiled.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = -1, .tile_size = 3}}},
                           .rhs = {.contraction_axes = {{.axis = 0, .tile_size = 3}}}};
  InjectConfig config;
  config.rules.push_back({.scope = "mlp/fc1", .dot_general = tiled});
  config.rules.push_back({.scope = "mlp/fc2"});
  absl::StatusOr<Program> program = Inject(Traced(2), config);
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ToText(*program), HasSubstr("tiles=(contracting -1:x3)*(contracting 0:x3)} @mlp/fc1"));
  // Stored for serving with each tile axis in front of the axis that it tiles.
  config.rules[0].rhs_mode = QuantMode::kConvert;
  program = Inject(Traced(2), config);
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ToText(*program), HasSubstr("s8[2,3,5], "));
  config.rules[0].dot_general->tiling->rhs.contraction_axes[0].tile_size = 4;
  EXPECT_THAT(Inject(Traced(2), config), FailsWith(absl::StatusCode::kInvalidArgument, {"[mlp/fc1]", "cannot be cut"}));
}

TEST(InjectTest, TheFirstRuleThatHitsDecides) {
  InjectConfig config;
  config.rules.push_back({.name = "keep the last", .scope = ".*/fc2"});
  config.rules.push_back({.dot_general = Int8()});
  InjectReport report;
  absl::StatusOr<Program> program = Inject(Traced(2), config, nullptr, &report);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(CountOps(*program, "aqt_dot_general"), 1);
  EXPECT_EQ(CountOps(*program, "dot_general"), 1);
  EXPECT_THAT(report.hits, ElementsAre(1, 1));
  EXPECT_EQ(report.ToString(config),
            "  dot_general [mlp/fc1] (f32[2,6], f32[6,5]): rule 2\n"
            "  dot_general [mlp/fc2] (f32[4,5], f32[2,5]): rule \"keep the last\", stays as it is\n");
}

TEST(InjectTest, ScopesMatchAsAWhole) {
  InjectConfig config;
  config.rules.push_back({.scope = "fc1", .dot_general = Int8()});
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument, {"hit nothing: rule 1", "[mlp/fc1]", "no rule"}));
}

TEST(InjectTest, ARuleThatHitsNothingIsAnErrorUnlessNotStrict) {
  InjectConfig config = All(Int8());
  config.rules.push_back({.name = "attention", .scope = "attention/.*", .dot_general = Int8()});
  InjectReport report;
  EXPECT_THAT(Inject(Traced(2), config, nullptr, &report),
              FailsWith(absl::StatusCode::kInvalidArgument, {"hit nothing: rule \"attention\"", "[mlp/fc2]"}));
  EXPECT_THAT(report.unmatched, ElementsAre("rule \"attention\""));
  config.strict = false;
  EXPECT_THAT(Inject(Traced(2), config, nullptr, &report), IsOk());
  EXPECT_THAT(report.ToString(config), HasSubstr("rule \"attention\" hit nothing"));
}

TEST(InjectTest, Origins) {
  InjectConfig config;
  config.rules.push_back({.name = "weight as lhs",
                          .lhs_origin = OperandOrigin::kParam,
                          .rhs_origin = OperandOrigin::kData,
                          .dot_general = Int8()});
  InjectReport report;
  absl::StatusOr<Program> program = Inject(Traced(2), config, nullptr, &report);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(report.contractions[0].rule, -1);
  EXPECT_EQ(report.contractions[1].rule, 0);
}

TEST(InjectTest, WrongRulesAreRefused) {
  InjectConfig config = All(Int8());
  config.rules[0].scope = "mlp/(";
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument, {"rule 1", "\"mlp/(\"", "not a valid regular expression"}));
  config = All(Int8());
  config.rules[0].ops = {"conv"};
  EXPECT_THAT(Inject(Traced(2), config), FailsWith(absl::StatusCode::kInvalidArgument, {"rule 1", "op \"conv\""}));
  config = All(Int8());
  config.rules[0].lhs_mode = QuantMode::kCalibrate;
  EXPECT_THAT(Inject(Traced(2), config), FailsWith(absl::StatusCode::kInvalidArgument,
                                                   {"[mlp/fc1]",
                                                    "QUANT_MODE_CALIBRATE updates statistics, but the calibration "
                                                    "of fwd.lhs has none: use QUANT_MODE_TRAIN"}));
  config = All(Int8());
  config.param_mode = config.data_mode = QuantMode::kCalibrate;
  EXPECT_THAT(
      Inject(Traced(2), config),
      FailsWith(absl::StatusCode::kInvalidArgument,
                {"QUANT_MODE_CALIBRATE updates statistics, but no operand that a rule quantizes", "[mlp/fc1]"}));
  // Some calibrations have state, but this mode does not apply to them.
  config = All(Int8());
  config.rules[0].dot_general->fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.rules[0].scope = "mlp/fc1";
  config.rules.push_back({.scope = "mlp/fc2"});
  config.param_mode = QuantMode::kCalibrate;
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"QUANT_MODE_CALIBRATE updates statistics, but param_mode is for weights, and only activations "
                         "have a calibration with state: set data_mode",
                         "[mlp/fc1]"}));
  std::swap(config.rules[0].dot_general->fwd.lhs, config.rules[0].dot_general->fwd.rhs);
  std::swap(config.param_mode, config.data_mode);
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"but data_mode is for activations, and only weights have a calibration with state: set "
                         "param_mode"}));
  config = All(Int8());
  config.rules[0].dot_general->fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument, {"aqt_dot_general [mlp/fc1]: fwd.rhs", "REMAINING_AXIS",
                                                             "operands f32[2,6], f32[6,5]", "inject_test.cc:"}));
  config = All(DefaultUnquantizedConfig());
  config.rules[0].rhs_mode = QuantMode::kServe;
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument, {"[mlp/fc1]", "fwd.rhs is not quantized"}));
}

// ---- keys

TEST(InjectTest, NoiseDependsOnTheNameAlone) {
  absl::StatusOr<Program> both = Inject(Traced(2), All(FullyQuantized()));
  ASSERT_THAT(both, IsOk());
  EXPECT_THAT(both->InputsOfKind(SlotKind::kKey), ElementsAre(4));
  InjectConfig second_only = All(FullyQuantized());
  second_only.rules[0].scope = "mlp/fc2";
  absl::StatusOr<Program> second = Inject(Traced(2), second_only);
  ASSERT_THAT(second, IsOk());
  const auto folds = [](const Program& program) {
    std::vector<std::string> texts;
    for (const Equation& eqn : program.eqns) {
      if (OpName(eqn.op) == "fold_in_key") texts.push_back(OpAttributes(eqn.op));
    }
    return texts;
  };
  ASSERT_EQ(folds(*both).size(), 2u);
  EXPECT_NE(folds(*both)[0], folds(*both)[1]);
  EXPECT_THAT(folds(*second), ElementsAre(folds(*both)[1]));
}

TEST(InjectTest, ANamedKeyIsUsedAsItIs) {
  InjectConfig config = All(FullyQuantized());
  config.rules[0].key_slot = "step_key";
  absl::StatusOr<Program> program = Inject(Traced(2), config);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(CountOps(*program, "fold_in_key"), 0);
  ASSERT_THAT(program->InputsOfKind(SlotKind::kKey), ElementsAre(4));
  EXPECT_EQ(program->inputs[4].slot.path, "step_key");
}

TEST(InjectTest, ContractionsOfOneScopeAreNumbered) {
  const Program program = *Trace(
      [](In in) {
        const NamedScope scope("block");
        return Values{ops::MatMul(ops::MatMul(in[0], in[1]), in[1])};
      },
      {{kX, {DType::kF32, {2, 3}}}, {Param("w"), {DType::kF32, {3, 3}}}});
  InjectConfig config;
  config.rules.push_back({.dot_general = Int8(), .rhs_mode = QuantMode::kConvert});
  InjectReport report;
  absl::StatusOr<Program> injected = Inject(program, config, nullptr, &report);
  ASSERT_THAT(injected, IsOk());
  EXPECT_EQ(report.contractions[1].name, "block/dot_1");
  EXPECT_THAT(ToText(*injected), HasSubstr("frozen \"block/qrhs/value\""));
  EXPECT_THAT(ToText(*injected), HasSubstr("frozen \"block/dot_1/qrhs/scale\""));
}

// Contractions of a scope have distinct names, whoever quantizes them and in whatever order: equal names would mean the
// same key and the same frozen tensor.
TEST(InjectTest, NamesAreDistinct) {
  const auto trace = [](const std::vector<bool>& quantized) {
    return *Trace(
        [&](In in) {
          const NamedScope scope("block");
          Value x = in[0];
          for (const bool q : quantized) {
            const QuantizedDotOptions options{.config = FullyQuantized(), .rhs_mode = QuantMode::kConvert};
            x = q ? QuantizedDot(x, in[1], MatMulDims(), options, NextContractionName(),
                                 std::source_location::current())
                  : ops::MatMul(x, in[1]);
          }
          return Values{x};
        },
        {{kX, {DType::kF32, {2, 3}}}, {Param("w"), {DType::kF32, {3, 3}}}});
  };
  InjectConfig config;
  config.rules.push_back({.dot_general = FullyQuantized(), .rhs_mode = QuantMode::kConvert});
  config.strict = false;
  for (const std::vector<bool>& quantized : std::vector<std::vector<bool>>{
           {true, false}, {false, true}, {true, true, false}, {false, true, false, true, false}}) {
    absl::StatusOr<Program> program = Inject(trace(quantized), config);
    ASSERT_THAT(program, IsOk());
    EXPECT_EQ(CountOps(*program, "aqt_dot_general"), quantized.size());
    EXPECT_EQ(program->outputs.size(), 1 + 2 * quantized.size());  // value and scale of each
    // All of them can be served from the folded values.
    absl::StatusOr<Folded> folded = Fold(*program, {{Param("w"), RandomArray({DType::kF32, {3, 3}}, 1)}});
    ASSERT_THAT(folded, IsOk());
    EXPECT_EQ(folded->values.size(), 2 * quantized.size());
  }
  // Noise: an explicitly quantized contraction and then the same one by a rule draw from different keys.
  const Program mixed = *Trace(
      [](In in) {
        const NamedScope scope("block");
        const QuantizedDotOptions options{.config = FullyQuantized()};
        const Value y =
            QuantizedDot(in[0], in[1], MatMulDims(), options, NextContractionName(), std::source_location::current());
        return Values{y + ops::MatMul(in[0], in[1])};
      },
      {{kX, {DType::kF32, {2, 3}}}, {Param("w"), {DType::kF32, {3, 3}}}});
  InjectReport report;
  absl::StatusOr<Program> program = Inject(mixed, {.rules = {{.dot_general = FullyQuantized()}}}, nullptr, &report);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(report.contractions[0].name, "block/dot_1");
  std::vector<std::string> folds;
  for (const Equation& eqn : program->eqns) {
    if (OpName(eqn.op) == "fold_in_key") folds.push_back(OpAttributes(eqn.op));
  }
  ASSERT_EQ(folds.size(), 2u);
  EXPECT_NE(folds[0], folds[1]);
}

// "a/dot_1" is the second contraction of scope "a", and the first of scope "a/dot_1".
TEST(InjectTest, AScopeNamedLikeAnOrdinal) {
  const Program program = *Trace(
      [](In in) {
        const NamedScope scope("a");
        Value x = ops::MatMul(in[0], in[1]);
        {
          const NamedScope inner("dot_1");
          x = ops::MatMul(x, in[1]);
        }
        return Values{ops::MatMul(x, in[1])};
      },
      {{kX, {DType::kF32, {2, 3}}}, {Param("w"), {DType::kF32, {3, 3}}}});
  InjectReport report;
  const InjectConfig config{.rules = {{.dot_general = Int8(), .rhs_mode = QuantMode::kConvert}}};
  ASSERT_THAT(Inject(program, config, nullptr, &report), IsOk());
  std::vector<std::string> names;
  for (const InjectReport::Contraction& c : report.contractions) names.push_back(c.name);
  EXPECT_THAT(names, ElementsAre("a", "a/dot_1", "a/dot_2"));
}

TEST(InjectTest, AScopeWithoutAName) {
  const Program program = *Trace([](In in) { return Values{ops::MatMul(in[0], in[1])}; },
                                 {{kX, {DType::kF32, {2, 3}}}, {Param("w"), {DType::kF32, {3, 3}}}});
  InjectReport report;
  ASSERT_THAT(Inject(program, {.rules = {{.dot_general = Int8()}}}, nullptr, &report), IsOk());
  EXPECT_EQ(report.contractions[0].name, "");
}

// ---- convert and serve

InjectConfig WithModes(const DotGeneral& config, QuantMode weights) {
  InjectConfig inject;
  inject.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = config, .rhs_mode = weights});
  inject.rules.push_back({.lhs_origin = OperandOrigin::kParam, .dot_general = config, .lhs_mode = weights});
  return inject;
}

// One set of rules for all modes: weights are found by what they depend on.
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
  // A side that is not quantized stays as it is.
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

// Only a side that rounds stochastically draws: the other one is known without a key.
TEST(InjectTest, WeightsFoldThoughActivationsDraw) {
  DotGeneral config = Int8();
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

// What you train is what you serve: the converting pass, the folded program, and rows of it in smaller batches.
void ExpectServedAsTrained(const DotGeneral& weight_rhs, const DotGeneral& weight_lhs, Arithmetic arithmetic,
                           int64_t batch) {
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
  // Pairs of rows; with IEEE arithmetic even single rows (see Semantics).
  const int64_t rows = arithmetic == Arithmetic::kIeee ? 1 : 2;
  for (int64_t first = 0; first + rows <= batch; first += 5) serve(first, rows);
}

TEST(InjectTest, ServedBitsAreTheTrainedOnes) {
  const DotGeneral weight_rhs = DotGeneralMake(std::nullopt, 8, {.use_fwd_quant = false});
  const DotGeneral weight_lhs = DotGeneralMake(8, std::nullopt, {.use_fwd_quant = false});
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
  // Found only when the program runs.
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
  DotGeneral config = Int8();
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
