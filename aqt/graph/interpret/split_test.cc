#include "aqt/graph/interpret/split.h"

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::testing::ElementsAre;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kW{SlotKind::kParam, "w"}, kB{SlotKind::kParam, "b"};
const Slot kStored{SlotKind::kFrozen, "stored"}, kY{SlotKind::kData, "y"};
const Aval kMatrix{DType::kF32, {2, 3}};

Program TraceOf(const TracedFunction& fn) {
  const absl::StatusOr<Program> program =
      Trace(fn, {{kX, kMatrix}, {kW, kMatrix}, {kB, {DType::kF32, {3}}}}, std::vector<Slot>{kY});
  EXPECT_THAT(program, IsOk());
  return *program;
}

SlotValues Known() { return {{kW, RandomArray(kMatrix, 1)}, {kB, RandomArray({DType::kF32, {3}}, 2)}}; }

std::vector<std::string> OpsOf(const Program& program) {
  std::vector<std::string> names;
  for (const Equation& eqn : program.eqns) names.push_back(OpName(eqn.op));
  return names;
}

TEST(SplitTest, WhatIsKnownIsEvaluated) {
  // exp(w) is known; the bias is repeated for each row by an equation that stays; 1 + 2 comes from constants alone.
  const Program program = TraceOf([](In in) {
    const Value product = in[0] * ops::Exp(in[1]);
    const Value sum = product + ops::BroadcastInDim(in[2], {2, 3}, {1});
    const Value three = Value(Array::Scalar(1.0f)) + Value(Array::Scalar(2.0f));
    return Values{sum + ops::BroadcastInDim(three, {2, 3}, {})};
  });
  const SlotValues known = Known();
  const absl::StatusOr<Split> split = SplitProgram(program, known);
  ASSERT_THAT(split, IsOk());
  EXPECT_THAT(OpsOf(split->rest), ElementsAre("mul", "broadcast", "add", "broadcast", "add"));
  ASSERT_EQ(split->rest.inputs.size(), 2u);  // w is not read any more
  EXPECT_EQ(split->rest.inputs[0].slot, kX);
  EXPECT_EQ(split->rest.inputs[1].slot, kB);
  EXPECT_TRUE(split->results.empty());
  EXPECT_TRUE(split->rest.consts.empty());
  ASSERT_EQ(split->evaluated.size(), 2u);
  const Split::Evaluated &exp = split->evaluated[0], &three = split->evaluated[1];
  EXPECT_FALSE(exp.from_constants);
  EXPECT_EQ(OpName(program.eqns[exp.eqn].op), "exp");
  EXPECT_TRUE(BitEqual(exp.value, *ops::Exp(Value(known.at(kW))).ToArray()));
  EXPECT_TRUE(three.from_constants);
  EXPECT_EQ(three.value.View<float>()[0], 3);
}

TEST(SplitTest, FrozenOutputsAreResultsOnRequest) {
  const Program program = TraceOf([](In in) {
    const Value stored = in[1] * in[1];
    WriteSlot(kStored, stored);
    return Values{in[0] + ops::Exp(stored)};
  });
  const SlotValues known = Known();
  const absl::StatusOr<Split> split = SplitProgram(program, known, {.frozen_outputs_are_results = true});
  ASSERT_THAT(split, IsOk());
  ASSERT_EQ(split->results.size(), 1u);
  const Value w(known.at(kW));
  EXPECT_TRUE(BitEqual(split->results.at(kStored), *(w * w).ToArray()));
  EXPECT_EQ(split->rest.outputs.size(), 1u);
  ASSERT_EQ(split->evaluated.size(), 1u) << "only exp: the rest does not read its operand";

  const absl::StatusOr<Split> whole = SplitProgram(program, known);
  ASSERT_THAT(whole, IsOk());
  EXPECT_TRUE(whole->results.empty());
  EXPECT_EQ(whole->rest.outputs.size(), 2u);
  EXPECT_EQ(whole->evaluated.size(), 2u);
}

// A broadcast that is read by what stays and by what is evaluated is both.
TEST(SplitTest, BroadcastsOfKnownValuesStay) {
  const Program program = TraceOf([](In in) {
    const Value rows = ops::BroadcastInDim(in[2], {2, 3}, {1});
    return Values{in[0] * rows + ops::Exp(rows)};
  });
  const absl::StatusOr<Split> split = SplitProgram(program, Known());
  ASSERT_THAT(split, IsOk());
  EXPECT_THAT(OpsOf(split->rest), ElementsAre("broadcast", "mul", "add"));
  ASSERT_EQ(split->evaluated.size(), 1u);
  EXPECT_EQ(OpName(program.eqns[split->evaluated[0].eqn].op), "exp");
}

}  // namespace
}  // namespace aqt
