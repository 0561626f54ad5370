#include "aqt/graph/interpret/call.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

const Aval kVector{DType::kF32, {3}};
const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};

// (x * y, exp(x)), inline or in a call.
std::vector<Value> Body(absl::Span<const Value> in) { return {in[0] * in[1], ops::Exp(in[0])}; }

Program Loss(bool call) {
  return *Trace(
      [&](absl::Span<const Value> in) {
        const std::vector<Value> out = call ? ops::Call("body", Body, in) : Body(in);
        return std::vector<Value>{ops::ReduceSum(out[0] * out[1]), out[0]};
      },
      {{{kX, kVector}, {kY, kVector}}});
}

TEST(Call, IsOneEquationWithTheBitsOfItsFunction) {
  const Program program = Loss(true);
  EXPECT_EQ(CallName(program.eqns[0].op), "body");
  EXPECT_EQ(OpName(program.eqns[0].op), "call");
  EXPECT_EQ(CallName(program.eqns[1].op), "");
  const std::vector<Array> args = {Array::Of<float>({1, -2, 0.5}, {3}), Array::Of<float>({3, 4, 5}, {3})};
  const std::vector<Array> got = *Eval(program, args), want = *Eval(Loss(false), args);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(BitEqual(got[i], want[i]));
}

TEST(Call, GradientsAreThoseOfTheFunction) {
  const std::vector<Array> args = {Array::Of<float>({1, -2, 0.5}, {3}), Array::Of<float>({3, 4, 5}, {3})};
  const Program program = *ValueAndGrad(Loss(true), {{0, 1}});
  bool has_backward_call = false;
  for (const Equation& eqn : program.eqns) has_backward_call |= CallName(eqn.op) == "grad(body)";
  EXPECT_TRUE(has_backward_call);
  const std::vector<Array> got = *Eval(program, args), want = *Eval(*ValueAndGrad(Loss(false), {{0, 1}}), args);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    for (int64_t j = 0; j < want[i].num_elements(); ++j) {
      EXPECT_FLOAT_EQ(got[i].View<float>()[j], want[i].View<float>()[j]) << i;
    }
  }
}

TEST(Call, RunsAtOnceWithoutATrace) {
  const std::vector<Value> out =
      ops::Call("body", Body, {Value(Array::Of<float>({2}, {1})), Value(Array::Of<float>({3}, {1}))});
  EXPECT_EQ(out[0].ToArray()->View<float>()[0], 6);
}

TEST(Call, RefusesSlotsAndOtherArguments) {
  const absl::StatusOr<Program> program = Trace(
      [](absl::Span<const Value> in) {
        return ops::Call(
            "state",
            [](absl::Span<const Value> own) {
              WriteSlot({SlotKind::kStat, "s"}, own[0]);
              return std::vector<Value>{own[0]};
            },
            in);
      },
      {{{kX, kVector}}});
  EXPECT_EQ(program.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(program.status().message()).find("call \"state\""), std::string::npos) << program.status();

  const Equation call = Loss(true).eqns[0];
  const Value half(Array::Zeros(DType::kF16, {3}));
  EXPECT_EQ(Bind(call.op, {half, half}, call.where)[0].status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Call, PoisonedArgumentsPoisonAllOutputs) {
  const std::vector<Value> out = ops::Call("body", Body, {Value(), Value(Array::Of<float>({3}, {1}))});
  ASSERT_EQ(out.size(), 2);
  EXPECT_FALSE(out[1].status().ok());
}

}  // namespace
}  // namespace aqt
