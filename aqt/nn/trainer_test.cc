#include "aqt/nn/trainer.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/eval.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/dense.h"
#include "aqt/nn/parameter.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/builders.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"};
constexpr int64_t kBatch = 16;

// (x, labels) -> mean cross entropy of a two-layer classifier.
Values LossFn(In in) {
  const Value hidden = ops::Relu(Dense(in[0], "fc1", {.features = 12}));
  return {ops::SoftmaxCrossEntropy(Dense(hidden, "fc2", {.features = 3}), in[1])};
}

const std::vector<Input> kInputs = {{kX, {DType::kF32, {kBatch, 5}}}, {kLabels, {DType::kF32, {kBatch, 3}}}};

Program Loss() { return *Trace(LossFn, kInputs, std::vector<Slot>{kLoss}); }

Program QuantizedLoss() {
  InjectConfig config;
  config.rules.push_back({.dot_general = FullyQuantized()});
  return *Inject(Loss(), config);
}

SlotValues Params() { return *InitParams(LossFn, kInputs, MakeKey(7)); }

// The class of an example is its largest of the first three numbers.
SlotValues Batch(uint64_t seed) {
  const Array x = RandomArray({DType::kF32, {kBatch, 5}}, seed);
  ArrayBuilder labels(DType::kF32, {kBatch, 3});
  for (int64_t i = 0; i < kBatch; ++i) {
    const float* row = x.View<float>().data() + i * 5;
    labels.Mutable<float>()[i * 3 + (row[0] > row[1] ? (row[0] > row[2] ? 0 : 2) : (row[1] > row[2] ? 1 : 2))] = 1;
  }
  return {{kX, x}, {kLabels, std::move(labels).Build()}};
}

// Steps from `from` to `to`; returns the losses.
std::vector<float> Train(Trainer& trainer, int64_t to) {
  std::vector<float> losses;
  while (trainer.steps() < to) {
    absl::StatusOr<SlotValues> out = trainer.Step(Batch(trainer.steps()));
    EXPECT_THAT(out, IsOk());
    losses.push_back(out->at(kLoss).View<float>()[0]);
  }
  return losses;
}

float MeanOf(const std::vector<float>& x, size_t first, size_t last) {
  float sum = 0;
  for (size_t i = first; i < last; ++i) sum += x[i];
  return sum / static_cast<float>(last - first);
}

TEST(TrainerTest, FloatAndQuantizedTrainingLearn) {
  for (const bool quantized : {false, true}) {
    absl::StatusOr<Trainer> trainer = Trainer::Make(quantized ? QuantizedLoss() : Loss(), Sgd{}, Params(), MakeKey(1));
    ASSERT_THAT(trainer, IsOk());
    const std::vector<float> losses = Train(*trainer, 150);
    EXPECT_GT(MeanOf(losses, 0, 10), 0.8f) << quantized;
    EXPECT_LT(MeanOf(losses, 130, 150), 0.4f) << quantized;
  }
}

TEST(TrainerTest, OneStepIsTheFormula) {
  // loss = sum(w * w) / 2: the gradient is w.
  const Slot w{SlotKind::kParam, "w"};
  const Program loss =
      *Trace([](In in) { return Values{ops::ReduceSum(in[0] * in[0]) / 2.0}; }, {{w, {DType::kF32, {2}}}});
  absl::StatusOr<Trainer> trainer =
      Trainer::Make(loss, {.learning_rate = 0.25, .momentum = 0.5}, {{w, Array::Of<float>({8, -4}, {2})}}, MakeKey(0));
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(trainer->Step({}), IsOk());  // m = w = (8, -4);  w = (6, -3)
  ASSERT_THAT(trainer->Step({}), IsOk());  // m = (6, -3) + (4, -2);  w = (3.5, -1.75)
  EXPECT_TRUE(BitEqual(trainer->params().at(w), Array::Of<float>({3.5f, -1.75f}, {2})));
  EXPECT_TRUE(BitEqual(trainer->state().at({SlotKind::kStat, "sgd/w"}), Array::Of<float>({10, -5}, {2})));
  absl::StatusOr<Program> plain = TrainStep(loss, {.learning_rate = 0.25, .momentum = 0});
  ASSERT_THAT(plain, IsOk());
  EXPECT_TRUE(plain->InputsOfKind(SlotKind::kStat).empty());
}

TEST(TrainerTest, ResumedTrainingHasTheSameBits) {
  const std::string path = ::testing::TempDir() + "/state.safetensors",
                    again_path = ::testing::TempDir() + "/again.safetensors";
  const io::FileSystem& fs = io::LocalFileSystem();
  absl::StatusOr<Trainer> whole = Trainer::Make(QuantizedLoss(), Sgd{}, Params(), MakeKey(1));
  absl::StatusOr<Trainer> first = Trainer::Make(QuantizedLoss(), Sgd{}, Params(), MakeKey(1));
  ASSERT_THAT(whole, IsOk());
  ASSERT_THAT(first, IsOk());
  const std::vector<float> losses = Train(*whole, 12);
  Train(*first, 5);
  ASSERT_THAT(first->Save(fs, path), IsOk());
  // Another key and other parameters: all comes from the file.
  absl::StatusOr<Trainer> second =
      Trainer::Make(QuantizedLoss(), Sgd{}, *InitParams(LossFn, kInputs, MakeKey(99)), MakeKey(3));
  ASSERT_THAT(second, IsOk());
  ASSERT_THAT(second->Restore(fs, path), IsOk());
  EXPECT_EQ(second->steps(), 5);
  const std::vector<float> rest = Train(*second, 12);
  EXPECT_EQ(rest, std::vector<float>(losses.begin() + 5, losses.end()));
  for (const auto& [slot, array] : whole->state())
    EXPECT_TRUE(BitEqual(second->state().at(slot), array)) << slot.ToString();
  // Two runs give the same file.
  ASSERT_THAT(whole->Save(fs, path), IsOk());
  ASSERT_THAT(second->Save(fs, again_path), IsOk());
  EXPECT_EQ(*io::ReadFile(fs, path, 1 << 20), *io::ReadFile(fs, again_path, 1 << 20));
}

// bf16 parameters, a statistic of the loss's own, and two keys: all of it is state that comes back.
TEST(TrainerTest, ResumesBf16StatisticsAndKeys) {
  const Slot x{SlotKind::kData, "x"}, w{SlotKind::kParam, "w"}, mean{SlotKind::kStat, "mean"},
      count{SlotKind::kStat, "count"};
  const Slot key_a{SlotKind::kData, "key a"}, key_b{SlotKind::kData, "key b"};
  const auto loss_fn = [&](In in) {
    const Value old_mean = InputSlot(mean, {DType::kF32, {}}), old_count = InputSlot(count, {DType::kS32, {}});
    const Value now = ops::Mean(ops::Cast(in[0], DType::kF32));
    WriteSlot(mean, old_mean * 0.5 + now * 0.5);
    WriteSlot(count, old_count + 1.0);
    const Value weighted = in[0] * nn::Parameter("w", {DType::kBF16, {4}}, LecunUniform({0}));
    return Values{ops::ReduceSum(weighted * weighted), InputSlot({SlotKind::kKey, "a"}, {DType::kU32, {2}}),
                  InputSlot({SlotKind::kKey, "b"}, {DType::kU32, {2}})};
  };
  const std::vector<Input> inputs = {{x, {DType::kBF16, {4}}}};
  absl::StatusOr<Program> loss = Trace(loss_fn, inputs, std::vector<Slot>{kLoss, key_a, key_b});
  ASSERT_THAT(loss, IsOk());
  absl::StatusOr<SlotValues> params = InitParams(loss_fn, inputs, MakeKey(1));
  ASSERT_THAT(params, IsOk());
  const SlotValues batch = {{x, Cast(Array::Of<float>({1, 2, 3, 4}, {4}), DType::kBF16)}};
  const auto make = [&](uint64_t seed) {
    return *Trainer::Make(*loss, {.learning_rate = 0.01}, *params, MakeKey(seed));
  };
  Trainer whole = make(5), first = make(5), second = make(6);
  std::vector<SlotValues> outputs;
  for (int step = 0; step < 6; ++step) {
    absl::StatusOr<SlotValues> out = whole.Step(batch);
    ASSERT_THAT(out, IsOk());
    outputs.push_back(*std::move(out));
  }
  EXPECT_EQ(whole.state().at(mean).View<float>()[0], 2.5f * (1 - 1.0f / 64));  // 2.5 (1 - 2^-6)
  EXPECT_EQ(whole.state().at(count).View<int32_t>()[0], 6);
  const Key key = FoldIn(MakeKey(5), 5);
  for (const Slot& slot : {key_a, key_b}) {
    EXPECT_TRUE(BitEqual(outputs[5].at(slot), Array::Of<uint32_t>({key.hi, key.lo}, {2})));
  }

  const std::string path = ::testing::TempDir() + "/bf16.safetensors";
  for (int step = 0; step < 3; ++step) ASSERT_THAT(first.Step(batch), IsOk());
  ASSERT_THAT(first.Save(io::LocalFileSystem(), path), IsOk());
  ASSERT_THAT(second.Restore(io::LocalFileSystem(), path), IsOk());
  for (int step = 3; step < 6; ++step) {
    absl::StatusOr<SlotValues> out = second.Step(batch);
    ASSERT_THAT(out, IsOk());
    for (const auto& [slot, array] : *out) EXPECT_TRUE(BitEqual(array, outputs[step].at(slot))) << slot.ToString();
  }
  ASSERT_EQ(second.state().size(), 4u);  // w, its momentum, mean, count
  for (const auto& [slot, array] : whole.state())
    EXPECT_TRUE(BitEqual(second.state().at(slot), array)) << slot.ToString();
}

TEST(TrainerTest, ProgramsThatCannotBeRepeated) {
  const Slot x{SlotKind::kData, "x"}, stat{SlotKind::kStat, "stat"};
  const auto make = [&](const auto& write) {
    absl::StatusOr<Program> loss = Trace(
        [&](In in) {
          write(in[0]);
          return Values{ops::ReduceSum(in[0])};
        },
        {{x, {DType::kF32, {2}}}});
    EXPECT_THAT(loss, IsOk());
    return Trainer::Make(*loss, Sgd{}, {}, MakeKey(0));
  };
  EXPECT_THAT(make([&](const Value& in) {
                InputSlot(stat, {DType::kF32, {}});
                WriteSlot(stat, in);
              }),
              FailsWith(absl::StatusCode::kInvalidArgument, {"stat \"stat\" is read as f32[] and written as f32[2]"}));
  EXPECT_THAT(make([](const Value&) {
                InputSlot({SlotKind::kKey, "k"}, {DType::kU32, {4}});
              }),
              FailsWith(absl::StatusCode::kInvalidArgument, {"key \"k\" is u32[4], expected u32[2]"}));
  // A statistic that is only written is an output like others.
  absl::StatusOr<Trainer> trainer = make([&](const Value& in) { WriteSlot(stat, in); });
  ASSERT_THAT(trainer, IsOk());
  absl::StatusOr<SlotValues> out = trainer->Step({{x, Array::Of<float>({1, 2}, {2})}});
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ(out->count(stat), 1u);
  EXPECT_THAT(trainer->Step({{x, Array::Of<float>({1, 2}, {2})}, {stat, Array::Scalar(1.0f)}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"the batch has stat \"stat\""}));
}

TEST(TrainerTest, Errors) {
  EXPECT_THAT(Trainer::Make(Loss(), {.momentum = 1}, Params(), MakeKey(0)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"momentum = 1"}));
  SlotValues params = Params();
  params.erase({SlotKind::kParam, "fc2/kernel"});
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{}, params, MakeKey(0)),
              FailsWith(absl::StatusCode::kNotFound, {"param \"fc2/kernel\""}));
  params = Params();
  params[{SlotKind::kParam, "fc3/kernel"}] = Array::Scalar(1.0f);
  EXPECT_THAT(Trainer::Make(Loss(), Sgd{}, params, MakeKey(0)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no input param \"fc3/kernel\""}));
  absl::StatusOr<Trainer> trainer = Trainer::Make(Loss(), Sgd{}, Params(), MakeKey(0));
  ASSERT_THAT(trainer, IsOk());
  EXPECT_THAT(trainer->Step({{kX, Array::Zeros(DType::kF32, {kBatch, 5})}}),
              FailsWith(absl::StatusCode::kNotFound, {"data \"labels\""}));
  EXPECT_EQ(trainer->steps(), 0);
  const std::string path = ::testing::TempDir() + "/other.safetensors";
  ASSERT_THAT(trainer->Save(io::LocalFileSystem(), path), IsOk());
  absl::StatusOr<Trainer> other = Trainer::Make(Loss(), {.momentum = 0}, Params(), MakeKey(0));
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(other->Restore(io::LocalFileSystem(), path),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        {"other.safetensors", "another program", "stat \"sgd/fc1/bias\""}));
}

TEST(ProgressLineTest, Text) {
  EXPECT_EQ(ProgressLine(20, 100, 0.4321, 320, 2), "step 20/100  loss 0.4321  160 examples/s");
  EXPECT_EQ(ProgressLine(1, 100, 2, 16, 0), "step 1/100  loss 2.0000  0 examples/s");
}

}  // namespace
}  // namespace aqt::nn
