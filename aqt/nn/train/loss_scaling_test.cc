// Training with a scaled loss, and skipped steps.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/precision/loss_scale.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kW{SlotKind::kParam, "w"};
const Slot kScaler{SlotKind::kStat, "dynamic_scaler/scaler"}, kResets{SlotKind::kStat, "dynamic_scaler/total_resets"};
const Slot kSkips{SlotKind::kStat, "skip_if_not_finite/count"};

// The mean square of x w - 1, with the product in f16.
Program Loss() {
  const Program loss = *Trace(
      [](In in) {
        const Value error = ops::MatMul(in[0], in[1]) - 1.0;
        return std::vector<Value>{ops::ReduceSum(error * error) / 4.0};
      },
      {{{kX, {DType::kF32, {4, 2}}}, {kW, {DType::kF32, {2, 1}}}}});
  return *Amp(loss);
}

SlotValues Batch(float factor = 1) {
  const std::vector<float> x = {1, 0.5f, -0.5f, 1, 0.25f, 1, 1, -1};
  std::vector<float> scaled;
  for (const float v : x) scaled.push_back(v * factor);
  return {{kX, Array::FromSpan<float>(scaled, {4, 2})}};
}
SlotValues Params() { return {{kW, Array::Of<float>({0.5f, -0.25f}, {2, 1})}}; }
double Number(const Trainer& trainer, const Slot& slot) {
  return Cast(trainer.state().at(slot), DType::kF64).View<double>()[0];
}

// A scaler that is far too large shrinks: the steps until then are skipped. Saved and resumed, the training has the
// bits of an uninterrupted one.
TEST(LossScaling, FindsItsScalerAndResumes) {
  const TrainOptions options{
      .step = {.scaler = DynamicScaler{.patience = 10, .scaler = 0x1p40}, .max_consecutive_skips = 100}};
  Trainer whole = *Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), options);
  ASSERT_THAT(whole.Step(Batch()), IsOk());
  EXPECT_EQ(whole.state().at(kW).View<float>()[0], 0.5f);
  EXPECT_EQ(Number(whole, kSkips), 1);
  EXPECT_EQ(Number(whole, kScaler), 0x1p39);
  const std::string path = ::testing::TempDir() + "/loss_scaling_test.safetensors";
  for (int i = 1; i < 60; ++i) {
    if (i == 20) {
      ASSERT_THAT(whole.Save(io::LocalFileSystem(), path), IsOk());
    }
    const absl::StatusOr<SlotValues> out = whole.Step(Batch());
    ASSERT_THAT(out, IsOk());
    if (i == 59) {
      EXPECT_LT(out->at({SlotKind::kData, "0"}).View<float>()[0], 0.4f);
    }
  }
  EXPECT_EQ(Number(whole, kSkips), 0);
  EXPECT_GT(Number(whole, kResets), 10);
  Trainer resumed = *Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), options);
  ASSERT_THAT(resumed.Restore(io::LocalFileSystem(), path), IsOk());
  while (resumed.steps() < whole.steps()) ASSERT_THAT(resumed.Step(Batch()), IsOk());
  for (const auto& [slot, array] : whole.state()) EXPECT_TRUE(BitEqual(array, resumed.state().at(slot))) << slot.path;
}

TEST(LossScaling, RepeatsAStepUntilItIsFinite) {
  const TrainOptions options{.step = {.scaler = DynamicScaler{.scaler = 0x1p40}}, .redo_on_nan = 100};
  Trainer trainer = *Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), options);
  ASSERT_THAT(trainer.Step(Batch()), IsOk());
  EXPECT_TRUE(std::isfinite(trainer.state().at(kW).View<float>()[0]));
  EXPECT_NE(trainer.state().at(kW).View<float>()[0], 0.5f);
  EXPECT_GT(Number(trainer, kResets), 10);
  EXPECT_EQ(trainer.steps(), 1);
}

// The parameters are unchanged for this many steps in a row, and no longer.
TEST(LossScaling, LeavesOutStepsThatAreNotFinite) {
  const TrainOptions options{.step = {.max_consecutive_skips = 2}};
  Trainer trainer = *Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), options);
  const float infinity = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(trainer.Step(Batch(infinity)), IsOk());
    EXPECT_EQ(trainer.state().at(kW).View<float>()[0], 0.5f);
  }
  ASSERT_THAT(trainer.Step(Batch()), IsOk());
  EXPECT_EQ(Number(trainer, kSkips), 0);
  EXPECT_NE(trainer.state().at(kW).View<float>()[0], 0.5f);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(trainer.Step(Batch(infinity)), IsOk());
  EXPECT_TRUE(std::isnan(trainer.state().at(kW).View<float>()[0]));
}

TEST(LossScaling, Errors) {
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), {.redo_on_nan = 3}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"redo_on_nan = 3", "a scaler"}));
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0), {.step = {.max_consecutive_skips = -1}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"max_consecutive_skips = -1, expected 0 or more"}));
}

}  // namespace
}  // namespace aqt::nn
