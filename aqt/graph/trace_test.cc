#include "aqt/graph/trace.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Value Dense(const Value& x, const Value& w, const Value& b, absl::string_view name) {
  const NamedScope scope(name);
  return ops::MatMul(x, w) + b;
}

// A two-layer classifier's mean cross entropy: (x, labels one-hot, w1, b1, w2, b2) -> (loss, logits).
Values Mlp(In in) {
  const NamedScope scope("mlp");
  const Value hidden = Dense(in[0], in[2], in[3], "fc1");
  const Value active = ops::Select(ops::Greater(hidden, 0.0), hidden, 0.0);
  const Value logits = Dense(active, in[4], in[5], "fc2");
  const NamedScope loss_scope("loss");
  const Value shifted = logits - ops::StopGradient(ops::ReduceMax(logits, {1}, /*keepdims=*/true));
  const Value log_sum = ops::Log(ops::ReduceSum(ops::Exp(shifted), {1}, /*keepdims=*/true));
  const Value loss = ops::ReduceSum(in[1] * (log_sum - shifted)) / static_cast<double>(in[0].dim(0));
  return {loss, logits};
}

std::vector<Array> MlpArgs(DType dtype) {
  return {RandomArray({dtype, {3, 4}}, 1), Array::Of<float>({1, 0, 0, 1, 0, 1}, {3, 2}),
          RandomArray({dtype, {4, 5}}, 2), RandomArray({dtype, {5}}, 3),
          RandomArray({dtype, {5, 2}}, 4), RandomArray({dtype, {2}}, 5)};
}

std::vector<Input> MlpInputs() {
  const auto param = [](const char* path) { return Slot{SlotKind::kParam, path}; };
  const auto data = [](const char* path) { return Slot{SlotKind::kData, path}; };
  return {{data("x"), {DType::kF32, {3, 4}}},
          {data("labels"), {DType::kF32, {3, 2}}},
          {param("mlp/fc1/kernel"), {DType::kF32, {4, 5}}},
          {param("mlp/fc1/bias"), {DType::kF32, {5}}},
          {param("mlp/fc2/kernel"), {DType::kF32, {5, 2}}},
          {param("mlp/fc2/bias"), {DType::kF32, {2}}}};
}

TEST(TraceTest, TheSameFunctionRunsAtOnceAndIsRecorded) {
  const std::vector<Array> args = MlpArgs(DType::kF32);
  absl::StatusOr<std::vector<Array>> out = testing::RunBothWays(Mlp, args);
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ((*out)[0].shape(), Shape());
  EXPECT_GT((*out)[0].View<float>()[0], 0.0f);
  EXPECT_EQ((*out)[1].shape(), (Shape{3, 2}));
}

TEST(TraceTest, ProgramText) {
  absl::StatusOr<Program> program =
      Trace(Mlp, MlpInputs(), std::vector<Slot>{{SlotKind::kData, "loss"}, {SlotKind::kData, "logits"}});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[3,4] data "x"
in %1: f32[3,2] data "labels"
in %2: f32[4,5] param "mlp/fc1/kernel"
in %3: f32[5] param "mlp/fc1/bias"
in %4: f32[5,2] param "mlp/fc2/kernel"
in %5: f32[2] param "mlp/fc2/bias"
const %6: f32[] = 0
const %7: f32[] = 0
const %8: f32[] = 3
%9: f32[3,5] = dot_general(%0, %2) {dims=(([1],[0]),([],[]))} @mlp/fc1
%10: f32[3,5] = broadcast(%3) {axes=[1]} @mlp/fc1
%11: f32[3,5] = add(%9, %10) @mlp/fc1
%12: f32[3,5] = broadcast(%6) {axes=[]} @mlp
%13: bool[3,5] = gt(%11, %12) @mlp
%14: f32[3,5] = broadcast(%7) {axes=[]} @mlp
%15: f32[3,5] = select(%13, %11, %14) @mlp
%16: f32[3,2] = dot_general(%15, %4) {dims=(([1],[0]),([],[]))} @mlp/fc2
%17: f32[3,2] = broadcast(%5) {axes=[1]} @mlp/fc2
%18: f32[3,2] = add(%16, %17) @mlp/fc2
%19: f32[3,1] = reduce_max(%18) {axes=[1], keepdims} @mlp/loss
%20: f32[3,1] = stop_gradient(%19) @mlp/loss
%21: f32[3,2] = broadcast(%20) {axes=[0,1]} @mlp/loss
%22: f32[3,2] = sub(%18, %21) @mlp/loss
%23: f32[3,2] = exp(%22) @mlp/loss
%24: f32[3,1] = reduce_sum(%23) {axes=[1], keepdims} @mlp/loss
%25: f32[3,1] = log(%24) @mlp/loss
%26: f32[3,2] = broadcast(%25) {axes=[0,1]} @mlp/loss
%27: f32[3,2] = sub(%26, %22) @mlp/loss
%28: f32[3,2] = mul(%1, %27) @mlp/loss
%29: f32[] = reduce_sum(%28) {axes=[0,1]} @mlp/loss
%30: f32[] = div(%29, %8) @mlp/loss
out %30 data "loss"
out %18 data "logits"
)");
}

// The example in docs/design/program.md.
TEST(TraceTest, TheDocumentsExample) {
  absl::StatusOr<Program> program = Trace(
      [](In in) {
        const NamedScope scope("fc1");
        return Values{ops::Max(ops::MatMul(in[0], in[1]), 0.0)};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}, {{SlotKind::kParam, "fc1/kernel"}, {DType::kF32, {3, 4}}}});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[2,3] data "x"
in %1: f32[3,4] param "fc1/kernel"
const %2: f32[] = 0
%3: f32[2,4] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @fc1
%4: f32[2,4] = broadcast(%2) {axes=[]} @fc1
%5: f32[2,4] = max(%3, %4) @fc1
out %5 data "0"
)");
}

TEST(TraceTest, SourceLinesAreTheCallers) {
  uint32_t add_line = 0, exp_line = 0;
  absl::StatusOr<Program> program = Trace(
      [&](In in) {
        add_line = __LINE__ + 1;
        const Value sum = in[0] + 1.0;
        exp_line = __LINE__ + 1;
        return Values{ops::Exp(sum)};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {}}}});
  ASSERT_THAT(program, IsOk());
  ASSERT_EQ(program->eqns.size(), 2u);
  EXPECT_EQ(program->eqns[0].where.line, add_line);
  EXPECT_EQ(program->eqns[1].where.line, exp_line);
  EXPECT_THAT(program->eqns[0].where.file, HasSubstr("trace_test.cc"));
  EXPECT_THAT(ToText(*program, {.source_lines = true}), HasSubstr("trace_test.cc:" + std::to_string(exp_line) + "\n"));
}

TEST(TraceTest, TheFirstErrorComesOutWithScopeOperationShapesAndLine) {
  uint32_t line = 0;
  absl::StatusOr<Program> program = Trace(
      [&](In in) {
        const NamedScope scope("mlp");
        line = __LINE__ + 1;
        const Value bad = Dense(in[0], in[1], in[1], "fc1");
        const Value worse = ops::Reshape(bad, {77});  // poisoned: adds no error
        return Values{worse + ops::Exp(ops::Cast(in[0], DType::kS32))};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {8, 64}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {32, 16}}}});
  EXPECT_THAT(program,
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"dot_general [mlp/fc1]: ", "64", "32", "operands f32[8,64], f32[32,16]", "trace_test.cc:"}));
  EXPECT_THAT(std::string(program.status().message()), ::testing::Not(HasSubstr("exp")));
}

TEST(TraceTest, EagerErrorsComeOutOfToArray) {
  const Value x(Array::Zeros(DType::kF32, {2, 3})), y(Array::Zeros(DType::kF32, {4}));
  const NamedScope scope("here");
  const Value bad = ops::Exp(x + y) * 2.0;
  EXPECT_FALSE(bad.status().ok());
  EXPECT_THAT(bad.ToArray(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"add [here]: the shapes cannot be broadcast", "f32[2,3], f32[4]", "trace_test.cc:"}));
}

TEST(TraceTest, ABranchOnDataIsAnError) {
  const auto branching = [](In in) {
    const NamedScope scope("gate");
    return Values{in[0].Item<float>() > 0 ? in[0] * 2.0 : in[0]};
  };
  absl::StatusOr<std::vector<Array>> eager = testing::RunEagerly(branching, {Array::Scalar(3.0f)});
  ASSERT_THAT(eager, IsOk());
  EXPECT_EQ((*eager)[0].View<float>()[0], 6.0f);
  EXPECT_THAT(testing::TraceWith(branching, {Array::Scalar(3.0f)}),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        {"value [gate]", "traced f32[]", "ops::Select", "trace_test.cc:"}));
  // Ignoring the status of ToArray does not hide the error.
  EXPECT_THAT(testing::TraceWith(
                  [](In in) {
                    in[0].ToArray().status().IgnoreError();
                    return Values{in[0]};
                  },
                  {Array::Scalar(3.0f)}),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"traced f32[]"}));
}

TEST(TraceTest, DimIsSafeOnAnyValue) {
  EXPECT_EQ(Value(Array::Zeros(DType::kF32, {2, 3})).dim(-1), 3);
  EXPECT_EQ(Value(Array::Zeros(DType::kF32, {2, 3})).dim(0), 2);
  EXPECT_THAT(testing::TraceWith([](In in) { return Values{in[0] * static_cast<double>(in[0].dim(2))}; },
                                 {Array::Zeros(DType::kF32, {2, 3})}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no axis 2 in f32[2,3]"}));
}

TEST(TraceTest, AValueCannotLeaveItsTrace) {
  Value leaked;
  ASSERT_THAT(testing::TraceWith(
                  [&](In in) {
                    leaked = in[0];
                    return Values{in[0]};
                  },
                  {Array::Scalar(1.0f)}),
              IsOk());
  EXPECT_THAT((leaked + 1.0).ToArray(),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"add", "no trace is active"}));
  EXPECT_THAT(testing::TraceWith([&](In in) { return Values{in[0] + leaked}; }, {Array::Scalar(1.0f)}),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"add", "outside of the trace that made it"}));
  EXPECT_THAT(testing::TraceWith([&](In) { return Values{leaked}; }, {Array::Scalar(1.0f)}),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"output 0", "outside of the trace that made it"}));
  EXPECT_THAT(testing::TraceWith([&](In) { return Values{Value()}; }, {}),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"output 0", "without content"}));
}

TEST(TraceTest, TracesNest) {
  absl::StatusOr<Program> inner(absl::UnknownError("not run"));
  absl::StatusOr<Program> outer = testing::TraceWith(
      [&](In in) {
        const NamedScope scope("outer");
        const Value before = in[0] + 1.0;
        inner = testing::TraceWith([](In x) { return Values{ops::Exp(x[0])}; }, {Array::Scalar(1.0f)});
        return Values{before * 2.0};
      },
      {Array::Scalar(1.0f)});
  ASSERT_THAT(outer, IsOk());
  ASSERT_THAT(inner, IsOk());
  EXPECT_EQ(outer->eqns.size(), 2u);
  EXPECT_EQ(inner->eqns.size(), 1u);
  EXPECT_EQ(inner->scope(inner->eqns[0]), "");  // scopes are relative to their own program
}

TEST(TraceTest, EvaluationInsideATraceIsNotRecorded) {
  absl::StatusOr<Program> program = testing::TraceWith(
      [&](In in) {
        absl::StatusOr<Program> inner =
            testing::TraceWith([](In x) { return Values{ops::Exp(x[0])}; }, {Array::Scalar(0.0f)});
        const absl::StatusOr<std::vector<Array>> one = Eval(*inner, {Array::Scalar(0.0f)});
        Value also_one;
        {
          const SuspendTrace suspend;
          also_one = ops::Exp(Value(Array::Scalar(0.0f)));
        }
        return Values{in[0] + Value((*one)[0]) + also_one};
      },
      {Array::Scalar(1.0f)});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[] data "0"
const %1: f32[] = 1
const %2: f32[] = 1
%3: f32[] = add(%0, %1)
%4: f32[] = add(%3, %2)
out %4 data "0"
)");
}

TEST(TraceTest, ThreadsTraceIndependently) {
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&texts, i] {
      const NamedScope outside("thread");
      absl::StatusOr<Program> program = Trace(Mlp, MlpInputs());
      texts[i] = program.ok() ? ToText(*program) : program.status().ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts, ::testing::Each(ToText(*Trace(Mlp, MlpInputs()))));
}

TEST(SlotTest, InputsAndOutputsBesideTheFunctionsOwn) {
  const Slot count{SlotKind::kStat, "count"};
  const auto counting = [&](In in) {
    const Value before = InputSlot(count, {DType::kF32, {}});
    EXPECT_EQ(InputSlot(count, {DType::kF32, {}}).traced()->var, before.traced()->var);
    WriteSlot(count, before + 1.0);
    return Values{in[0] * before};
  };
  absl::StatusOr<Program> program = testing::TraceWith(counting, {Array::Scalar(1.0f)});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[] data "0"
in %1: f32[] stat "count"
const %2: f32[] = 1
%3: f32[] = add(%1, %2)
%4: f32[] = mul(%0, %1)
out %4 data "0"
out %3 stat "count"
)");
  EXPECT_THAT(program->InputsOfKind(SlotKind::kStat), ElementsAre(1));
}

TEST(SlotTest, AddedInputsAreSortedByKind) {
  absl::StatusOr<Program> program = testing::TraceWith(
      [](In in) {
        const Value key = InputSlot({SlotKind::kKey, "k"}, {DType::kU32, {2}});
        const Value z = InputSlot({SlotKind::kParam, "z"}, {DType::kF32, {}});
        const Value a = InputSlot({SlotKind::kParam, "a"}, {DType::kF32, {}});
        return Values{in[0] + z + a, key};
      },
      {Array::Scalar(1.0f)});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[] data "0"
in %1: f32[] param "z"
in %2: f32[] param "a"
in %3: u32[2] key "k"
%4: f32[] = add(%0, %1)
%5: f32[] = add(%4, %2)
out %5 data "0"
out %3 data "1"
)");
}

TEST(SlotTest, KindsHaveNames) {
  for (const SlotKind kind : {SlotKind::kParam, SlotKind::kStat, SlotKind::kFrozen, SlotKind::kKey, SlotKind::kData}) {
    EXPECT_EQ(SlotKindFromString(ToString(kind)), kind);
  }
  EXPECT_EQ(SlotKindFromString("weight"), std::nullopt);
}

TEST(SlotTest, Errors) {
  const Slot key{SlotKind::kKey, "noise"};
  EXPECT_THAT(testing::TraceWith(
                  [&](In) {
                    InputSlot(key, {DType::kU32, {2}});
                    return Values{InputSlot(key, {DType::kU32, {4}})};
                  },
                  {}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"key \"noise\"", "u32[2]", "u32[4]", "trace_test.cc:"}));
  EXPECT_THAT(testing::TraceWith(
                  [&](In in) {
                    WriteSlot(key, in[0]);
                    WriteSlot(key, in[0]);
                    return Values{};
                  },
                  {Array::Scalar(1.0f)}),
              FailsWith(absl::StatusCode::kAlreadyExists, {"key \"noise\"", "twice"}));
  EXPECT_THAT(InputSlot(key, {DType::kU32, {2}}).ToArray(),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"no trace is active"}));
  WriteSlot(key, Value(Array::Scalar(1.0f)));  // no effect
  const Input twice{key, {DType::kU32, {2}}};
  EXPECT_THAT(Trace([](In) { return Values{}; }, {twice, twice}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"two inputs", "key \"noise\""}));
  EXPECT_THAT(Trace(
                  [&](In in) {
                    WriteSlot(key, in[0]);
                    return Values{in[0]};
                  },
                  {twice}, std::vector<Slot>{key}),
              FailsWith(absl::StatusCode::kAlreadyExists, {"two outputs are named key \"noise\""}));
  EXPECT_THAT(Trace([](In in) { return Values{in[0]}; }, {twice}, std::vector<Slot>{key, key}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"1 values for 2 output slots"}));
}

TEST(ScopeTest, Nests) {
  EXPECT_EQ(CurrentScope(), "");
  {
    const NamedScope a("a");
    {
      const NamedScope b("b");
      EXPECT_EQ(CurrentScope(), "a/b");
      const Provenance as_if("c", SourceLine());
      EXPECT_EQ(CurrentScope(), "a/b/c");
    }
    EXPECT_EQ(CurrentScope(), "a");
  }
  EXPECT_EQ(CurrentScope(), "");
}

}  // namespace
}  // namespace aqt
