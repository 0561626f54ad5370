#include "aqt/transforms/quantize/inject.h"

#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
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
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

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

// A rule for layers of one kind names their axes, with negative ones counting from the end; the batch may have any
// extent.
TEST(InjectTest, Tiles) {
  DotGeneralConfig tiled = Int8();
  tiled.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = -1, .tile_size = 3}}},
                           .rhs = {.contraction_axes = {{.axis = 0, .tile_size = 3}}}};
  InjectConfig config;
  config.rules.push_back({.scope = "mlp/fc1", .dot_general = tiled});
  config.rules.push_back({.scope = "mlp/fc2"});
  absl::StatusOr<Program> program = Inject(Traced(2), config);
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(ToText(*program), HasSubstr("tiles=(contracting -1:x3)*(contracting 0:x3)} @mlp/fc1"));
  // Stored for serving with each tile axis before the axis that it tiles.
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
            "dot_general: 1 of 2 quantized\n"
            "  dot_general [mlp/fc1] (f32[2,6], f32[6,5]): rule 2: lhs int8:s8, rhs int8:s8\n"
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
  config.rules[0].ops = {"relu"};
  EXPECT_THAT(Inject(Traced(2), config), FailsWith(absl::StatusCode::kInvalidArgument,
                                                   {"rule 1", "op \"relu\" cannot be quantized",
                                                    "\"dot_general\", \"conv\", \"ragged_dot\", \"einsum\" can"}));
  config = All(Int8());
  config.rules[0].lhs_mode = QuantMode::kCalibrate;
  EXPECT_THAT(Inject(Traced(2), config), FailsWith(absl::StatusCode::kInvalidArgument,
                                                   {"[mlp/fc1]",
                                                    "QUANT_MODE_CALIBRATE updates statistics, but the calibration "
                                                    "of fwd.lhs has none: use QUANT_MODE_TRAIN"}));
  config = All(Int8());
  config.param_mode = config.data_mode = QuantMode::kCalibrate;
  EXPECT_THAT(Inject(Traced(2), config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"QUANT_MODE_CALIBRATE updates statistics, but no operand that a rule quantizes",
                         "use QUANT_MODE_TRAIN", "preset int8_static", "strict = false", "[mlp/fc1]"}));
  config.strict = false;
  EXPECT_THAT(Inject(Traced(2), config), IsOk());
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
                                                             "operands f32[2,6], f32[6,5]", "inject_testing.h:"}));
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

// Contractions of a scope have distinct names, whether quantized explicitly or by rules, in any order: equal names
// would mean the same key and the same frozen tensor.
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
  // Noise: an explicitly quantized contraction and the same one quantized by a rule draw from different keys.
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

}  // namespace
}  // namespace aqt
