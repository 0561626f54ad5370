// A step beyond its optimizer: it accumulates, clips, skips, and averages parameters.

#include "aqt/nn/train/train_step.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/nn/train/schedule.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/precision/loss_scale.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::testing::ElementsAre;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

const Slot kA{SlotKind::kParam, "a"}, kB{SlotKind::kParam, "b"};
const Slot kGradA{SlotKind::kData, "grad_a"}, kGradB{SlotKind::kData, "grad_b"};
// Counts all steps, as a calibration's statistic might.
const Slot kCalls{SlotKind::kStat, "calls"};

Slot Stat(const std::string& path) { return {SlotKind::kStat, path}; }

// A loss whose gradients the batch gives, optionally with noise in [0, 1).
Program Loss(bool has_noise = false) {
  return *Trace(
      [&](In in) {
        WriteSlot(kCalls, InputSlot(kCalls, {DType::kS32, {}}) + 1.0);
        Value gradient = in[2];
        if (has_noise) {
          const Value bits = ops::RandomBits(InputSlot({SlotKind::kKey, "noise"}, {DType::kU32, {2}}), {2});
          gradient = gradient + ops::Cast(bits, DType::kF32) * 0x1p-32;
        }
        return Values{ops::ReduceSum(in[0] * gradient) + ops::ReduceSum(in[1] * in[3])};
      },
      {{kA, {DType::kF32, {2}}}, {kB, {DType::kF32, {1}}}, {kGradA, {DType::kF32, {2}}}, {kGradB, {DType::kF32, {1}}}});
}

SlotValues Params() { return {{kA, Array::Of<float>({1, 2}, {2})}, {kB, Array::Of<float>({3}, {1})}}; }

SlotValues Gradients(float a0, float a1, float b) {
  return {{kGradA, Array::Of<float>({a0, a1}, {2})}, {kGradB, Array::Of<float>({b}, {1})}};
}

Trainer MakeTrainer(const Optimizer& optimizer, const TrainOptions& options) {
  return *Trainer::Make(Loss(), optimizer, Params(), MakeKey(0), options);
}

std::vector<float> Numbers(const SlotValues& state, const Slot& slot) {
  const absl::Span<const float> view = state.at(slot).View<float>();
  return {view.begin(), view.end()};
}
int32_t Integer(const Trainer& trainer, const Slot& slot) { return trainer.state().at(slot).View<int32_t>()[0]; }

// The update is p - g, so parameters show the gradient.
const Sgd kPlain = {.learning_rate = 1, .momentum = 0};

TEST(TrainStepTest, ClipsByValue) {
  Trainer trainer = MakeTrainer(kPlain, {.step = {.clip_value = 0.5}});
  ASSERT_THAT(trainer.Step(Gradients(0.25f, -4, NAN)), IsOk());
  EXPECT_THAT(Numbers(trainer.state(), kA), ElementsAre(0.75f, 2.5f));
  EXPECT_TRUE(std::isnan(Numbers(trainer.state(), kB)[0]));
}

TEST(TrainStepTest, ClipsByTheNormOfAllGradients) {
  Trainer trainer = MakeTrainer(kPlain, {.step = {.clip_norm = 3.5}});
  ASSERT_THAT(trainer.Step(Gradients(2, 3, 6)), IsOk());  // norm 7
  EXPECT_EQ(Numbers(trainer.state(), kA), (std::vector<float>{1 - 2.0f / 7 * 3.5f, 2 - 3.0f / 7 * 3.5f}));
  EXPECT_EQ(Numbers(trainer.state(), kB)[0], 3 - 6.0f / 7 * 3.5f);
  // A smaller norm changes nothing, zeros stay zeros, and an infinite norm gives zeros.
  for (const auto& [gradients, moved] : {std::pair{Gradients(2, 1, 2), 2.0f}, std::pair{Gradients(0, 0, 0), 0.0f},
                                         std::pair{Gradients(1e30f, 0, 1), 0.0f}}) {
    Trainer other = MakeTrainer(kPlain, {.step = {.clip_norm = 3.5}});
    ASSERT_THAT(other.Step(gradients), IsOk());
    EXPECT_EQ(Numbers(other.state(), kA)[0], 1 - moved);
  }
}

TEST(TrainStepTest, ClipsByValueFirst) {
  Trainer trainer = MakeTrainer(kPlain, {.step = {.clip_value = 3, .clip_norm = 2.5}});
  ASSERT_THAT(trainer.Step(Gradients(-100, 4, 0)), IsOk());  // (-3, 3, 0), whose norm is sqrt(18)
  const float clipped = 3 / std::sqrt(18.0f) * 2.5f;
  EXPECT_EQ(Numbers(trainer.state(), kA), (std::vector<float>{1 + clipped, 2 - clipped}));
}

// Three steps make one update with the mean of their gradients; calibrations see every step.
TEST(TrainStepTest, Accumulates) {
  Trainer trainer = MakeTrainer({Sgd{.learning_rate = 1, .momentum = 0.5}}, {.step = {.accumulate_steps = 3}});
  const Slot count = Stat("accumulation/count"), sum = Stat("accumulation/gradient/a");
  ASSERT_THAT(trainer.Step(Gradients(1, 2, 4)), IsOk());
  ASSERT_THAT(trainer.Step(Gradients(2, -2, 4)), IsOk());
  EXPECT_THAT(Numbers(trainer.state(), kA), ElementsAre(1, 2));
  EXPECT_THAT(Numbers(trainer.state(), sum), ElementsAre(3, 0));
  EXPECT_THAT(Numbers(trainer.state(), Stat("sgd/a")), ElementsAre(0, 0));
  EXPECT_EQ(Integer(trainer, count), 2);
  EXPECT_EQ(Integer(trainer, kCalls), 2);
  ASSERT_THAT(trainer.Step(Gradients(6, 3, 4)), IsOk());
  EXPECT_THAT(Numbers(trainer.state(), kA), ElementsAre(-2, 1));
  EXPECT_THAT(Numbers(trainer.state(), kB), ElementsAre(-1));
  EXPECT_THAT(Numbers(trainer.state(), Stat("sgd/a")), ElementsAre(3, 1));
  EXPECT_THAT(Numbers(trainer.state(), sum), ElementsAre(0, 0));
  EXPECT_EQ(Integer(trainer, count), 0);
  EXPECT_EQ(Integer(trainer, kCalls), 3);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(trainer.Step(Gradients(1, 1, 1)), IsOk());
  EXPECT_THAT(Numbers(trainer.state(), kA), ElementsAre(-4.5f, -0.5f));  // m = 3 / 2 + 1 and 1 / 2 + 1
}

TEST(TrainStepTest, AveragesParameters) {
  for (const bool debias : {false, true}) {
    Trainer trainer = MakeTrainer(kPlain, {.step = {.ema = Ema{.decay = 0.75, .debias = debias}}});
    EXPECT_THAT(Numbers(*trainer.ema_params(), kA), ElementsAre(1, 2));
    // a[0]: 1, then 0, then -8.
    ASSERT_THAT(trainer.Step(Gradients(1, 0, 0)), IsOk());
    EXPECT_EQ(Numbers(*trainer.ema_params(), kA)[0], debias ? 0 : 0.75f);
    ASSERT_THAT(trainer.Step(Gradients(8, 0, 0)), IsOk());
    EXPECT_EQ(Numbers(trainer.state(), Stat("ema/a"))[0], debias ? -2 : 0.75f * 0.75f - 2);
    EXPECT_EQ(Numbers(*trainer.ema_params(), kA)[0], debias ? -2 / (1 - 0.75f * 0.75f) : 0.75f * 0.75f - 2);
    EXPECT_EQ(Integer(trainer, Stat("ema_count")), 2);
    // The second element never changes: neither does its average.
    EXPECT_EQ(Numbers(*trainer.ema_params(), kA)[1], 2);
  }
  EXPECT_THAT(MakeTrainer(kPlain, {}).ema_params(),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"keeps no moving average", "StepOptions::ema"}));
}

TEST(TrainStepTest, AveragesOfNarrowParametersAreWide) {
  const Slot w{SlotKind::kParam, "w"}, g{SlotKind::kData, "g"};
  const Program loss = *Trace([](In in) { return Values{ops::ReduceSum(in[0] * in[1])}; },
                              {{w, {DType::kBF16, {1}}}, {g, {DType::kBF16, {1}}}});
  const Array one = Cast(Array::Of<float>({1}, {1}), DType::kBF16);
  const TrainOptions options{.step = {.ema = Ema{.decay = 0.875}}};
  Trainer trainer = *Trainer::Make(loss, Sgd{.learning_rate = 0x1p-5, .momentum = 0}, {{w, one}}, MakeKey(0), options);
  ASSERT_THAT(trainer.Step({{g, one}}), IsOk());
  EXPECT_EQ(Numbers(trainer.state(), Stat("ema/w"))[0],
            1 - 0x1p-8f);  // which bf16 represents, but not every later one
  EXPECT_EQ(trainer.ema_params()->at(w).dtype(), DType::kBF16);
}

const TrainOptions kEverything = {.step = {.scaler = DynamicScaler{.patience = 4, .scaler = 0x1p20},
                                           .max_consecutive_skips = 3,
                                           .accumulate_steps = 3,
                                           .clip_value = 1.75,
                                           .clip_norm = 2,
                                           .ema = Ema{.decay = 0.9}}};
const AdamW kScheduled = {.learning_rate = WarmupCosineSchedule{.peak_value = 0.1, .warmup_steps = 3, .decay_steps = 9},
                          .weight_decay = 0.1};

// Whether a skipped step must not change this slot.
bool IsKept(const Slot& slot) {
  return slot.kind == SlotKind::kParam || slot.path.starts_with("adam/") || slot.path.starts_with("ema") ||
         slot.path.starts_with("accumulation/");
}

SlotValues BatchOfStep(int64_t step) {
  const Array random = RandomArray({DType::kF32, {3}}, static_cast<uint64_t>(step));
  const absl::Span<const float> g = random.View<float>();
  const float infinity = std::numeric_limits<float>::infinity();
  return Gradients(g[0], step % 5 == 3 ? infinity : g[1], g[2]);
}

// Steps whose gradients are not finite have no effect: the others have the same bits without them.
TEST(TrainStepTest, StepsThatAreLeftOutChangeNothing) {
  TrainOptions options = kEverything;
  options.step.scaler = std::nullopt;
  Trainer with = MakeTrainer(kScheduled, options), without = MakeTrainer(kScheduled, options);
  for (int64_t step = 0; step < 24; ++step) {
    const SlotValues before = with.state();
    ASSERT_THAT(with.Step(BatchOfStep(step)), IsOk());
    if (step % 5 != 3) {
      ASSERT_THAT(without.Step(BatchOfStep(step)), IsOk());
      EXPECT_FALSE(BitEqual(with.state().at(Stat("accumulation/count")), before.at(Stat("accumulation/count"))));
    }
    for (const auto& [slot, array] : with.state()) {
      if (IsKept(slot)) {
        EXPECT_TRUE(BitEqual(array, without.state().at(slot))) << step << " " << slot.ToString();
      }
    }
    EXPECT_EQ(Integer(with, kCalls), step + 1);
  }
  EXPECT_EQ(Integer(with, Stat("adam/count")), 6);  // 19 steps
}

Trainer MakeEverything() { return *Trainer::Make(Loss(true), kScheduled, Params(), MakeKey(5), kEverything); }

// The step that runs agrees with Eval of the program.
TEST(TrainStepTest, TheTrainerAgreesWithEval) {
  Trainer trainer = MakeTrainer(kScheduled, kEverything);
  SlotValues state = trainer.state();
  for (int64_t step = 0; step < 14; ++step) {
    const SlotValues batch = BatchOfStep(step);
    SlotValues inputs = state;
    inputs.insert(batch.begin(), batch.end());
    const absl::StatusOr<SlotValues> out = EvalSlots(trainer.program(), inputs);
    ASSERT_THAT(out, IsOk());
    ASSERT_THAT(trainer.Step(batch), IsOk());
    for (auto& [slot, array] : state) {
      array = out->at(slot);
      EXPECT_TRUE(BitEqual(array, trainer.state().at(slot))) << step << " " << slot.ToString();
    }
  }
  EXPECT_GT(Integer(trainer, Stat("adam/count")), 2);
}

// With all options on, a training that is saved and resumed after any step has the bits of an uninterrupted one.
TEST(TrainStepTest, ResumesAtAnyStep) {
  constexpr int64_t kSteps = 14;
  const io::FileSystem& fs = io::LocalFileSystem();
  Trainer whole = MakeEverything();
  const auto path = [](int64_t step) {
    return absl::StrCat(::testing::TempDir(), "/train_step_test_", step, ".safetensors");
  };
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_THAT(whole.Save(fs, path(step)), IsOk());
    ASSERT_THAT(whole.Step(BatchOfStep(step)), IsOk());
  }
  ASSERT_GT(Integer(whole, Stat("adam/count")), 2);
  for (int64_t stop = 0; stop < kSteps; ++stop) {
    Trainer resumed = MakeEverything();
    ASSERT_THAT(resumed.Restore(fs, path(stop)), IsOk());
    while (resumed.steps() < kSteps) ASSERT_THAT(resumed.Step(BatchOfStep(resumed.steps())), IsOk());
    for (const auto& [slot, array] : whole.state()) {
      EXPECT_TRUE(BitEqual(array, resumed.state().at(slot))) << stop << " " << slot.ToString();
    }
  }
}

TEST(TrainStepTest, Errors) {
  const auto fails = [](const StepOptions& options, std::vector<std::string> parts) {
    EXPECT_THAT(TrainStep(Loss(), Sgd{}, options), FailsWith(absl::StatusCode::kInvalidArgument, parts));
  };
  fails({.accumulate_steps = 0}, {"train step: accumulate_steps = 0, expected 1 to 2147483647"});
  fails({.accumulate_steps = int64_t{1} << 31}, {"accumulate_steps = 2147483648"});
  fails({.clip_value = 0}, {"train step: clip_value = 0, expected a finite number > 0"});
  fails({.clip_norm = INFINITY}, {"train step: clip_norm = inf, expected a finite number > 0"});
  fails({.clip_norm = NAN}, {"clip_norm = nan"});
  fails({.ema = Ema{.decay = 1}}, {"train step: ema.decay = 1, expected a number in [0, 1)"});
  fails({.ema = Ema{.decay = 0.999999999}}, {"that is not 1 in f32"});
}

// A statistic of the model with a name of the state would share its value.
TEST(TrainStepTest, StatisticsWithNamesOfTheState) {
  for (const char* path : {"adam/count", "adam/mu/a", "adam/nu/a", "accumulation/count", "accumulation/gradient/a",
                           "ema/a", "ema_count", "skip_if_not_finite/count"}) {
    const Aval aval = {std::string(path).ends_with("count") ? DType::kS32 : DType::kF32, {}};
    const Program loss =
        *Trace([&](In in) { return Values{in[0] * ops::Cast(InputSlot(Stat(path), aval), DType::kF32)}; },
               {{kA, {DType::kF32, {}}}});
    const StepOptions options = {.max_consecutive_skips = 1, .accumulate_steps = 2, .ema = Ema{}};
    EXPECT_THAT(TrainStep(loss, Adam{}, options),
                FailsWith(absl::StatusCode::kInvalidArgument, {Stat(path).ToString(), "rename the statistic"}));
    EXPECT_THAT(TrainStep(loss, Sgd{}), IsOk());
  }
}

TEST(TrainStepTest, WrongAverages) {
  SlotValues state = Params();
  EXPECT_THAT(EmaParams({}, state), FailsWith(absl::StatusCode::kNotFound, {"stat \"ema_count\"", "StepOptions::ema"}));
  state[Stat("ema_count")] = Array::Scalar<int32_t>(1);
  EXPECT_THAT(EmaParams({}, state), FailsWith(absl::StatusCode::kNotFound, {"no stat \"ema/a\""}));
  state[Stat("ema/a")] = Array::Scalar<float>(1);
  EXPECT_THAT(EmaParams({}, state),
              FailsWith(absl::StatusCode::kInvalidArgument, {"stat \"ema/a\" is f32[], expected f32[2]"}));
}

}  // namespace
}  // namespace aqt::nn
