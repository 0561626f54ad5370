// Rules for convolutions, ragged contractions and einsums.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
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

Slot Param(const char* path) { return {SlotKind::kParam, path}; }
const Slot kX{SlotKind::kData, "x"}, kGroups{SlotKind::kData, "groups"}, kOut{SlotKind::kData, "out"};

const Input kInputs[] = {{kX, {DType::kF32, {6, 4, 4}}},
                         {kGroups, {DType::kS32, {2}}},
                         {Param("conv"), {DType::kF32, {3, 2, 8}}},
                         {Param("swapped"), {DType::kF32, {8, 5}}},
                         {Param("kept"), {DType::kF32, {5, 4, 6}}},
                         {Param("experts"), {DType::kF32, {2, 6, 3}}},
                         {Param("head"), {DType::kF32, {3, 2}}}};

// One contraction of each kind, and an einsum whose operands are exchanged in the product: f comes before b.
Values Model(In in) {
  Value h;
  {
    const NamedScope scope("conv");
    h = ops::Conv(in[0], in[2], {.padding = ConvPadding::kSame, .feature_group_count = 2});
  }
  {
    const NamedScope scope("swapped");
    h = ops::Einsum("btc,cf->fbt", h, in[3]);
  }
  {
    const NamedScope scope("kept");
    h = ops::Einsum("fbt,ftn->bn", h, in[4]);
  }
  {
    const NamedScope scope("experts");
    h = ops::RaggedDot(h, in[5], in[1]);
  }
  const NamedScope scope("head");
  return {ops::MatMul(h, in[6])};
}

Program Traced() { return *Trace(Model, kInputs, std::vector<Slot>{kOut}); }

SlotValues Params() {
  SlotValues values;
  uint64_t seed = 1;
  for (const Input& input : kInputs) {
    if (input.slot.kind == SlotKind::kParam) values[input.slot] = RandomArray(input.aval, seed++);
  }
  return values;
}

DotGeneralConfig Int8Conv() { return {.fwd = ConvGeneralDilatedMake(1, 8, 8)}; }

// int8 everywhere; weights in the given mode.
InjectConfig All(QuantMode mode = QuantMode::kTrain, const DotGeneralConfig& config = DotGeneralMake(8, 8)) {
  InjectConfig inject;
  inject.rules.push_back({.ops = {"conv"}, .dot_general = Int8Conv()});
  inject.rules.push_back({.ops = {"dot_general", "ragged_dot", "einsum"}, .dot_general = config});
  inject.param_mode = mode;
  inject.semantics.arithmetic = Arithmetic::kIeee;
  return inject;
}

// Rules that do not name an operation mean dot_general, as they did before other kinds existed.
TEST(InjectKindsTest, OnlyNamedOperationsAreHit) {
  InjectConfig config;
  config.rules.push_back({.dot_general = DotGeneralMake(8, 8)});
  InjectReport report;
  const absl::StatusOr<Program> program = Inject(Traced(), config, nullptr, &report);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(CountOps(*program, "aqt_dot_general"), 1);
  EXPECT_EQ(report.ToString(config),
            "conv: 0 of 1 quantized\n"
            "  conv [conv] (f32[6,4,4], f32[3,2,8]): no rule\n"
            "einsum: 0 of 2 quantized\n"
            "  einsum [swapped] (f32[6,4,8], f32[8,5]): no rule\n"
            "  einsum [kept] (f32[5,6,4], f32[5,4,6]): no rule\n"
            "ragged_dot: 0 of 1 quantized\n"
            "  ragged_dot [experts] (f32[6,6], f32[2,6,3], s32[2]): no rule\n"
            "dot_general: 1 of 1 quantized\n"
            "  dot_general [head] (f32[6,3], f32[3,2]): rule 1: lhs int8:s8, rhs int8:s8\n");
}

TEST(InjectKindsTest, EachKindIsQuantized) {
  InjectReport report;
  const absl::StatusOr<Program> program = Inject(Traced(), All(), nullptr, &report);
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(report.hits, ElementsAre(1, 4));
  EXPECT_EQ(CountOps(*program, "aqt_conv"), 1);
  EXPECT_EQ(CountOps(*program, "aqt_ragged_dot"), 1);
  EXPECT_EQ(CountOps(*program, "aqt_dot_general"), 3);
  for (const char* name : {"conv", "einsum", "ragged_dot", "dot_general"}) EXPECT_EQ(CountOps(*program, name), 0);
  EXPECT_THAT(ToText(*program),
              HasSubstr("aqt_conv(%0, %2) {padding=SAME, groups=2, fwd=(int8:s8 absmax shared=[1,2] * int8:s8 absmax "
                        "shared=[0,1] -> s32), dlhs=float, drhs=float, ieee} @conv"));
}

// Where the product is rhs x lhs, the weight is its lhs: all settings are exchanged, and so are the names.
TEST(InjectKindsTest, OriginsAreThoseOfTheEquation) {
  InjectConfig config;
  DotGeneralConfig weights = DotGeneralMake(std::nullopt, 8, {.use_fwd_quant = false});
  config.rules.push_back({.ops = {"einsum"}, .rhs_origin = OperandOrigin::kParam, .dot_general = weights});
  config.param_mode = QuantMode::kConvert;
  const absl::StatusOr<Program> program = Inject(Traced(), config);
  ASSERT_THAT(program, IsOk());
  std::vector<std::string> outputs;
  for (const Program::Port& port : program->outputs) outputs.push_back(port.slot.ToString());
  EXPECT_THAT(outputs, ElementsAre("data \"out\"", "frozen \"swapped/qlhs/value\"", "frozen \"swapped/qlhs/scale\"",
                                   "frozen \"kept/qrhs/value\"", "frozen \"kept/qrhs/scale\""));
  EXPECT_THAT(ToText(*program), HasSubstr("fwd=(int8:s8 absmax * float), dlhs=float, drhs=float"));
  config.rules[0].rhs_origin = OperandOrigin::kData;
  EXPECT_THAT(Inject(Traced(), config), FailsWith(absl::StatusCode::kInvalidArgument, {"hit nothing"}));
}

TEST(InjectKindsTest, FoldingTheConvertedProgramGivesTheServingProgram) {
  const absl::StatusOr<Program> converted = Inject(Traced(), All(QuantMode::kConvert));
  ASSERT_THAT(converted, IsOk());
  const absl::StatusOr<Folded> folded = Fold(*converted, Params());
  ASSERT_THAT(folded, IsOk());
  const absl::StatusOr<Program> served = Inject(Traced(), All(QuantMode::kServe), &folded->values);
  ASSERT_THAT(served, IsOk());
  const Program serving = Dce(*served, {.drop_inputs = {SlotKind::kParam}});
  EXPECT_EQ(ToText(folded->program), ToText(serving));
  EXPECT_TRUE(serving.InputsOfKind(SlotKind::kParam).empty());
  EXPECT_EQ(folded->values.size(), 10u);  // a qvalue and a scale for each weight: no float is stored

  SlotValues values = Params();
  values[kX] = RandomArray({DType::kF32, {6, 4, 4}}, 9);
  values[kGroups] = Array::Of<int32_t>({2, 3}, {2});
  const absl::StatusOr<SlotValues> want = EvalSlots(*Inject(Traced(), All()), values);
  SlotValues frozen = folded->values;
  frozen[kX] = values[kX];
  frozen[kGroups] = values[kGroups];
  const absl::StatusOr<SlotValues> got = EvalSlots(serving, frozen);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual(got->at(kOut), want->at(kOut)));
}

TEST(InjectKindsTest, GradientsAreQuantized) {
  const Program loss = *Trace([](In in) { return Values{ops::ReduceSum(Model(in)[0])}; }, kInputs);
  const absl::StatusOr<Program> gradient =
      Grad(*Inject(loss, All(QuantMode::kTrain, FullyQuantized())), {2, 3, 4, 5, 6});
  ASSERT_THAT(gradient, IsOk());
  EXPECT_EQ(CountOps(*gradient, "aqt_conv_bwd"), 1);
  EXPECT_EQ(CountOps(*gradient, "aqt_ragged_dot_bwd"), 1);
  EXPECT_EQ(CountOps(*gradient, "aqt_dot_general_bwd"), 3);
  EXPECT_EQ(gradient->InputsOfKind(SlotKind::kKey).size(), 1u);
}

TEST(InjectKindsTest, AMissingFrozenTensorIsNamed) {
  absl::StatusOr<Folded> folded = Fold(*Inject(Traced(), All(QuantMode::kConvert)), Params());
  ASSERT_THAT(folded, IsOk());
  for (const auto& [path, scope] :
       {std::pair("conv/qrhs/value", "[conv]"), std::pair("swapped/qlhs/scale", "[swapped]"),
        std::pair("experts/qrhs/value", "[experts]")}) {
    SlotValues frozen = folded->values;
    ASSERT_EQ(frozen.erase({SlotKind::kFrozen, path}), 1u) << path;
    EXPECT_THAT(Inject(Traced(), All(QuantMode::kServe), &frozen),
                FailsWith(absl::StatusCode::kNotFound, {scope, absl::StrCat("frozen \"", path, "\" is missing")}));
  }
}

// The side is the equation's, though the tensor has the product's name.
TEST(InjectKindsTest, AMissingFrozenTensorIsRequantized) {
  absl::StatusOr<Folded> folded = Fold(*Inject(Traced(), All(QuantMode::kConvert)), Params());
  ASSERT_THAT(folded, IsOk());
  folded->values.erase({SlotKind::kFrozen, "swapped/qlhs/scale"});
  InjectConfig config = All(QuantMode::kServe);
  config.allow_requantize = true;
  InjectReport report;
  const absl::StatusOr<Program> program = Inject(Traced(), config, &folded->values, &report);
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(report.contractions[1].requantized, ElementsAre("rhs"));
  SlotValues values = Params();
  values.merge(folded->values);
  values[kX] = RandomArray({DType::kF32, {6, 4, 4}}, 9);
  values[kGroups] = Array::Of<int32_t>({2, 3}, {2});
  const absl::StatusOr<SlotValues> want = EvalSlots(*Inject(Traced(), All()), values),
                                   got = EvalSlots(*program, values);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual(got->at(kOut), want->at(kOut)));
}

// A configuration that a kind does not support is refused, with the scope and the line.
TEST(InjectKindsTest, IllegalConfigurations) {
  InjectConfig config = All();
  config.rules[0].dot_general = FullyQuantized();
  EXPECT_THAT(Inject(Traced(), config), FailsWith(absl::StatusCode::kInvalidArgument,
                                                  {"aqt_conv [conv]: ", "sets dlhs", "inject_kinds_test.cc:"}));
  config = All();
  config.rules[1].dot_general->tiling.emplace();
  EXPECT_THAT(Inject(Traced(), config),
              FailsWith(absl::StatusCode::kInvalidArgument, {"tiling", "inject_kinds_test.cc:"}));
  config = All();
  config.rules.insert(config.rules.begin(),
                      {.scope = "swapped", .ops = {"einsum"}, .dot_general = DotGeneralMake(8, 8)});
  config.rules[0].dot_general->fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
  EXPECT_THAT(
      Inject(Traced(), config),
      FailsWith(absl::StatusCode::kInvalidArgument,
                {"[swapped]", "einsum \"btc,cf->fbt\" (as rhs x lhs: sides and passes are exchanged)", "fwd.lhs"}));
}

// A rule of a textproto, with the preset of convolutions.
TEST(InjectKindsTest, Text) {
  const char* text = R"(
    schema: 1
    rules { ops: "conv" dot_general { base: "int8_fwd" } }
    rules { ops: ["einsum", "ragged_dot"] keep: true })";
  const absl::StatusOr<InjectConfig> config = InjectConfigFromText(text);
  ASSERT_THAT(config, IsOk());
  EXPECT_THAT(config->rules[1].ops, ElementsAre("einsum", "ragged_dot"));
  EXPECT_EQ(*InjectConfigFromText(ToText(*config)), *config);
  const absl::StatusOr<Program> program = Inject(Traced(), *config);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(CountOps(*program, "aqt_conv"), 1);
  EXPECT_THAT(InjectConfigFromText("schema: 1 rules { ops: 'relu' keep: true }"),
              FailsWith(absl::StatusCode::kInvalidArgument, {"op \"relu\" cannot be quantized", "\"ragged_dot\""}));
}

}  // namespace
}  // namespace aqt
