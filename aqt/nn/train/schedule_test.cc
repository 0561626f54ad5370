#include "aqt/nn/train/schedule.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::ElementsAre;

std::vector<float> Rates(const Schedule& schedule, const std::vector<int32_t>& steps) {
  std::vector<float> rates;
  for (const int32_t t : steps) rates.push_back(schedule.RateAt(t));
  return rates;
}

// Rates for which every operation is exact in f32.
TEST(ScheduleTest, ExactRates) {
  EXPECT_THAT(Rates(0.5, {0, 7}), ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(Rates(LinearSchedule{.init_value = 1, .end_value = 0, .transition_steps = 4}, {0, 1, 3, 4, 5}),
              ElementsAre(1, 0.75f, 0.25f, 0, 0));
  EXPECT_THAT(Rates(LinearSchedule{.init_value = 1, .end_value = 3, .transition_steps = 4, .transition_begin = 2},
                    {0, 2, 3, 6, 100}),
              ElementsAre(1, 1, 1.5f, 3, 3));
  EXPECT_THAT(Rates(PolynomialSchedule{.init_value = 4, .end_value = 0, .power = 2, .transition_steps = 4}, {0, 2, 4}),
              ElementsAre(4, 1, 0));
  EXPECT_THAT(Rates(CosineSchedule{.init_value = 4, .decay_steps = 6, .alpha = 0.25}, {0, 6, 7}), ElementsAre(4, 1, 1));
  EXPECT_THAT(Rates(ExponentialSchedule{.init_value = 8, .decay_rate = 0.5, .transition_steps = 2}, {0, 2, 4, 8}),
              ElementsAre(8, 4, 2, 0.5f));
  EXPECT_THAT(Rates(ExponentialSchedule{.init_value = 8,
                                        .decay_rate = 0.5,
                                        .transition_steps = 2,
                                        .transition_begin = 3,
                                        .staircase = true,
                                        .end_value = 1.5},
                    {0, 3, 4, 5, 6, 7, 9, 99}),
              ElementsAre(8, 8, 8, 4, 4, 2, 1.5f, 1.5f));
  EXPECT_THAT(
      Rates(ExponentialSchedule{.init_value = 1, .decay_rate = 2, .transition_steps = 1, .end_value = 5}, {0, 2, 3}),
      ElementsAre(1, 4, 5));
  EXPECT_THAT(
      Rates(PiecewiseConstantSchedule{.init_value = 8, .boundaries_and_scales = {{5, 0.25}, {3, 0.5}}}, {2, 3, 4, 5}),
      ElementsAre(8, 4, 4, 1));
  EXPECT_THAT(Rates(WarmupCosineSchedule{.peak_value = 2, .warmup_steps = 4, .decay_steps = 10, .end_value = 0.5},
                    {0, 1, 4, 10, 11}),
              ElementsAre(0, 0.5f, 2, 0.5f, 0.5f));
  EXPECT_THAT(Rates(WarmupCosineSchedule{.init_value = 7, .peak_value = 2, .decay_steps = 10}, {0, 10}),
              ElementsAre(2, 0));
  EXPECT_THAT(
      Rates(JoinedSchedule{.schedules = {LinearSchedule{0, 1, 4}, 5.0, LinearSchedule{2, 0, 4}}, .boundaries = {2, 3}},
            {0, 1, 2, 3, 4, 7}),
      ElementsAre(0, 0.25f, 5, 2, 1.5f, 0));
}

// The middle of a cosine, against f64. Besides the cosine, whose error for an angle rounded three times is at most
// 4 * 2^-24 pi, there are five roundings of numbers of at most init_value.
TEST(ScheduleTest, CosineIsCloseToTheFormula) {
  const CosineSchedule schedule = {.init_value = 1, .decay_steps = 1000, .exponent = 1};
  for (int32_t t = 0; t <= 1000; t += 37) {
    const double expected = 0.5 * (1 + std::cos(std::numbers::pi * t / 1000));
    EXPECT_NEAR(Schedule(schedule).RateAt(t), expected, 10 * 0x1p-24) << t;
  }
}

// Steps are compared as integers, even where f32 represents only every other one.
TEST(ScheduleTest, LateStepsAreExact) {
  constexpr int32_t kBoundary = (1 << 24) + 1;
  EXPECT_THAT(Rates(PiecewiseConstantSchedule{.init_value = 2, .boundaries_and_scales = {{kBoundary, 0.5}}},
                    {kBoundary - 1, kBoundary, std::numeric_limits<int32_t>::max()}),
              ElementsAre(2, 1, 1));
  EXPECT_THAT(
      Rates(LinearSchedule{.init_value = 1, .end_value = 0, .transition_steps = 4, .transition_begin = kBoundary},
            {kBoundary, kBoundary + 1}),
      ElementsAre(1, 0.75f));
}

TEST(ScheduleTest, TracedAndExecutedRatesAreThoseAtOnce) {
  const Schedule schedule = WarmupCosineSchedule{
      .init_value = 1e-5, .peak_value = 3e-3, .warmup_steps = 10, .decay_steps = 60, .end_value = 1e-4};
  const Program program =
      *Trace([&](absl::Span<const Value> in) { return std::vector{schedule.Rate(in[0], DType::kF32)}; },
             {{{SlotKind::kData, "t"}, {DType::kS32, {}}}});
  const Executable executable = *Executable::Make(program);
  for (int32_t t = 0; t < 70; ++t) {
    const Array step = Array::Scalar<int32_t>(t), at_once = Array::Scalar<float>(schedule.RateAt(t));
    EXPECT_TRUE(BitEqual((*Eval(program, {step}))[0], at_once)) << t;
    EXPECT_TRUE(BitEqual((*executable.Run({step}))[0], at_once)) << t;
  }
}

TEST(ScheduleTest, Errors) {
  const auto fails = [](const Schedule& schedule, std::vector<std::string> parts) {
    parts.push_back("adam: learning_rate");
    EXPECT_THAT(schedule.Validate("adam: learning_rate"), FailsWith(absl::StatusCode::kInvalidArgument, parts));
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  fails(kNan, {"= nan, expected a finite number"});
  fails(PolynomialSchedule{.power = 0}, {"(polynomial): power = 0, expected a finite number > 0"});
  fails(LinearSchedule{.end_value = kNan}, {"(linear): end_value = nan"});
  fails(LinearSchedule{.transition_steps = 0}, {"transition_steps = 0, expected 1 to 2147483647"});
  fails(LinearSchedule{.transition_begin = -1}, {"transition_begin = -1, expected 0 to 2147483647"});
  fails(CosineSchedule{.decay_steps = int64_t{1} << 31}, {"(cosine): decay_steps = 2147483648, expected 1 to"});
  fails(CosineSchedule{.exponent = -1}, {"exponent = -1"});
  fails(ExponentialSchedule{.decay_rate = 0}, {"(exponential): decay_rate = 0, expected a finite number > 0"});
  fails(ExponentialSchedule{.end_value = kNan}, {"end_value = nan"});
  fails(PiecewiseConstantSchedule{.boundaries_and_scales = {{-1, 1.0}}}, {"(piecewise constant): boundary = -1"});
  fails(PiecewiseConstantSchedule{.boundaries_and_scales = {{3, -1.0}}},
        {"scale at 3 = -1, expected a finite number >= 0"});
  fails(WarmupCosineSchedule{.warmup_steps = 10, .decay_steps = 10},
        {"(warm-up and cosine): decay_steps = 10, expected more than warmup_steps = 10"});
  fails(WarmupCosineSchedule{.warmup_steps = -1}, {"warmup_steps = -1"});
  fails(JoinedSchedule{}, {"(joined): number of boundaries = 0, expected one less than the 0 schedules"});
  fails(JoinedSchedule{.schedules = {1.0, 2.0, 3.0}, .boundaries = {4, 4}},
        {"boundaries[1] = 4, expected more than the one before, 4"});
  fails(JoinedSchedule{.schedules = {1.0, LinearSchedule{.transition_steps = -5}}, .boundaries = {4}},
        {"(joined): schedules[1] (linear): transition_steps = -5"});
  EXPECT_THAT(Schedule(0.1).Validate("sgd: learning_rate"), IsOk());
}

}  // namespace
}  // namespace aqt::nn
