// Optimizers, schedules, accumulation and averages against values recorded from optax (tests/golden/optax).

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/nn/train/schedule.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;

constexpr const char* kNames[] = {"bias", "kernel"};
constexpr int64_t kSteps = 12;
constexpr double kLargest = 3;  // no recorded gradient is larger

Array Recorded(const std::string& name) {
  static const auto& reader = *new io::SafetensorsReader(
      *io::SafetensorsReader::Open(io::LocalFileSystem(), "tests/golden/optax/optax.safetensors"));
  return *reader.ReadArray(name);
}

// Part `step` of an array whose first axis is the steps.
std::vector<float> Part(const Array& array, int64_t step) {
  const absl::Span<const float> view = array.View<float>();
  const size_t size = view.size() / array.shape()[0];
  return {view.begin() + step * size, view.begin() + (step + 1) * size};
}

std::vector<float> Elements(const Array& array) {
  const absl::Span<const float> view = array.View<float>();
  return {view.begin(), view.end()};
}

Slot Param(const std::string& name) { return {SlotKind::kParam, name}; }
Slot Stat(const std::string& path) { return {SlotKind::kStat, path}; }
Slot Gradient(const std::string& name) { return {SlotKind::kData, absl::StrCat("gradient/", name)}; }

// A trainer from the recorded parameters, whose gradients are data.
nn::Trainer MakeTrainer(const nn::Optimizer& optimizer, const nn::StepOptions& options) {
  SlotValues params;
  std::vector<Input> inputs;
  for (const char* name : kNames) {
    params[Param(name)] = Recorded(absl::StrCat("params/", name));
    inputs.push_back({Param(name), params[Param(name)].aval()});
  }
  for (const char* name : kNames) inputs.push_back({Gradient(name), params[Param(name)].aval()});
  const Program loss = *Trace(
      [](absl::Span<const Value> in) {
        return std::vector<Value>{ops::ReduceSum(in[0] * in[2]) + ops::ReduceSum(in[1] * in[3])};
      },
      inputs);
  return *nn::Trainer::Make(loss, optimizer, params, MakeKey(0), {.step = options});
}

SlotValues Batch(int64_t step) {
  SlotValues batch;
  for (const char* name : kNames) {
    const std::vector<float> part = Part(Recorded(absl::StrCat("gradients/", name)), step);
    batch[Gradient(name)] = Array::FromSpan<float>(part, Recorded(absl::StrCat("params/", name)).shape());
  }
  return batch;
}

// Bounds for the distance of a case's parameters from the recorded ones, element by element, after each step; e = 2^-24
// is the error of a rounding. A step adds `of_update` * e of the size of the update, and 3e of the parameter: both
// sides round the difference, and the size of the update is computed from rounded parameters.
std::vector<std::vector<double>> Bounds(const std::string& name, const std::string& param, double of_update,
                                        const std::function<double(int64_t step, size_t i, double moved)>& size) {
  std::vector<float> before = Elements(Recorded("params/" + param));
  std::vector<double> bound(before.size());
  std::vector<std::vector<double>> bounds;
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<float> after = Part(Recorded(absl::StrCat(name, "/", param)), step);
    for (size_t i = 0; i < after.size(); ++i) {
      const double update = size(step, i, std::abs(static_cast<double>(after[i]) - before[i]));
      bound[i] += 0x1p-24 * (of_update * update + 3 * std::abs(after[i]));
    }
    bounds.push_back(bound);
    before = after;
  }
  return bounds;
}

using BoundsOf = std::function<std::vector<std::vector<double>>(const std::string& param)>;

// Without `bounds` the bits are equal.
nn::Trainer CheckOptimizer(const std::string& name, const nn::Optimizer& optimizer, const nn::StepOptions& options,
                           const BoundsOf& bounds = nullptr) {
  nn::Trainer trainer = MakeTrainer(optimizer, options);
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_THAT(trainer.Step(Batch(step)), IsOk());
    for (const char* param : kNames) {
      const std::vector<float> want = Part(Recorded(absl::StrCat(name, "/", param)), step);
      const std::vector<float> got = Elements(trainer.state().at(Param(param)));
      const std::vector<double> bound =
          bounds == nullptr ? std::vector<double>(want.size()) : bounds(param)[static_cast<size_t>(step)];
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got[i], want[i], bound[i]) << name << ", step " << step << ", " << param << "[" << i << "]";
      }
    }
  }
  return trainer;
}

// Adam's moments are sums of products, which have the same bits. Three things differ. XLA multiplies by the reciprocal
// of a scalar instead of dividing (3e between the two). Its powers b^t are products of t numbers, with an error of at
// most (t - 1)e. So the error of 1 - b^t is t b^t / (1 - b^t) <= b / (1 - b) parts and one rounding. For mu_hat that is
// (4 + b1 / (1 - b1))e, for the root of nu_hat half of that and the two roundings of the root. eps, the division, the
// decay and the rate round once on each side.
void CheckAdam(const std::string& name, const nn::AdamW& options, const nn::Optimizer& optimizer,
               const nn::StepOptions& step = {}) {
  const double of_update = 4 + options.b1 / (1 - options.b1) + (4 + options.b2 / (1 - options.b2)) / 2 + 2 + 4 * 2;
  const nn::Trainer trainer = CheckOptimizer(name, optimizer, step, [&](const std::string& param) {
    return Bounds(name, param, of_update, [](int64_t, size_t, double moved) { return moved; });
  });
  for (const char* moment : {"mu", "nu"}) {
    for (const char* param : kNames) {
      const std::string path = absl::StrCat(moment, "/", param);
      EXPECT_EQ(Elements(trainer.state().at(Stat("adam/" + path))), Part(Recorded(absl::StrCat(name, "/", path)), 0))
          << name;
    }
  }
}

// SGD with momentum 0.9, whose gradients have an error of `of_gradient` * e of the largest gradient. The momentum has
// the same relative error of the largest momentum that such gradients produce. Its two roundings on each side add up to
// 4e / (1 - 0.9) of it. The rate rounds as well.
void CheckSgd(const std::string& name, const nn::StepOptions& options, double of_gradient) {
  CheckOptimizer(name, nn::Sgd{}, options, [&](const std::string& param) {
    return Bounds(name, param, of_gradient + 4 / (1 - 0.9) + 2, [=](int64_t step, size_t, double) {
      return 0.1 * kLargest * (1 - std::pow(0.9, step + 1)) / (1 - 0.9);
    });
  });
}

std::map<std::string, nn::Schedule> Schedules() {
  const nn::LinearSchedule rise = {.init_value = 0, .end_value = 0.3, .transition_steps = 5};
  const nn::ExponentialSchedule decay = {.init_value = 0.3, .decay_rate = 0.6, .transition_steps = 7};
  nn::ExponentialSchedule late = decay, staircase = decay;
  late.transition_begin = staircase.transition_begin = 4;
  staircase.staircase = true;
  staircase.end_value = 0.05;
  return {
      {"linear", nn::LinearSchedule{.init_value = 0.1, .end_value = 0.7, .transition_steps = 7, .transition_begin = 2}},
      {"polynomial",
       nn::PolynomialSchedule{
           .init_value = 0.3, .end_value = 0.01, .power = 2.5, .transition_steps = 30, .transition_begin = 3}},
      {"cosine", nn::CosineSchedule{.init_value = 0.3, .decay_steps = 30, .alpha = 0.1}},
      {"cosine_exponent", nn::CosineSchedule{.init_value = 0.3, .decay_steps = 30, .exponent = 1.7}},
      {"warmup_cosine",
       nn::WarmupCosineSchedule{
           .init_value = 0.001, .peak_value = 0.3, .warmup_steps = 5, .decay_steps = 30, .end_value = 0.01}},
      {"exponential", late},
      {"exponential_staircase", staircase},
      {"piecewise_constant",
       nn::PiecewiseConstantSchedule{.init_value = 0.3, .boundaries_and_scales = {{5, 0.1}, {20, 0.7}}}},
      {"joined", nn::JoinedSchedule{.schedules = {rise, decay}, .boundaries = {10}}},
  };
}

// This also holds for powers and cosines: in this recording XLA's are correctly rounded.
TEST(OptaxTest, SchedulesHaveTheSameBits) {
  const std::vector<int32_t> steps = [] {
    const Array recorded = Recorded("schedules/t");
    const absl::Span<const int32_t> view = recorded.View<int32_t>();
    return std::vector<int32_t>(view.begin(), view.end());
  }();
  for (const auto& [name, schedule] : Schedules()) {
    std::vector<float> rates;
    for (const int32_t t : steps) rates.push_back(schedule.RateAt(t));
    EXPECT_EQ(rates, Elements(Recorded("schedules/" + name))) << name;
  }
}

TEST(OptaxTest, SgdHasTheSameBits) {
  CheckOptimizer("sgd", nn::Sgd{}, {});
  CheckOptimizer("sgd_linear", nn::Sgd{.learning_rate = Schedules().at("linear")}, {});
}

TEST(OptaxTest, Adam) {
  nn::AdamW options = {.learning_rate = 0.1, .b1 = 0.5, .b2 = 0.75, .eps = 1e-3, .eps_root = 0.01};
  CheckAdam("adam", {}, nn::Adam{});
  CheckAdam("adam_options", options,
            nn::Adam{.learning_rate = 0.1, .b1 = 0.5, .b2 = 0.75, .eps = 1e-3, .eps_root = 0.01});
  options = {.learning_rate = 0.01, .weight_decay = 0.1};
  CheckAdam("adamw", options, options);
  options.decays = "kernel";
  CheckAdam("adamw_mask", options, options);
  options.learning_rate = Schedules().at("warmup_cosine");
  CheckAdam("adamw_warmup_cosine", options, options);
  CheckAdam("clip_value", {}, nn::Adam{.learning_rate = 0.01}, {.clip_value = 0.75});
}

// The norm of 15 numbers has an error of half of 15e on each side, and rounds. Then a scalar divides, and a product
// rounds.
TEST(OptaxTest, ClipsByNorm) { CheckSgd("clip_norm", {.clip_norm = 2.5}, 15 + 2 + 3 + 2); }

// optax has a running mean of k gradients of at most G. Each step rounds a difference of at most 2G, divides it by its
// number (3e) and rounds the sum, so the error is at most (4 * 2 (1 + 1/2 + ... + 1/k) + k) eG. The error of the sum
// here is (k - 1) eG after its division, which rounds.
constexpr double kMeanOf3 = 4 * 2 * (1 + 1. / 2 + 1. / 3) + 3 + 3, kMeanOf4 = kMeanOf3 + 4 * 2 / 4. + 2;

TEST(OptaxTest, Accumulates) { CheckSgd("multi_steps", {.accumulate_steps = 3}, kMeanOf3); }

// The order of accumulation, clipping by value and by norm. A norm that clips is at least 1.5, and its error is
// sqrt(15) times that of its largest element.
TEST(OptaxTest, AccumulatesAndClips) {
  CheckSgd("multi_steps_clip", {.accumulate_steps = 4, .clip_value = 1, .clip_norm = 1.5},
           kMeanOf4 * (1 + std::sqrt(15.0) * kLargest / 1.5) + 15 + 2 + 3 + 2);
}

// An average is a sum of products: the same bits. Without its bias it is a quotient: 0.9 / (1 - 0.9) + 4 roundings.
TEST(OptaxTest, AveragesOfParameters) {
  for (const bool debias : {false, true}) {
    nn::Trainer trainer = MakeTrainer(nn::Sgd{}, {.ema = nn::Ema{.decay = 0.9, .debias = debias}});
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_THAT(trainer.Step(Batch(step)), IsOk());
      const SlotValues averages = *trainer.ema_params();
      for (const char* param : kNames) {
        const std::vector<float> want = Part(Recorded(absl::StrCat(debias ? "ema_debias/" : "ema/", param)), step);
        const std::vector<float> got = Elements(averages.at(Param(param)));
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(got[i], want[i], debias ? 13 * 0x1p-24 * std::abs(want[i]) : 0) << step << " " << param << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace aqt
