// Training in 8-bit floats with delayed scaling, including statistics of the gradients.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"};
constexpr int64_t kBatch = 16;

std::vector<Value> LossFn(In in) {
  const Value hidden = ops::Relu(Dense(in[0], "fc1", {.features = 12}));
  return {ops::SoftmaxCrossEntropy(Dense(hidden, "fc2", {.features = 3}), in[1])};
}
const std::vector<Input> kInputs = {{kX, {DType::kF32, {kBatch, 5}}}, {kLabels, {DType::kF32, {kBatch, 3}}}};

absl::StatusOr<Trainer> MakeTrainer() {
  const absl::StatusOr<InjectConfig> config =
      InjectConfigFromText("schema: 1 rules { dot_general { base: 'fp8_delayed' } }");
  EXPECT_THAT(config, IsOk());
  const absl::StatusOr<Program> loss = Inject(*Trace(LossFn, kInputs, std::vector<Slot>{kLoss}), *config);
  EXPECT_THAT(loss, IsOk());
  return Trainer::Make(*loss, Sgd{}, *InitParams(LossFn, kInputs, MakeKey(7)), MakeKey(1));
}

// The class of an example is the index of the largest of its first three numbers.
SlotValues Batch(uint64_t seed) {
  const Array x = RandomArray({DType::kF32, {kBatch, 5}}, seed);
  ArrayBuilder labels(DType::kF32, {kBatch, 3});
  for (int64_t i = 0; i < kBatch; ++i) {
    const float* row = x.View<float>().data() + i * 5;
    for (int64_t j = 0; j < 3; ++j)
      labels.Mutable<float>()[i * 3 + j] = j == std::max_element(row, row + 3) - row ? 1 : 0;
  }
  return {{kX, x}, {kLabels, std::move(labels).Build()}};
}

std::vector<float> Train(Trainer& trainer, int64_t to) {
  std::vector<float> losses;
  while (trainer.steps() < to) {
    const absl::StatusOr<SlotValues> out = trainer.Step(Batch(trainer.steps()));
    EXPECT_THAT(out, IsOk());
    losses.push_back(out->at(kLoss).View<float>()[0]);
  }
  return losses;
}

std::vector<float> Stat(const Trainer& trainer, const std::string& path) {
  const Array& array = trainer.state().at({SlotKind::kStat, path});
  return {array.View<float>().begin(), array.View<float>().end()};
}

float MaxAbs(const Array& x) {
  float largest = 0;
  for (const float v : x.View<float>()) largest = std::max(largest, std::fabs(v));
  return largest;
}

TEST(DelayedScalingTest, TrainsAndKeepsHistories) {
  absl::StatusOr<Trainer> trainer = MakeTrainer();
  ASSERT_THAT(trainer, IsOk());
  std::vector<float> losses = Train(*trainer, 1);
  // Without a history every product is 0, and so are the logits.
  EXPECT_NEAR(losses[0], std::log(3.0), 1e-6);
  EXPECT_EQ(Stat(*trainer, "fc1/fwd.lhs/bound"), std::vector<float>{0});
  Train(*trainer, 20);
  // The newest entry is first, the second newest last, and so on backward; all entries past the twenty are 0.
  const std::vector<float> history = Stat(*trainer, "fc1/fwd.lhs/amax_history");
  ASSERT_EQ(history.size(), 1024u);
  float bound = 0;
  for (int64_t step = 0; step < 20; ++step) {
    const float amax = MaxAbs(Batch(19 - step).at(kX));
    EXPECT_EQ(history[step == 0 ? 0 : 1024 - step], amax) << step;
    if (step > 0) bound = std::max(bound, amax);  // used by the last step
  }
  EXPECT_EQ(std::count(history.begin(), history.end(), 0.0f), 1004);
  EXPECT_EQ(Stat(*trainer, "fc1/fwd.lhs/bound"), std::vector<float>{bound});
  // The gradients have their own histories: the loss is a mean over 16 examples, so they are at most 1/16.
  for (const char* operand : {"fc2/dlhs.lhs", "fc2/drhs.lhs"}) {
    const float amax = Stat(*trainer, std::string(operand) + "/amax_history")[0];
    EXPECT_GT(amax, 0) << operand;
    EXPECT_LE(amax, 1.0f / 16) << operand;
  }
  EXPECT_EQ(Stat(*trainer, "fc2/dlhs.lhs/amax_history"), Stat(*trainer, "fc2/drhs.lhs/amax_history"));
  // The first layer's input needs no gradient, but its statistics are kept.
  EXPECT_GT(Stat(*trainer, "fc1/dlhs.lhs/amax_history")[0], 0);
  losses = Train(*trainer, 150);
  float last = 0;
  for (size_t i = losses.size() - 20; i < losses.size(); ++i) last += losses[i] / 20;
  EXPECT_LT(last, 0.45f);
}

TEST(DelayedScalingTest, ResumedTrainingHasTheSameBits) {
  const std::string path = ::testing::TempDir() + "/delayed.safetensors";
  absl::StatusOr<Trainer> whole = MakeTrainer(), first = MakeTrainer(), second = MakeTrainer();
  ASSERT_THAT(whole, IsOk());
  const std::vector<float> losses = Train(*whole, 12);
  Train(*first, 5);
  ASSERT_THAT(first->Save(io::LocalFileSystem(), path), IsOk());
  ASSERT_THAT(second->Restore(io::LocalFileSystem(), path), IsOk());
  EXPECT_EQ(Train(*second, 12), std::vector<float>(losses.begin() + 5, losses.end()));
  EXPECT_EQ(second->state().size(), whole->state().size());
  for (const auto& [slot, array] : whole->state())
    EXPECT_TRUE(BitEqual(second->state().at(slot), array)) << slot.ToString();
}

}  // namespace
}  // namespace aqt::nn
