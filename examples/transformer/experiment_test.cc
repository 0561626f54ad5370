#include "examples/transformer/experiment.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/io/file.h"
#include "aqt/kernels/thread_pool.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/inject_proto.h"
#include "examples/transformer/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace transformer {
namespace {

using aqt::Array;
using aqt::SlotValues;
using aqt::testing::FailsWith;
using aqt::testing::IsOk;

constexpr ExperimentOptions kSmall = {
    .model = {.layers = 2, .width = 16, .heads = 2, .length = 12, .dropout = 0.1},
    .text_bytes = 4000,
    .steps = 12,
    .batch = 4,
};

aqt::InjectConfig Shipped(const std::string& name) {
  const std::string path = absl::StrCat("examples/transformer/configs/", name, ".textproto");
  const absl::StatusOr<std::string> text = aqt::io::ReadFile(aqt::io::LocalFileSystem(), path, 1 << 20);
  EXPECT_THAT(text, IsOk());
  return *aqt::InjectConfigFromText(*text, path);
}

SlotValues Trained(aqt::nn::Trainer& trainer, int64_t steps) {
  const Text text = MakeText(kSmall);
  while (trainer.steps() < steps) {
    EXPECT_THAT(trainer.Step(BatchOfStep(text.train, kSmall, trainer.steps())), IsOk());
  }
  return trainer.state();
}

TEST(Stories, AreTextWithTrueSums) {
  const std::string text = Stories(1, 2000);
  EXPECT_GT(text.size(), 1500u);
  EXPECT_LE(text.size(), 2000u);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(text, Stories(1, 2000));
  EXPECT_NE(text, Stories(2, 2000));
}

TEST(BigramEntropy, ByHand) {
  EXPECT_EQ(BigramEntropy("abababa"), 0);
  // After each of two letters, either with the same frequency.
  EXPECT_NEAR(BigramEntropy("aabba"), std::log(2.0), 1e-12);
}

// What is trained is what is served, in every bit: fused or not, one row or a batch, one thread or two.
TEST(Experiment, ServedLogitsAreThoseOfTheTraining) {
  for (const char* name : {"float", "int8", "int4_weights", "w4a8", "fp8", "static"}) {
    const aqt::InjectConfig config = Shipped(name);
    absl::StatusOr<aqt::nn::Trainer> trainer = MakeTrainer(kSmall, config);
    ASSERT_THAT(trainer, IsOk()) << name;
    const SlotValues state = Trained(*trainer, 5);
    const absl::StatusOr<SlotValues> frozen = FreezeModel(kSmall, config, state);
    ASSERT_THAT(frozen, IsOk()) << name;
    const absl::StatusOr<Served> served = Served::Make(kSmall, config, *frozen);
    ASSERT_THAT(served, IsOk()) << name;
    const Array bytes = BatchOfStep(MakeText(kSmall).held_out, kSmall, 0).begin()->second;
    const absl::StatusOr<Array> want = TrainedLogits(kSmall, config, state, bytes);
    ASSERT_THAT(want, IsOk()) << name;
    aqt::kernels::ThreadPool pool(2);
    for (aqt::Executor* executor : {static_cast<aqt::Executor*>(nullptr), static_cast<aqt::Executor*>(&pool)}) {
      const aqt::UseExecutor threads(executor);
      const absl::StatusOr<Array> got = served->Logits(bytes);
      ASSERT_THAT(got, IsOk()) << name;
      EXPECT_TRUE(BitEqual(*got, *want)) << name;
      const aqt::Value row = aqt::ops::Slice(aqt::Value(bytes), {2, 0}, {3, 12});
      const absl::StatusOr<Array> one = served->Logits(*row.ToArray());
      ASSERT_THAT(one, IsOk()) << name;
      EXPECT_TRUE(BitEqual(*one, *aqt::ops::Slice(aqt::Value(*want), {2, 0, 0}, {3, 12, kBytes}).ToArray())) << name;
    }
  }
}

// Every byte of the state: parameters, moments, the schedule's count and the noise of int8 and dropout.
TEST(Experiment, AResumedTrainingHasTheSameBits) {
  const aqt::InjectConfig config = Shipped("int8");
  absl::StatusOr<aqt::nn::Trainer> whole = MakeTrainer(kSmall, config);
  ASSERT_THAT(whole, IsOk());
  const SlotValues want = Trained(*whole, kSmall.steps);
  const std::string path = ::testing::TempDir() + "/state.safetensors";
  for (const int64_t stop : {1, 7}) {
    absl::StatusOr<aqt::nn::Trainer> first = MakeTrainer(kSmall, config), second = MakeTrainer(kSmall, config);
    Trained(*first, stop);
    ASSERT_THAT(first->Save(aqt::io::LocalFileSystem(), path), IsOk());
    ASSERT_THAT(second->Restore(aqt::io::LocalFileSystem(), path), IsOk());
    const SlotValues got = Trained(*second, kSmall.steps);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [slot, array] : want) EXPECT_TRUE(BitEqual(got.at(slot), array)) << slot.ToString();
  }
}

// A model that has learned a little predicts better than the frequencies of single bytes, 2.9 nat.
TEST(Experiment, LearnsAndSamples) {
  ExperimentOptions options = kSmall;
  options.steps = 150;
  options.learning_rate = 0.01;
  options.model.dropout = 0;
  options.text_bytes = 20'000;
  const aqt::InjectConfig config = Shipped("int8");
  absl::StatusOr<aqt::nn::Trainer> trainer = MakeTrainer(options, config);
  ASSERT_THAT(trainer, IsOk());
  const Text text = MakeText(options);
  while (trainer->steps() < options.steps) {
    ASSERT_THAT(trainer->Step(BatchOfStep(text.train, options, trainer->steps())), IsOk());
  }
  const absl::StatusOr<Served> served = Served::Make(options, config, *FreezeModel(options, config, trainer->state()));
  ASSERT_THAT(served, IsOk());
  const absl::StatusOr<double> loss = served->Loss(text.held_out);
  ASSERT_THAT(loss, IsOk());
  EXPECT_LT(*loss, 2.4);
  // Longer than the context; the same seed gives the same sample.
  const absl::StatusOr<std::string> sample = served->Sample("Anna", 30, 0.8, 1);
  ASSERT_THAT(sample, IsOk());
  EXPECT_EQ(sample->size(), 34u);
  EXPECT_EQ(sample->substr(0, 4), "Anna");
  EXPECT_EQ(*sample, *served->Sample("Anna", 30, 0.8, 1));
  EXPECT_NE(*sample, *served->Sample("Anna", 30, 0.8, 2));
  EXPECT_EQ(*served->Sample("Anna", 5, 0, 1), *served->Sample("Anna", 5, 0, 2));
  EXPECT_THAT(served->Sample("", 5, 0, 1), FailsWith(absl::StatusCode::kInvalidArgument, {"prompt is empty"}));
}

TEST(Experiment, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExperimentOptions options = kSmall;
  options.model.layers = 0;
  EXPECT_THAT(Validate(options), FailsWith(kInvalid, {"layers = 0"}));
  options = kSmall;
  options.text_bytes = 100;
  EXPECT_THAT(Validate(options), FailsWith(kInvalid, {"text bytes = 100", "length = 12"}));
  options = kSmall;
  options.model.heads = 3;
  EXPECT_THAT(MakeTrainer(options, Shipped("float")), FailsWith(kInvalid, {"3 heads do not divide the 16 features"}));
}

}  // namespace
}  // namespace transformer
