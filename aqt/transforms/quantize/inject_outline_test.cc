#include "aqt/transforms/quantize/inject_outline.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::ElementsAre;

// Every kind twice in a scope, with weights on either side, one of them computed from another weight.
std::vector<Value> Model(absl::Span<const Value> in) {
  const NamedScope outer("net");
  const NamedScope scope("a b");
  Value h = ops::Conv(in[0], in[2], {.window_strides = {2}, .padding = ConvPadding::kSame});
  h = ops::Conv(h, in[2] * 2.0, {.padding = ConvPadding::kSame});
  h = ops::Einsum("btc,cf->fb", h, in[3]);
  h = ops::DotGeneral(in[3], h, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  const Value rows = ops::Transpose(h, {1, 0});
  return {ops::RaggedDot(rows, in[4], in[1]), ops::Einsum("ab,ab->a", rows, rows)};
}

Program Traced() {
  const auto param = [](const char* path) { return Slot{SlotKind::kParam, path}; };
  return *Trace(Model,
                {{{SlotKind::kData, "x"}, {DType::kF32, {6, 8, 4}}},
                 {{SlotKind::kData, "sizes"}, {DType::kS32, {2}}},
                 {param("conv"), {DType::kF32, {3, 4, 4}}},
                 {param("weight"), {DType::kF32, {4, 4}}},
                 {param("experts"), {DType::kF32, {2, 4, 3}}}},
                {{SlotKind::kData, "out \"quoted\" @ here"}, {SlotKind::kData, "sums"}});
}

// The report over the text is that of Inject.
TEST(ReportInjection, IsWhatInjectReports) {
  const Program program = Traced();
  std::vector<InjectConfig> configs(5);
  configs[0].rules.push_back({.name = "none", .scope = "elsewhere", .dot_general = DotGeneralMake(8, 8)});
  configs[1].rules.push_back(
      {.ops = {"conv"}, .dot_general = DotGeneralConfig{.fwd = ConvGeneralDilatedMake(1, 8, 4)}});
  configs[2].rules.push_back({.scope = "net/a b",
                              .ops = {"dot_general", "einsum", "ragged_dot"},
                              .rhs_origin = OperandOrigin::kParam,
                              .dot_general = DotGeneralMake(8, 8)});
  configs[2].rules.push_back({.lhs_origin = OperandOrigin::kParam, .dot_general = DotGeneralMake(4, 8)});
  configs[2].param_mode = QuantMode::kConvert;
  configs[3].rules.push_back({.ops = {"einsum"}, .lhs_origin = OperandOrigin::kData});
  configs[3].rules.push_back(
      {.ops = {"ragged_dot"}, .dot_general = DotGeneralMake(8, 8), .rhs_mode = QuantMode::kServe});
  for (InjectConfig& config : configs) {
    config.strict = false;
    InjectReport want;
    ASSERT_THAT(Inject(program, config, nullptr, &want), IsOk());
    for (const bool source_lines : {false, true}) {
      const absl::StatusOr<InjectReport> got = ReportInjection(ToText(program, {.source_lines = source_lines}), config);
      ASSERT_THAT(got, IsOk());
      EXPECT_EQ(got->ToString(config), want.ToString(config));
      EXPECT_EQ(got->hits, want.hits);
      EXPECT_EQ(got->unmatched, want.unmatched);
    }
  }
}

TEST(ReportInjection, KindByKind) {
  InjectConfig config;
  config.rules.push_back(
      {.name = "convs", .ops = {"conv"}, .dot_general = DotGeneralConfig{.fwd = ConvGeneralDilatedMake(1, 8, 4)}});
  config.rules.push_back({.rhs_origin = OperandOrigin::kParam, .dot_general = DotGeneralMake(8, 8)});
  config.param_mode = QuantMode::kConvert;
  const absl::StatusOr<InjectReport> report = ReportInjection(ToText(Traced()), config);
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(
      report->ToString(config),
      "conv: 2 of 2 quantized\n"
      "  conv [net/a b] (f32[6,8,4], f32[3,4,4]): rule \"convs\": lhs int8:s8, rhs int4:s4 in QUANT_MODE_CONVERT\n"
      "  conv [net/a b/dot_1] (f32[6,4,4], f32[3,4,4]): rule \"convs\": lhs int8:s8, rhs int4:s4 in "
      "QUANT_MODE_CONVERT\n"
      "einsum: 0 of 2 quantized\n"
      "  einsum [net/a b/dot_2] (f32[6,4,4], f32[4,4]): no rule\n"
      "  einsum [net/a b/dot_5] (f32[6,4], f32[6,4]): no rule\n"
      "dot_general: 0 of 1 quantized\n"
      "  dot_general [net/a b/dot_3] (f32[4,4], f32[4,6]): no rule\n"
      "ragged_dot: 0 of 1 quantized\n"
      "  ragged_dot [net/a b/dot_4] (f32[6,4], f32[2,4,3], s32[2]): no rule\n"
      "rule 2 hit nothing\n");
  EXPECT_THAT(report->unmatched, ElementsAre("rule 2"));
}

TEST(ReportInjection, TextsThatAreNoProgram) {
  const InjectConfig config;
  const auto fails = [&](absl::string_view text, std::vector<std::string> parts) {
    EXPECT_THAT(ReportInjection(text, config), FailsWith(absl::StatusCode::kInvalidArgument, std::move(parts)));
  };
  fails("in %0: f32[2] data \"x\"\nhello\n", {"line 2, \"hello\"", "is not a line of a program's text"});
  fails("%1: f32[2] = exp(%0)", {"line 1", "reads %0, which is not defined"});
  fails("in %0: f32[2] data \"x\"\n%1: f32 = exp(%0)",
        {"line 2", "declares \"%1: f32\", expected %number: dtype[shape]"});
  fails("in %0: f32[2] data \"x\"\n%1: f32[2] = conv(%0)", {"line 2", "conv has 1 operands, expected 2 or more"});
  EXPECT_THAT(ReportInjection("", config), IsOk());
  InjectConfig wrong;
  wrong.rules.push_back({.scope = "("});
  EXPECT_THAT(ReportInjection("", wrong),
              FailsWith(absl::StatusCode::kInvalidArgument, {"not a valid regular expression"}));
}

}  // namespace
}  // namespace aqt
