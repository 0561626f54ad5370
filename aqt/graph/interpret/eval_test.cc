#include "aqt/graph/interpret/eval.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::TraceWith;
using ::testing::ElementsAre;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Program LogOfDifference() {
  return *Trace(
      [](In in) {
        const NamedScope scope("f");
        const Value difference = in[0] - in[1];
        ops::Exp(difference).status().IgnoreError();  // dead
        return Values{ops::Log(difference), in[1], in[1]};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {2}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {2}}}});
}

TEST(EvalTest, RunsAndReturnsInputsAsOutputs) {
  const Array x = Array::Of<float>({3, 2}, {2}), w = Array::Of<float>({2, 1}, {2});
  absl::StatusOr<std::vector<Array>> out = Eval(LogOfDifference(), {x, w});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Zeros(DType::kF32, {2})));
  EXPECT_TRUE(BitEqual((*out)[1], w));
  EXPECT_TRUE(BitEqual((*out)[2], w));
}

TEST(EvalTest, ArgumentsMustBeTheInputs) {
  const Array x = Array::Zeros(DType::kF32, {2});
  EXPECT_THAT(Eval(LogOfDifference(), {x}), FailsWith(absl::StatusCode::kInvalidArgument, {"2 inputs, got 1"}));
  EXPECT_THAT(Eval(LogOfDifference(), {x, Array::Zeros(DType::kF32, {3})}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"param \"w\"", "f32[2]", "f32[3]"}));
  EXPECT_THAT(Eval(LogOfDifference(), {Array::Zeros(DType::kF16, {2}), x}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"data \"x\"", "f16[2]"}));
}

TEST(EvalTest, HooksSeeEveryEquation) {
  std::vector<std::string> seen;
  EvalHooks hooks;
  hooks.on_outputs = [&](const Equation& eqn, absl::Span<const Array> out) {
    seen.push_back(absl::StrCat(OpName(eqn.op), " ", out[0].aval().ToString()));
  };
  const Array x = Array::Of<float>({3, 2}, {2}), w = Array::Of<float>({2, 1}, {2});
  ASSERT_THAT(Eval(LogOfDifference(), {x, w}, hooks), IsOk());
  EXPECT_THAT(seen, ElementsAre("sub f32[2]", "exp f32[2]", "log f32[2]"));
}

TEST(EvalTest, TheNanWatchNamesTheEquationWhereANanAppears) {
  EvalHooks hooks;
  hooks.stop_at_nonfinite = true;
  const Array x = Array::Of<float>({1, 2}, {2}), w = Array::Of<float>({2, 1}, {2});
  ASSERT_THAT(Eval(LogOfDifference(), {x, w}), IsOk());
  EXPECT_THAT(Eval(LogOfDifference(), {x, w}, hooks),
              FailsWith(absl::StatusCode::kOutOfRange,
                        {"log [f]: a NaN appears, from operands without one: 1 of 2 elements of output 0, f32[2], are ",
                         "not finite; the first is nan at [0]; operands f32[2]; at ", "eval_test.cc:"}));
  EXPECT_THAT(Eval(LogOfDifference(), {Array::Of<float>({4, 4}, {2}), w}, hooks), IsOk());
  // Non-finite operands are not the equation's fault.
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Eval(LogOfDifference(), {Array::Of<float>({inf, 4}, {2}), w}, hooks), IsOk());
}

// x [2,3]: 1 / x, then minus itself.
TEST(EvalTest, TheNanWatchMayLetInfinitiesPass) {
  const absl::StatusOr<Program> program = testing::TraceWith(
      [](absl::Span<const Value> in) {
        const Value inverse = 1.0 / in[0];
        const NamedScope scope("difference");
        return std::vector<Value>{inverse - inverse};
      },
      {Array::Zeros(DType::kBF16, {2, 3})});
  ASSERT_THAT(program, IsOk());
  const Array x = Cast(Array::Of<float>({1, 2, 3, 4, 0, 0}, {2, 3}), DType::kBF16);
  EXPECT_THAT(Eval(*program, {x}, {.stop_at_nonfinite = true}),
              FailsWith(absl::StatusCode::kOutOfRange,
                        {"div: an infinity appears", "2 of 6 elements of output 0, bf16[2,3], are not finite",
                         "the first is inf at [1,1]"}));
  EXPECT_THAT(Eval(*program, {x}, {.stop_at_nan = true}),
              FailsWith(absl::StatusCode::kOutOfRange,
                        {"sub [difference]: a NaN appears", "2 of 6 elements", "are NaN", "nan at [1,1]"}));
}

TEST(EvalTest, BySlots) {
  const SlotValues values = {{{SlotKind::kParam, "w"}, Array::Of<float>({2, 1}, {2})},
                             {{SlotKind::kData, "x"}, Array::Of<float>({3, 2}, {2})},
                             {{SlotKind::kData, "unused"}, Array::Scalar(1.0f)}};
  absl::StatusOr<SlotValues> out = EvalSlots(LogOfDifference(), values);
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ(out->size(), 3u);
  EXPECT_TRUE(BitEqual(out->at({SlotKind::kData, "0"}), Array::Zeros(DType::kF32, {2})));
  EXPECT_THAT(EvalSlots(LogOfDifference(), {{{SlotKind::kData, "w"}, Array::Scalar(1.0f)},  // of another kind
                                            {{SlotKind::kData, "x"}, Array::Of<float>({3, 2}, {2})}}),
              FailsWith(absl::StatusCode::kNotFound, {"param \"w\"", "f32[2]"}));
}

// Claims to have two threads, and counts the calls.
class CountingExecutor final : public Executor {
 public:
  int NumThreads() const override { return 2; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override {
    ++calls;
    for (int64_t i = n; i-- > 0;) body(i);
  }
  int calls = 0;
};

TEST(EvalTest, ContractionsUseTheGivenThreads) {
  const Array lhs = RandomArray({DType::kF32, {256, 256}}, 1), rhs = RandomArray({DType::kF32, {256, 256}}, 2);
  absl::StatusOr<Program> program = TraceWith([](In in) { return Values{ops::MatMul(in[0], in[1])}; }, {lhs, rhs});
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<std::vector<Array>> alone = Eval(*program, {lhs, rhs});
  ASSERT_THAT(alone, IsOk());
  CountingExecutor executor;
  {
    const UseExecutor outer(&executor);
    {
      const UseExecutor inner(nullptr);
      ASSERT_THAT(Eval(*program, {lhs, rhs}), IsOk());
    }
    EXPECT_EQ(executor.calls, 0);
    EXPECT_EQ(CurrentExecutor(), &executor);
    absl::StatusOr<std::vector<Array>> together = Eval(*program, {lhs, rhs});
    ASSERT_THAT(together, IsOk());
    EXPECT_GT(executor.calls, 0);
    EXPECT_TRUE(BitEqual((*together)[0], (*alone)[0]));
    // A trace that starts inside keeps the threads.
    const int calls = executor.calls;
    ASSERT_THAT(TraceWith([&](In) { return Values{Value((*Eval(*program, {lhs, rhs}))[0])}; }, {}), IsOk());
    EXPECT_GT(executor.calls, calls);
    EXPECT_EQ(CurrentExecutor(), &executor);
  }
  EXPECT_EQ(CurrentExecutor(), nullptr);
}

TEST(RewriteTest, KeepsSlotsScopesAndLines) {
  const Program program = LogOfDifference();
  absl::StatusOr<Program> same = Rewrite(program, [](const Equation& eqn, In in) { return BindAgain(eqn, in); });
  ASSERT_THAT(same, IsOk());
  EXPECT_EQ(ToText(*same, {.source_lines = true}), ToText(program, {.source_lines = true}));
}

TEST(RewriteTest, ErrorsOfARuleAndOfWhatItBindsComeOut) {
  EXPECT_THAT(Rewrite(LogOfDifference(),
                      [](const Equation& eqn, In in) -> absl::StatusOr<Values> {
                        if (OpName(eqn.op) == "log") return absl::UnimplementedError("no log here");
                        return BindAgain(eqn, in);
                      }),
              FailsWith(absl::StatusCode::kUnimplemented, {"log [f]: no log here", "eval_test.cc:"}));
  EXPECT_THAT(Rewrite(LogOfDifference(), [](const Equation&, In in) { return Values{ops::Reshape(in[0], {3})}; }),
              FailsWith(absl::StatusCode::kInvalidArgument, {"reshape [f]: ", "eval_test.cc:"}));
  EXPECT_THAT(Rewrite(LogOfDifference(), [](const Equation&, In) { return Values{}; }),
              FailsWith(absl::StatusCode::kInternal, {"sub [f]: the rule gave 0 outputs instead of 1"}));
}

TEST(InlineTest, CallsAProgramLikeAFunction) {
  const Program program = LogOfDifference();
  const Values now = Inline(program, {Value(Array::Of<float>({3, 2}, {2})), Value(Array::Of<float>({2, 1}, {2}))});
  EXPECT_TRUE(BitEqual(*now[0].ToArray(), Array::Zeros(DType::kF32, {2})));
  absl::StatusOr<Program> outer = TraceWith(
      [&](In in) {
        const NamedScope scope("step");
        return Values{Inline(program, {in[0], in[0] * 2.0})[0]};
      },
      {Array::Zeros(DType::kF32, {2})});
  ASSERT_THAT(outer, IsOk());
  EXPECT_EQ(outer->scope(outer->eqns.back()), "step/f");
  EXPECT_THAT(TraceWith([&](In in) { return Inline(program, in); }, {Array::Zeros(DType::kF32, {2})}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"2 inputs, got 1"}));
  EXPECT_THAT(TraceWith(
                  [&](In in) {
                    return Inline(program, {in[0], in[0]});
                  },
                  {Array::Zeros(DType::kS8, {2})}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"sub [f]", "not in s8"}));
}

}  // namespace
}  // namespace aqt
