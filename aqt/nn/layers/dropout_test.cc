#include "aqt/nn/layers/dropout.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kKey{SlotKind::kKey, "layer/dropout"};

absl::StatusOr<Program> Traced(const Shape& shape, const DropoutOptions& options) {
  return Trace([&](In in) { return Values{Dropout(in[0], "layer", options)}; }, {{kX, {DType::kF32, shape}}});
}

TEST(DropoutTest, DropsTheShareAndScalesTheRest) {
  const absl::StatusOr<Program> program = Traced({100, 100}, {.rate = 0.25});
  ASSERT_THAT(program, IsOk());
  const Array x = RandomArray({DType::kF32, {100, 100}}, 1, 1, 2);
  const absl::StatusOr<SlotValues> out = EvalSlots(*program, {{kX, x}, {kKey, Array::Of<uint32_t>({1, 2}, {2})}});
  ASSERT_THAT(out, IsOk());
  const absl::Span<const float> y = out->begin()->second.View<float>();
  int64_t dropped = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (y[i] == 0) {
      ++dropped;
    } else {
      EXPECT_EQ(y[i], x.View<float>()[i] / 0.75f);
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped), 2500, 4 * std::sqrt(10000 * 0.25 * 0.75));  // four standard deviations
}

TEST(DropoutTest, PassesUnchangedWhenNotTraining) {
  for (const DropoutOptions& options : {DropoutOptions{.rate = 0.5, .train = false}, DropoutOptions{.rate = 0}}) {
    const absl::StatusOr<Program> program = Traced({2, 3}, options);
    ASSERT_THAT(program, IsOk());
    EXPECT_TRUE(program->eqns.empty());
    EXPECT_TRUE(program->InputsOfKind(SlotKind::kKey).empty());
  }
}

// The trainer draws a new mask in each step, and its gradient is the mask.
TEST(DropoutTest, TrainerGivesKeys) {
  const auto loss = [](In in) {
    const Value weight = Parameter("weight", in[0].aval(), Ones());
    return Values{ops::ReduceSum(Dropout(weight * in[0], "layer", {.rate = 0.5}))};
  };
  const std::vector<Input> inputs = {{kX, {DType::kF32, {64}}}};
  absl::StatusOr<Trainer> trainer = Trainer::Make(*Trace(loss, inputs), Sgd{.learning_rate = 1, .momentum = 0},
                                                  *InitParams(loss, inputs, MakeKey(1)), MakeKey(2));
  ASSERT_THAT(trainer, IsOk());
  const SlotValues ones = {{kX, *ops::BroadcastTo(1.0, {64}).ToArray()}};
  std::vector<std::vector<float>> changes;
  for (int step = 0; step < 2; ++step) {
    const Array before = trainer->params().begin()->second;
    ASSERT_THAT(trainer->Step(ones), IsOk());
    const Array after = trainer->params().begin()->second;
    std::vector<float>& change = changes.emplace_back();
    for (int64_t i = 0; i < 64; ++i) change.push_back(before.View<float>()[i] - after.View<float>()[i]);
    EXPECT_THAT(change, ::testing::Each(::testing::AnyOf(0.0f, 2.0f)));
  }
  EXPECT_NE(changes[0], changes[1]);
}

TEST(DropoutTest, Errors) {
  EXPECT_THAT(Traced({2}, {.rate = 1}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"dropout [layer]: rate = 1", "dropout_test.cc:"}));
  EXPECT_THAT(Traced({2}, {.rate = std::nan("")}), FailsWith(absl::StatusCode::kInvalidArgument, {"rate = nan"}));
  EXPECT_THAT(
      Trace([](In in) { return Values{Dropout(Dropout(in[0], "layer", {.rate = 0.5}), "layer", {.rate = 0.5})}; },
            {{kX, {DType::kF32, {2}}}}),
      FailsWith(absl::StatusCode::kAlreadyExists, {"dropout [layer]", "dropout_test.cc:"}));
}

}  // namespace
}  // namespace aqt::nn
