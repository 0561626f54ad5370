#include "aqt/transforms/quantize/fold.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"};
const Slot kW{SlotKind::kParam, "w"};
const Slot kB{SlotKind::kParam, "b"};

Program TraceXwb(TracedFunction fn) {
  return *Trace(fn, {{kX, {DType::kF32, {2, 3}}}, {kW, {DType::kF32, {3, 3}}}, {kB, {DType::kF32, {3}}}});
}

SlotValues Known() { return {{kW, RandomArray({DType::kF32, {3, 3}}, 1)}, {kB, RandomArray({DType::kF32, {3}}, 2)}}; }

// Folds, checks that the outputs keep their bits, and returns the result.
Folded FoldAndCompare(const Program& program) {
  absl::StatusOr<Folded> folded = Fold(program, Known());
  EXPECT_THAT(folded, IsOk());
  SlotValues before = Known(), after = folded->values;
  before[kX] = after[kX] = RandomArray({DType::kF32, {2, 3}}, 3);
  absl::StatusOr<SlotValues> want = EvalSlots(program, before), got = EvalSlots(folded->program, after);
  EXPECT_THAT(want, IsOk());
  EXPECT_THAT(got, IsOk());
  for (const auto& [slot, array] : *got) EXPECT_TRUE(BitEqual(array, want->at(slot))) << slot.ToString();
  for (const auto& [slot, array] : *want) {
    if (got->count(slot) == 0) {  // a frozen output has become a value
      EXPECT_TRUE(BitEqual(array, folded->values.at(slot))) << slot.ToString();
    }
  }
  return *std::move(folded);
}

TEST(FoldTest, ComputesWhatDependsOnKnownInputsAlone) {
  const Folded folded = FoldAndCompare(TraceXwb([](In in) {
    const NamedScope scope("fc");
    const Value doubled = in[1] * 2.0;
    const Value moved = ops::Transpose(doubled, {1, 0}) + 1.0;
    return Values{ops::MatMul(in[0], moved) + in[2]};
  }));
  // The bias is used directly; its broadcast is not stored.
  EXPECT_EQ(ToText(folded.program), R"(in %0: f32[2,3] data "x"
in %1: f32[3] param "b"
in %2: f32[3,3] frozen "fc/folded_0"
%3: f32[2,3] = dot_general(%0, %2) {dims=(([1],[0]),([],[]))} @fc
%4: f32[2,3] = broadcast(%1) {axes=[1]} @fc
%5: f32[2,3] = add(%3, %4) @fc
out %5 data "0"
)");
  EXPECT_EQ(folded.values.size(), 2u);
}

TEST(FoldTest, FrozenOutputsNameTheValues) {
  const Folded folded = FoldAndCompare(TraceXwb([](In in) {
    const Value scale = ops::ReduceMax(ops::Abs(in[1]), {0}, true);
    const Value q = ops::Round(in[1] / scale);
    WriteSlot({SlotKind::kFrozen, "fc/scale"}, scale);
    WriteSlot({SlotKind::kFrozen, "fc/q"}, q);
    WriteSlot({SlotKind::kFrozen, "unused"}, ops::ReduceMax(in[1]));
    return Values{ops::MatMul(in[0], q) * scale};
  }));
  EXPECT_EQ(ToText(folded.program), R"(in %0: f32[2,3] data "x"
in %1: f32[1,3] frozen "fc/scale"
in %2: f32[3,3] frozen "fc/q"
%3: f32[2,3] = dot_general(%0, %2) {dims=(([1],[0]),([],[]))}
%4: f32[2,3] = broadcast(%1) {axes=[0,1]}
%5: f32[2,3] = mul(%3, %4)
out %5 data "0"
)");
  EXPECT_EQ(folded.values.count({SlotKind::kFrozen, "unused"}), 1u);
}

// Every kind of frozen output gets its value.
TEST(FoldTest, EveryFrozenOutputHasAValue) {
  const auto frozen = [](const char* path) { return Slot{SlotKind::kFrozen, path}; };
  const Program program = TraceXwb([&](In in) {
    const Value one = Value(Array::Scalar(1.0f)), wide = ops::BroadcastTo(in[2], {2, 3});
    WriteSlot(frozen("input"), in[1]);  // read by the rest directly
    WriteSlot(frozen("input again"), in[1]);
    WriteSlot(frozen("unread input"), in[2]);
    WriteSlot(frozen("constant"), one);
    WriteSlot(frozen("computed constant"), one + 2.0);
    WriteSlot(frozen("broadcast"), wide);  // a broadcast that stays, because the rest uses it
    const Value doubled = in[1] * 2.0;
    WriteSlot(frozen("twice"), doubled);
    WriteSlot(frozen("twice again"), doubled);
    const Value unread = in[1] * 3.0;
    WriteSlot(frozen("unread"), unread);
    WriteSlot(frozen("unread again"), unread);
    return Values{ops::MatMul(in[0], in[1]) + ops::MatMul(in[0], doubled) + wide};
  });
  const Folded folded = FoldAndCompare(program);
  std::vector<std::string> names;
  for (const auto& [slot, array] : folded.values) names.push_back(slot.ToString());
  EXPECT_THAT(names, ::testing::ElementsAre("param \"b\"", "param \"w\"", "frozen \"broadcast\"",
                                            "frozen \"computed constant\"", "frozen \"constant\"", "frozen \"input\"",
                                            "frozen \"input again\"", "frozen \"twice\"", "frozen \"twice again\"",
                                            "frozen \"unread\"", "frozen \"unread again\"", "frozen \"unread input\""));
  ASSERT_EQ(folded.program.outputs.size(), 1u);
  ASSERT_EQ(folded.program.inputs.size(), 4u);  // x, w, b and one of the two names of w * 2
  EXPECT_EQ(folded.program.inputs[3].slot, frozen("twice"));
}

// Names that Fold creates do not collide with those of frozen outputs.
TEST(FoldTest, MadeNamesAreFree) {
  const Folded folded = FoldAndCompare(TraceXwb([](In in) {
    WriteSlot({SlotKind::kFrozen, "folded_0"}, in[1] * 2.0);
    WriteSlot({SlotKind::kFrozen, "folded_1"}, in[0]);  // not known: stays an output
    return Values{ops::MatMul(in[0], in[1] * 3.0)};
  }));
  EXPECT_EQ(folded.values.count({SlotKind::kFrozen, "folded_0"}), 1u);
  EXPECT_EQ(folded.values.count({SlotKind::kFrozen, "folded_2"}), 1u);
  EXPECT_EQ(folded.values.size(), 2u);
}

TEST(FoldTest, AFrozenOutputWithTheNameOfAnInput) {
  const Slot q{SlotKind::kFrozen, "q"};
  const auto trace = [&](bool reads, bool same) {
    return *Trace(
        [&](In in) {
          WriteSlot(q, same ? in[1] : in[1] * 2.0);
          return Values{reads ? in[0] + in[1] : in[0]};
        },
        {{kX, {DType::kF32, {2}}}, {q, {DType::kF32, {2}}}});
  };
  const Array value = Array::Of<float>({1, 2}, {2}), doubled = Array::Of<float>({2, 4}, {2});
  const SlotValues known = {{q, value}};
  absl::StatusOr<Folded> folded = Fold(trace(/*reads=*/false, /*same=*/false), known);
  ASSERT_THAT(folded, IsOk());
  EXPECT_TRUE(BitEqual(folded->values.at(q), doubled));
  folded = Fold(trace(/*reads=*/true, /*same=*/true), known);
  ASSERT_THAT(folded, IsOk());
  EXPECT_TRUE(BitEqual(folded->values.at(q), value));
  EXPECT_THAT(Fold(trace(/*reads=*/true, /*same=*/false), known),
              FailsWith(absl::StatusCode::kInvalidArgument, {"frozen \"q\"", "another value"}));
}

TEST(FoldTest, FrozenOutputsNeedTheirParametersAndStatistics) {
  const Slot stat{SlotKind::kStat, "fc/sum"}, q{SlotKind::kFrozen, "q"};
  const auto trace = [&](bool writes_q, bool from_data) {
    return *Trace(
        [&](In in) {
          const Value scaled = in[1] * InputSlot(stat, {DType::kF32, {}});
          if (writes_q) WriteSlot(q, from_data ? in[0] * 2.0 : scaled);
          return Values{in[0] * scaled};
        },
        {{kX, {DType::kF32, {2}}}, {kW, {DType::kF32, {2}}}});
  };
  const SlotValues w = {{kW, Array::Of<float>({1, 2}, {2})}}, s = {{stat, Array::Scalar(2.0f)}};
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_THAT(Fold(trace(true, false), w),
              FailsWith(kNotFound, {"fold: frozen \"q\" is computed from stat \"fc/sum\", which has no value"}));
  EXPECT_THAT(Fold(trace(true, false), s), FailsWith(kNotFound, {"frozen \"q\"", "param \"w\""}));
  EXPECT_THAT(Fold(trace(true, false), {}), FailsWith(kNotFound, {"param \"w\", stat \"fc/sum\", which have"}));
  // Without a frozen output, or with one that depends on data, the program still reads its inputs.
  EXPECT_THAT(Fold(trace(false, false), w), IsOk());
  absl::StatusOr<Folded> folded = Fold(trace(true, true), w);
  ASSERT_THAT(folded, IsOk());
  ASSERT_EQ(folded->program.outputs.size(), 2u);
  EXPECT_EQ(folded->program.outputs[1].slot, q);
}

TEST(FoldTest, ConstantsStayConstants) {
  const Folded folded = FoldAndCompare(TraceXwb([](In in) {
    const Value two = ops::Exp(ops::Log(Value(Array::Scalar(2.0f))));
    return Values{in[0] * (two + 1.0)};
  }));
  EXPECT_EQ(ToText(folded.program), R"(in %0: f32[2,3] data "x"
const %1: f32[] = 3
%2: f32[2,3] = broadcast(%1) {axes=[]}
%3: f32[2,3] = mul(%0, %2)
out %3 data "0"
)");
  EXPECT_TRUE(folded.values.empty());
}

TEST(FoldTest, ABroadcastCanStayAndBeUsedByWhatIsFolded) {
  const Folded folded = FoldAndCompare(TraceXwb([](In in) {
    const Value wide = ops::BroadcastTo(ops::BroadcastTo(in[2], {1, 3}), {3, 3});
    return Values{ops::MatMul(in[0], in[1] + wide) + ops::Slice(wide, {0, 0}, {2, 3}), ops::MatMul(in[0], wide)};
  }));
  EXPECT_EQ(folded.values.count(kB), 1u);
  EXPECT_EQ(folded.values.size(), 3u);  // w + wide, the slice, b
}

TEST(FoldTest, KnownValuesAsOutputsStay) {
  const Folded folded = FoldAndCompare(TraceXwb([](In in) { return Values{in[1], in[1] + 1.0, in[0]}; }));
  EXPECT_EQ(ToText(folded.program), R"(in %0: f32[2,3] data "x"
in %1: f32[3,3] param "w"
in %2: f32[3,3] frozen "folded_0"
out %1 data "0"
out %2 data "1"
out %0 data "2"
)");
}

TEST(FoldTest, Errors) {
  const Program program = TraceXwb([](In in) { return Values{ops::MatMul(in[0], in[1])}; });
  EXPECT_THAT(Fold(program, {{kW, Array::Zeros(DType::kF32, {3, 4})}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"param \"w\"", "f32[3,3]", "f32[3,4]"}));
  const Slot key{SlotKind::kKey, "noise"};
  const absl::StatusOr<Program> random = Trace(
      [](In in) {
        return Values{ops::Reshape(in[0], {2, 1})};
      },
      {{key, {DType::kU32, {2}}}});
  EXPECT_THAT(Fold(*random, {{key, Array::Zeros(DType::kU32, {2})}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"key \"noise\" is known; leave keys out"}));
}

TEST(DceTest, KeepsWhatOutputsNeed) {
  const Program program = TraceXwb([](In in) {
    ops::Exp(in[2]).status().IgnoreError();
    WriteSlot({SlotKind::kStat, "max"}, ops::ReduceMax(in[0]));
    return Values{in[0] + 1.0};
  });
  const Program out = Dce(program);
  EXPECT_THAT(Check(out), IsOk());
  EXPECT_EQ(out.inputs.size(), 3u);
  EXPECT_EQ(ToText(Dce(program, {.drop_inputs = {SlotKind::kParam}})), R"(in %0: f32[2,3] data "x"
const %1: f32[] = 1
%2: f32[] = reduce_max(%0) {axes=[0,1]}
%3: f32[2,3] = broadcast(%1) {axes=[]}
%4: f32[2,3] = add(%0, %3)
out %4 data "0"
out %2 stat "max"
)");
}

}  // namespace
}  // namespace aqt
