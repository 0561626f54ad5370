// Updates against loops over floats. Every operation of a loop rounds once, as in the program, so bits are equal.

#include "aqt/nn/train/optimizer.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/train/schedule.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/runtime/executable.h"
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

const Slot kKernel{SlotKind::kParam, "fc/kernel"}, kBias{SlotKind::kParam, "fc/bias"};
const Slot kKernelGrad{SlotKind::kData, "kernel_grad"}, kBiasGrad{SlotKind::kData, "bias_grad"};
const Slot kCount{SlotKind::kStat, "adam/count"};

Slot Stat(const std::string& path) { return {SlotKind::kStat, path}; }

// A loss whose gradients are two of its inputs.
Program Loss(DType dtype) {
  return *Trace(
      [](In in) { return Values{ops::ReduceSum(in[0] * in[2]) + ops::ReduceSum(in[1] * in[3])}; },
      {{kKernel, {dtype, {3, 5}}}, {kBias, {dtype, {5}}}, {kKernelGrad, {dtype, {3, 5}}}, {kBiasGrad, {dtype, {5}}}});
}

SlotValues Batch(DType dtype, uint64_t step) {
  return {{kKernelGrad, RandomArray({dtype, {3, 5}}, 2 * step)}, {kBiasGrad, RandomArray({dtype, {5}}, 2 * step + 1)}};
}

SlotValues InitialState(const Program& step, DType dtype) {
  SlotValues state = {{kKernel, RandomArray({dtype, {3, 5}}, 100)}, {kBias, RandomArray({dtype, {5}}, 101)}};
  AddMissingStats(step, state);
  return state;
}

// Runs a step by Eval and by an Executable, which must agree, and moves the new state to `state`.
void RunStep(const Program& step, const Executable& executable, SlotValues& state, const SlotValues& batch) {
  SlotValues inputs = state;
  inputs.insert(batch.begin(), batch.end());
  const absl::StatusOr<SlotValues> out = EvalSlots(step, inputs), again = executable.RunSlots(inputs);
  ASSERT_THAT(out, IsOk());
  ASSERT_THAT(again, IsOk());
  for (const auto& [slot, array] : *out) {
    EXPECT_TRUE(BitEqual(array, again->at(slot))) << slot.ToString();
    if (const auto it = state.find(slot); it != state.end()) it->second = array;
  }
}

template <class T>
std::vector<T> Elements(const Array& array) {
  const absl::Span<const T> view = array.View<T>();
  return {view.begin(), view.end()};
}

// decay^t as the program computes it: f64's, and f32's as f64's rounded (kernels/elementwise/elementwise.h; the cases
// here are not ties).
template <class T>
T PowerOf(double decay, int32_t t) {
  return static_cast<T>(std::pow(static_cast<double>(static_cast<T>(decay)), t));
}

template <class T>
struct AdamReference {
  std::vector<T> p, mu, nu;
  // One update with the rate `rate` and the weight decay `wd`.
  void Step(const AdamW& o, int32_t t, double rate, double wd, const std::vector<T>& g) {
    const T c1 = T{1} - PowerOf<T>(o.b1, t), c2 = T{1} - PowerOf<T>(o.b2, t);
    for (size_t i = 0; i < p.size(); ++i) {
      mu[i] = static_cast<T>(1 - o.b1) * g[i] + static_cast<T>(o.b1) * mu[i];
      nu[i] = static_cast<T>(1 - o.b2) * (g[i] * g[i]) + static_cast<T>(o.b2) * nu[i];
      T u = (mu[i] / c1) / (std::sqrt(nu[i] / c2 + static_cast<T>(o.eps_root)) + static_cast<T>(o.eps));
      if (wd != 0) u = u + static_cast<T>(wd) * p[i];
      p[i] = p[i] - static_cast<T>(rate) * u;
    }
  }
};

template <class T>
void CheckAdam(const Optimizer& optimizer, const AdamW& same, bool bias_decays) {
  const DType dtype = std::is_same_v<T, double> ? DType::kF64 : DType::kF32;
  const absl::StatusOr<Program> step = TrainStep(Loss(dtype), optimizer);
  ASSERT_THAT(step, IsOk());
  const Executable executable = *Executable::Make(*step);
  SlotValues state = InitialState(*step, dtype);
  AdamReference<T> kernel{Elements<T>(state.at(kKernel)), std::vector<T>(15), std::vector<T>(15)};
  AdamReference<T> bias{Elements<T>(state.at(kBias)), std::vector<T>(5), std::vector<T>(5)};
  for (int32_t t = 0; t < 20; ++t) {
    const SlotValues batch = Batch(dtype, t);
    RunStep(*step, executable, state, batch);
    const double rate = *std::get_if<double>(&same.learning_rate.kind());
    kernel.Step(same, t + 1, rate, same.weight_decay, Elements<T>(batch.at(kKernelGrad)));
    bias.Step(same, t + 1, rate, bias_decays ? same.weight_decay : 0, Elements<T>(batch.at(kBiasGrad)));
    EXPECT_EQ(Elements<T>(state.at(kKernel)), kernel.p) << t;
    EXPECT_EQ(Elements<T>(state.at(kBias)), bias.p) << t;
    EXPECT_EQ(Elements<T>(state.at(Stat("adam/mu/fc/kernel"))), kernel.mu) << t;
    EXPECT_EQ(Elements<T>(state.at(Stat("adam/nu/fc/bias"))), bias.nu) << t;
    EXPECT_EQ(state.at(kCount).View<int32_t>()[0], t + 1);
  }
}

TEST(OptimizerTest, AdamIsTheFormula) {
  CheckAdam<float>(Adam{}, AdamW{.weight_decay = 0}, false);
  CheckAdam<float>(Adam{.learning_rate = 0.1, .b1 = 0.5, .b2 = 0.75, .eps = 1e-3, .eps_root = 0.01},
                   AdamW{.learning_rate = 0.1, .b1 = 0.5, .b2 = 0.75, .eps = 1e-3, .eps_root = 0.01, .weight_decay = 0},
                   false);
  CheckAdam<double>(Adam{.b1 = 0.5, .b2 = 0.75},  // whose powers are exact
                    AdamW{.b1 = 0.5, .b2 = 0.75, .weight_decay = 0}, false);
}

TEST(OptimizerTest, AdamWDecaysWhatItsMaskSelects) {
  const AdamW all = {.learning_rate = 0.01, .weight_decay = 0.1};
  CheckAdam<float>(all, all, true);
  AdamW kernels = all;
  kernels.decays = ".*/kernel";
  CheckAdam<float>(kernels, all, false);
  kernels.decays = [](absl::string_view path) { return path == "fc/kernel"; };
  CheckAdam<float>(kernels, all, false);
}

// Moments of bf16 parameters are f32: a bf16 average with b2 = 0.999 would never forget, as 0.999 rounds to 1 in bf16.
TEST(OptimizerTest, NarrowParametersHaveWideMoments) {
  const absl::StatusOr<Program> step = TrainStep(Loss(DType::kBF16), Adam{.learning_rate = 0.01});
  ASSERT_THAT(step, IsOk());
  const Executable executable = *Executable::Make(*step);
  SlotValues state = InitialState(*step, DType::kBF16);
  ASSERT_EQ(state.at(Stat("adam/nu/fc/kernel")).dtype(), DType::kF32);
  std::vector<float> p = Elements<float>(Cast(state.at(kKernel), DType::kF32));
  AdamReference<float> kernel{p, std::vector<float>(15), std::vector<float>(15)};
  for (int32_t t = 0; t < 5; ++t) {
    const SlotValues batch = Batch(DType::kBF16, t);
    RunStep(*step, executable, state, batch);
    kernel.Step({}, t + 1, 0.01, 0, Elements<float>(Cast(batch.at(kKernelGrad), DType::kF32)));
    const Array rounded = Cast(Array::FromSpan<float>(kernel.p, {3, 5}), DType::kBF16);
    EXPECT_TRUE(BitEqual(state.at(kKernel), rounded)) << t;
    kernel.p = Elements<float>(Cast(rounded, DType::kF32));
  }
}

// An update uses the rate for the number of previous updates.
TEST(OptimizerTest, RatesFollowTheSchedule) {
  const Schedule schedule = LinearSchedule{.init_value = 0.1, .end_value = 0.7, .transition_steps = 7};
  const absl::StatusOr<Program> step = TrainStep(Loss(DType::kF32), Sgd{.learning_rate = schedule, .momentum = 0.5});
  ASSERT_THAT(step, IsOk());
  const Executable executable = *Executable::Make(*step);
  SlotValues state = InitialState(*step, DType::kF32);
  std::vector<float> p = Elements<float>(state.at(kKernel)), m(15);
  for (int32_t t = 0; t < 10; ++t) {
    const SlotValues batch = Batch(DType::kF32, t);
    RunStep(*step, executable, state, batch);
    const std::vector<float> g = Elements<float>(batch.at(kKernelGrad));
    const float rate = schedule.RateAt(t);
    for (size_t i = 0; i < p.size(); ++i) {
      m[i] = g[i] + m[i] * 0.5f;
      p[i] = p[i] - m[i] * rate;
    }
    EXPECT_EQ(Elements<float>(state.at(kKernel)), p) << t;
    EXPECT_EQ(state.at(Stat("sgd_count")).View<int32_t>()[0], t + 1);
  }
}

// The count of updates saturates.
TEST(OptimizerTest, TheCountDoesNotOverflow) {
  const absl::StatusOr<Program> step = TrainStep(Loss(DType::kF32), Adam{});
  ASSERT_THAT(step, IsOk());
  const Executable executable = *Executable::Make(*step);
  SlotValues state = InitialState(*step, DType::kF32);
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  state[kCount] = Array::Scalar<int32_t>(kMax - 1);
  for (int i = 0; i < 2; ++i) {
    RunStep(*step, executable, state, Batch(DType::kF32, 0));
    EXPECT_EQ(state.at(kCount).View<int32_t>()[0], kMax);
    EXPECT_TRUE(std::isfinite(state.at(kKernel).View<float>()[0]));
  }
}

TEST(OptimizerTest, Errors) {
  const auto fails = [](const Optimizer& optimizer, std::vector<std::string> parts) {
    EXPECT_THAT(TrainStep(Loss(DType::kF32), optimizer), FailsWith(absl::StatusCode::kInvalidArgument, parts));
  };
  fails(Sgd{.learning_rate = INFINITY}, {"sgd: learning_rate = inf, expected a finite number"});
  fails(Sgd{.momentum = 1}, {"sgd: momentum = 1, expected a number in [0, 1)"});
  fails(Adam{.learning_rate = LinearSchedule{.transition_steps = 0}},
        {"adam: learning_rate (linear): transition_steps = 0, expected 1 to 2147483647"});
  fails(Adam{.b1 = 1}, {"adam: b1 = 1, expected a number in [0, 1)"});
  fails(Adam{.b2 = 0.99999999999}, {"adam: b2 = 1, expected a number in [0, 1) that is not 1 in f32"});
  fails(Adam{.b2 = NAN}, {"adam: b2 = nan"});
  fails(Adam{.eps = 0}, {"adam: eps = 0, expected a finite number > 0"});
  fails(Adam{.eps = 1e-60}, {"adam: eps = 1e-60", "also in f32"});
  fails(Adam{.eps_root = -1}, {"adam: eps_root = -1, expected a finite number >= 0"});
  fails(AdamW{.b1 = -0.5}, {"adamw: b1 = -0.5"});
  fails(AdamW{.weight_decay = -1}, {"adamw: weight_decay = -1, expected a finite number >= 0"});
  fails(AdamW{.decays = "(kernel"}, {"adamw: decays \"(kernel\" is not a valid regular expression: missing )"});
  fails(AdamW{.decays = "kernel"}, {"adamw: decays \"kernel\" matches none of the parameters fc/kernel, fc/bias"});
  fails(AdamW{.decays = std::function<bool(absl::string_view)>()}, {"adamw: decays is an empty function"});
}

}  // namespace
}  // namespace aqt::nn
