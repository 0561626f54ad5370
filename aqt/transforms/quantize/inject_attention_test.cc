// Rules and the contractions inside an attention.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/attention/attention.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_outline.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// Two attentions in one scope, and one outside all scopes, whose keys and values are parameters. Around them are two
// dot_generals.
Values Model(In in) {
  const Value &x = in[0], &weight = in[1], &keys = in[2], &mask = in[3];
  const DotDims dims{.lhs_contracting = {3}, .rhs_contracting = {0}};
  Value h = ops::DotGeneral(x, weight, dims);
  {
    const NamedScope scope("layer");
    h = ops::Attention({.query = h, .key = h, .value = h, .mask = mask});
    h = ops::Attention({.query = h, .key = x, .value = h, .bias = ops::Cast(mask, DType::kF32)});
  }
  h = ops::Attention({.query = h, .key = keys, .value = keys});
  return {ops::DotGeneral(h, weight, dims)};
}

Program Traced() {
  const Shape shape{2, 6, 3, 4};
  return *Trace(Model, {{{SlotKind::kData, "x"}, {DType::kF32, shape}},
                        {{SlotKind::kParam, "weight"}, {DType::kF32, {4, 4}}},
                        {{SlotKind::kParam, "keys"}, {DType::kF32, shape}},
                        {{SlotKind::kData, "mask"}, {DType::kBool, {6, 6}}}});
}

InjectConfig Rules(std::vector<InjectRule> rules) {
  InjectConfig config;
  config.rules = std::move(rules);
  config.strict = false;
  return config;
}

// What the rules do, and their report, is what they do to the parts. `whole`: the attentions that stay.
void ExpectAsInParts(const InjectConfig& config, int whole) {
  const Program program = Traced(), parts = *Expand(program, {"attention"});
  InjectReport got, want, outlined = *ReportInjection(ToText(program), config);
  const absl::StatusOr<Program> injected = Inject(program, config, nullptr, &got);
  const absl::StatusOr<Program> of_parts = Inject(parts, config, nullptr, &want);
  ASSERT_THAT(injected, IsOk());
  ASSERT_THAT(of_parts, IsOk());
  EXPECT_EQ(CountOps(*injected, "attention"), whole);
  EXPECT_EQ(ToText(*Expand(*injected, {"attention"})), ToText(*of_parts));
  for (const InjectReport* report : {&got, &outlined}) {
    EXPECT_EQ(report->ToString(config), want.ToString(config));
    EXPECT_EQ(report->hits, want.hits);
    EXPECT_EQ(report->unmatched, want.unmatched);
  }
}

TEST(InjectAttentionTest, StaysWithoutARuleForItsProducts) {
  const DotGeneralConfig int8 = DotGeneralMake(8, 8);
  ExpectAsInParts(Rules({}), 3);
  ExpectAsInParts(Rules({{.scope = ".*/fc", .dot_general = int8}}), 3);
  ExpectAsInParts(Rules({{.ops = {"einsum"}, .dot_general = int8}}), 3);
  // A rule that keeps them hits them.
  ExpectAsInParts(Rules({{.scope = "(.*/)?(qk|av)"}, {.dot_general = int8}}), 3);
}

TEST(InjectAttentionTest, GivesWayToARuleForOneOfItsProducts) {
  const DotGeneralConfig int8 = DotGeneralMake(8, 8);
  ExpectAsInParts(Rules({{.scope = "layer/qk", .dot_general = int8}}), 1);
  ExpectAsInParts(Rules({{.scope = "qk", .dot_general = int8}}), 2);
  ExpectAsInParts(Rules({{.scope = "layer/qk"}, {.scope = ".*av", .dot_general = int8}}), 0);
  ExpectAsInParts(Rules({{.dot_general = int8}}), 0);
  // The keys of the last one are parameters, and so are its values.
  ExpectAsInParts(Rules({{.rhs_origin = OperandOrigin::kParam, .dot_general = int8}}), 2);
  ExpectAsInParts(Rules({{.lhs_origin = OperandOrigin::kParam, .dot_general = int8}}), 3);
}

TEST(InjectAttentionTest, AStrictRuleThatHitsNothingListsThem) {
  InjectConfig config = Rules({{.scope = "elsewhere", .dot_general = DotGeneralMake(8, 8)}});
  config.strict = true;
  EXPECT_THAT(Inject(Traced(), config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"hit nothing", "dot_general [layer/qk] (f32[2,6,3,4], f32[2,6,3,4]): no rule",
                         "dot_general [layer/av/dot_1] (f32[2,3,6,6], f32[2,6,3,4]): no rule"}));
}

TEST(InjectAttentionTest, TextsThatAreNoAttention) {
  const InjectConfig config;
  for (const char* text : {"in %0: f32[2] data \"x\"\n%1: f32[2] = attention(%0, %0, %0)",
                           "in %0: f99[2,2,2,2] data \"x\"\n%1: f32[2] = attention(%0, %0, %0)",
                           "in %0: f32[2,2,99999999999999999999,2] data \"x\"\n%1: f32[2] = attention(%0, %0, %0)",
                           "in %0: f32[2,2,2,2] data \"x\"\n%1: f32[2] = attention(%0)"}) {
    EXPECT_TRUE(ReportInjection(text, config)->contractions.empty()) << text;
  }
}

}  // namespace
}  // namespace aqt
