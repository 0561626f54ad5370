#include "aqt/transforms/quantize/inject_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::HasSubstr;

TEST(InjectProtoTest, ReadsEveryField) {
  absl::StatusOr<InjectConfig> config = InjectConfigFromText(R"(
      schema: 1
      rules { name: "last" scope: ".*/logits" keep: true }
      rules {
        scope: "mlp/.*"
        ops: "dot_general"
        lhs_origin: OPERAND_ORIGIN_DATA
        rhs_origin: OPERAND_ORIGIN_PARAM
        dot_general { base: "fully_quantized_int8" }
        lhs_mode: QUANT_MODE_TRAIN
        rhs_mode: QUANT_MODE_SERVE
        key_slot: "noise"
      }
      param_mode: QUANT_MODE_CONVERT
      data_mode: QUANT_MODE_CALIBRATE
      strict: false
      allow_requantize: true
      shared_key_slot: "keys"
      prng_layout: PRNG_LAYOUT_ORIGINAL
      arithmetic: ARITHMETIC_IEEE
      weight_only: WEIGHT_ONLY_FLOAT
      compat {
        mid_scales_on_original_operands: true
        read_unseen_calibration: true
        snr_rates_unrounded_scales: true
        snr_rates_in_tensor_dtype: true
        einsum_keeps_mid_alphas: true
        conv_integer_gradient_is_zero: true
        conv_ignores_accumulator_dtype: true
      })");
  ASSERT_THAT(config, IsOk());
  InjectConfig want;
  want.rules.push_back({.name = "last", .scope = ".*/logits"});
  want.rules.push_back({.scope = "mlp/.*",
                        .lhs_origin = OperandOrigin::kData,
                        .rhs_origin = OperandOrigin::kParam,
                        .dot_general = FullyQuantized(),
                        .lhs_mode = QuantMode::kTrain,
                        .rhs_mode = QuantMode::kServe,
                        .key_slot = "noise"});
  want.param_mode = QuantMode::kConvert;
  want.data_mode = QuantMode::kCalibrate;
  want.strict = false;
  want.allow_requantize = true;
  want.shared_key_slot = "keys";
  want.semantics = {.arithmetic = Arithmetic::kIeee,
                    .compat = {.mid_scales_on_original_operands = true,
                               .read_unseen_calibration = true,
                               .einsum_keeps_mid_alphas = true,
                               .conv_integer_gradient_is_zero = true,
                               .conv_ignores_accumulator_dtype = true,
                               .snr_rates_unrounded_scales = true,
                               .snr_rates_in_tensor_dtype = true},
                    .prng_layout = PrngLayout::kOriginal,
                    .weight_only = WeightOnly::kFloat};
  EXPECT_TRUE(*config == want);
  absl::StatusOr<InjectConfig> again = InjectConfigFromText(ToText(*config));
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(*again == want);
}

// AQT's builder always asks for sums in s32, and its convolution ignores that.
TEST(InjectProtoTest, AccumulatorDtypesThatConvolutionsIgnore) {
  const auto read = [](absl::string_view op, absl::string_view accumulator, bool ignored) {
    return InjectConfigFromText(
        absl::StrCat("schema: 1 rules { ops: \"", op,
                     "\" dot_general { fwd { rhs { quantizer { int_symmetric { bits: 8 } abs_max {} } } ",
                     "dg_accumulator_dtype: \"", accumulator,
                     "\" } } } compat { conv_ignores_accumulator_dtype: ", ignored ? "true" : "false", " }"));
  };
  const absl::StatusOr<InjectConfig> config = read("conv", "s32", true);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->rules[0].dot_general->fwd.dg_accumulator_dtype, DType::kS32);
  const absl::StatusOr<InjectConfig> again = InjectConfigFromText(ToText(*config));
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(*again == *config);
  const std::vector<std::string> refused = {"config:1:", "fwd.dg_accumulator_dtype",
                                            "lhs enters the product as a float"};
  EXPECT_THAT(read("conv", "s32", false), FailsWith(absl::StatusCode::kInvalidArgument, refused));
  EXPECT_THAT(read("dot_general", "s32", true), FailsWith(absl::StatusCode::kInvalidArgument, refused));
  // Other errors keep their place.
  EXPECT_THAT(read("conv", "s33", true), FailsWith(absl::StatusCode::kInvalidArgument, {"config:1:", "s33"}));
}

TEST(InjectProtoTest, Defaults) {
  absl::StatusOr<InjectConfig> config = InjectConfigFromText("schema: 1 rules { keep: true }");
  ASSERT_THAT(config, IsOk());
  InjectConfig want;
  want.rules.push_back({});
  EXPECT_TRUE(*config == want);
}

TEST(InjectProtoTest, ErrorsHaveAPlace) {
  struct Case {
    const char* text;
    std::vector<std::string> parts;
  };
  for (const Case& c : std::vector<Case>{
           {"schema: 1\nrules {\n  scoop: \"x\"\n}", {"rules.txt:3:", "scoop"}},
           {"rules { keep: true }", {"rules.txt", "schema"}},
           {"schema: 1", {"rules.txt", "no rule"}},
           {"schema: 1\nrules { scope: \"x\" }", {"rules.txt:2:", "dot_general { ... }, or keep: true"}},
           {"schema: 1\nrules { keep: false }", {"rules.txt:2:", "keep can only be true"}},
           {"schema: 1\nrules {\n  scope: \"a(\" keep: true\n}",
            {"rules.txt:3:", "\"a(\" is not a valid regular expression"}},
           {"schema: 1\nrules { keep: true\n ops: \"relu\" }", {"rules.txt:3:", "op \"relu\""}},
           {"schema: 1\nrules { keep: true lhs_mode: QUANT_MODE_UNSPECIFIED }", {"rules.txt:2:", "UNSPECIFIED"}},
           {"schema: 1\nrules {\n dot_general {\n base: \"int9\" } }", {"rules.txt:4:", "int9"}},
       }) {
    EXPECT_THAT(InjectConfigFromText(c.text, "rules.txt"), FailsWith(absl::StatusCode::kInvalidArgument, c.parts))
        << c.text;
  }
}

// Only the text decides whether a model is float, int8, int4 or a mix.
TEST(InjectProtoTest, TheTextDecides) {
  const Program program = *Trace(
      [](absl::Span<const Value> in) {
        Value x = in[0];
        for (const char* name : {"fc1", "fc2"}) {
          const NamedScope scope(name);
          x = ops::MatMul(x, in[1]);
        }
        return std::vector<Value>{x};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {3, 3}}}});
  const auto injected = [&](const std::string& rules) {
    absl::StatusOr<InjectConfig> config = InjectConfigFromText("schema: 1 " + rules);
    EXPECT_THAT(config, IsOk());
    absl::StatusOr<Program> out = Inject(program, *config);
    EXPECT_THAT(out, IsOk());
    return ToText(*out);
  };
  const std::string int8 =
      "dot_general { fwd { lhs { quantizer { int_symmetric { bits: 8 } abs_max {} } } "
      "rhs { quantizer { int_symmetric { bits: 8 } abs_max {} } } } } }";
  const std::string int4 =
      "dot_general { fwd { lhs { quantizer { int_symmetric { bits: 4 } abs_max {} } } "
      "rhs { quantizer { int_symmetric { bits: 4 } abs_max {} } } } } }";
  EXPECT_EQ(injected("rules { keep: true }"), ToText(program));
  EXPECT_EQ(injected("rules { " + int8), R"(in %0: f32[2,3] data "x"
in %1: f32[3,3] param "w"
%2: f32[2,3] = aqt_dot_general(%0, %1) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32), dlhs=float, drhs=float} @fc1
%3: f32[2,3] = aqt_dot_general(%2, %1) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32), dlhs=float, drhs=float} @fc2
out %3 data "0"
)");
  EXPECT_EQ(injected("rules { scope: 'fc1' " + int8 + " rules { " + int4), R"(in %0: f32[2,3] data "x"
in %1: f32[3,3] param "w"
%2: f32[2,3] = aqt_dot_general(%0, %1) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32), dlhs=float, drhs=float} @fc1
%3: f32[2,3] = aqt_dot_general(%2, %1) {dims=(([1],[0]),([],[])), fwd=(int4:s4 absmax * int4:s4 absmax -> s32), dlhs=float, drhs=float} @fc2
out %3 data "0"
)");
}

TEST(InjectProtoTest, PresetsAreWhatCppBuilds) {
  const InjectRule head{.name = "output head", .scope = "(.*/)?(logits|head|lm_head|output)"};
  const InjectRule rest{.name = "everything else", .dot_general = FullyQuantized()};
  DotGeneralConfig int4_weights = FullyQuantized();
  SetNumerics(int4_weights.fwd, NumericsFromBits(8), NumericsFromBits(4));
  const InjectRule feed_forward{.name = "feed-forward layers",
                                .scope = "(.*/)?(mlp|ffn|feed_forward)(/.*)?",
                                .rhs_origin = OperandOrigin::kParam,
                                .dot_general = int4_weights};
  const InjectRule conv{
      .name = "convolutions", .ops = {"conv"}, .dot_general = DotGeneralMake(8, 8, {.use_fwd_quant = false})};
  const InjectRule others{
      .name = "other contractions", .ops = {"dot_general", "einsum", "ragged_dot"}, .dot_general = FullyQuantized()};
  DotGeneralConfig rotated = FullyQuantized();
  rotated.fwd.hadamard = Hadamard{.block = 64};
  const InjectRule weights{
      .name = "weights", .ops = {"dot_general", "einsum"}, .rhs_origin = OperandOrigin::kParam, .dot_general = rotated};
  const std::vector<std::pair<std::string, InjectConfig>> presets = {
      {"int8_all", {.rules = {conv, others}, .strict = false}},
      {"int8_but_head", {.rules = {head, rest}, .strict = false}},
      {"int8_hadamard", {.rules = {conv, weights}, .strict = false}},
      {"mixed_int4_int8", {.rules = {head, feed_forward, rest}, .strict = false}}};
  std::vector<std::string> names;
  for (const auto& [name, want] : presets) {
    names.push_back(name);
    absl::StatusOr<InjectConfig> preset = InjectConfigFromPreset(name);
    ASSERT_THAT(preset, IsOk());
    EXPECT_EQ(ToText(*preset), ToText(want));
    EXPECT_TRUE(*preset == want) << name;
  }
  EXPECT_EQ(InjectPresetNames(), names);
  EXPECT_THAT(InjectConfigFromPreset("int3"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"no preset \"int3\"; presets are int8_all, int8_but_head, int8_hadamard, mixed"}));
}

TEST(InjectProtoTest, OtherNamesLeadToTheRightOnes) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"schema: 1 rule { }", "Write rules { ... }."},
      {"schema: 1 base: 'int8_but_head'", "a whole Inject has no base"},
      {"schema: 1 quant_rules { }", "Write prng_layout, arithmetic and weight_only themselves."},
      {"schema: 1 semantics { }", "Write arithmetic, compat, prng_layout and weight_only themselves."},
      {"schema: 1 rules { match: 'a' }", "Write scope."},
      {"schema: 1 rules { base: 'config_v4' }", "Write dot_general { base: ... }."},
      {"schema: 1 param_mode: TRAIN", "Write QUANT_MODE_TRAIN."},
      {"schema: 1 param_mode: CALIBRATE", "Write QUANT_MODE_CALIBRATE."},
      {"schema: 1 param_mode: CONVERT", "Write QUANT_MODE_CONVERT."},
      {"schema: 1 param_mode: SERVE", "Write QUANT_MODE_SERVE."},
      {"schema: 1 rules { dot_general { fwd { lhs { quantizer { int_numerics { } } } } } }", "Write int_symmetric."}};
  for (const auto& [text, remedy] : cases) {
    EXPECT_THAT(InjectConfigFromText(text, "t"), FailsWith(absl::StatusCode::kInvalidArgument, {"t:1:", remedy}));
  }
}

}  // namespace
}  // namespace aqt
