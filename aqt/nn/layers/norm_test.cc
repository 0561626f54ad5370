#include "aqt/nn/layers/norm.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/ops/scaling/low_precision.h"
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

const Slot kX{SlotKind::kData, "x"}, kScale{SlotKind::kParam, "norm/scale"}, kBias{SlotKind::kParam, "norm/bias"};
const Slot kMean{SlotKind::kStat, "norm/mean"}, kVariance{SlotKind::kStat, "norm/var"};

// The norm of one group of numbers, in f64: (x - shift) / sqrt(mean((x - shift)^2) + epsilon).
std::vector<double> Normalized(const std::vector<double>& x, bool centre, double epsilon) {
  double mean = 0, square = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  if (!centre) mean = 0;
  for (const double v : x) square += (v - mean) * (v - mean) / static_cast<double>(x.size());
  std::vector<double> y;
  for (const double v : x) y.push_back((v - mean) / std::sqrt(square + epsilon));
  return y;
}

// f64 results of a layer differ from the loops above by a few roundings.
constexpr double kF64Tolerance = 1e-13;

Array F64(const Shape& shape, uint64_t seed) { return RandomArray({DType::kF64, shape}, seed, -2, 3); }

TEST(NormTest, LayerNormOfTheLastAxis) {
  const Array x = F64({2, 3, 5}, 1), scale = F64({5}, 2), bias = F64({5}, 3);
  const SlotValues params = {{kScale, scale}, {kBias, bias}};
  const EagerParams eager(params);
  const absl::StatusOr<Array> y = LayerNorm(Value(x), "norm").ToArray();
  ASSERT_THAT(y, IsOk());
  for (int64_t row = 0; row < 6; ++row) {
    const double* from = x.View<double>().data() + row * 5;
    const std::vector<double> want = Normalized({from, from + 5}, true, 1e-6);
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(y->View<double>()[row * 5 + i], want[i] * scale.View<double>()[i] + bias.View<double>()[i],
                  kF64Tolerance);
    }
  }
}

// The first and the last axis together; the parameters have these axes.
TEST(NormTest, LayerNormOfSeveralAxes) {
  const Array x = F64({2, 3, 4}, 1), scale = F64({2, 4}, 2);
  const SlotValues params = {{kScale, scale}};
  const EagerParams eager(params);
  const absl::StatusOr<Array> y =
      LayerNorm(Value(x), "norm", {.axes = {2, 0}, .epsilon = 0.5, .use_bias = false}).ToArray();
  ASSERT_THAT(y, IsOk());
  for (int64_t j = 0; j < 3; ++j) {
    std::vector<double> group;
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t k = 0; k < 4; ++k) group.push_back(x.View<double>()[(i * 3 + j) * 4 + k]);
    }
    const std::vector<double> want = Normalized(group, true, 0.5);
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_NEAR(y->View<double>()[(i * 3 + j) * 4 + k], want[i * 4 + k] * scale.View<double>()[i * 4 + k],
                    kF64Tolerance);
      }
    }
  }
}

TEST(NormTest, RmsNorm) {
  const Array x = F64({3, 7}, 4), scale = F64({7}, 5);
  const SlotValues params = {{kScale, scale}};
  const EagerParams eager(params);
  const absl::StatusOr<Array> y = RmsNorm(Value(x), "norm", {.epsilon = 1e-3}).ToArray();
  ASSERT_THAT(y, IsOk());
  for (int64_t row = 0; row < 3; ++row) {
    const double* from = x.View<double>().data() + row * 7;
    const std::vector<double> want = Normalized({from, from + 7}, false, 1e-3);
    for (int64_t i = 0; i < 7; ++i) {
      EXPECT_NEAR(y->View<double>()[row * 7 + i], want[i] * scale.View<double>()[i], kF64Tolerance);
    }
  }
}

// bf16 numbers are normalized in f32 and rounded once: the result is the rounded f32 result.
TEST(NormTest, Bf16IsComputedInF32) {
  const Array x = RandomArray({DType::kBF16, {4, 16}}, 6);
  const auto norm = [&](const Array& input) {
    const SlotValues params = {{kScale, Cast(RandomArray({DType::kBF16, {16}}, 7), input.dtype())},
                               {kBias, Cast(RandomArray({DType::kBF16, {16}}, 8), input.dtype())}};
    const EagerParams eager(params);
    return *ops::Cast(LayerNorm(Value(input), "norm"), DType::kBF16).ToArray();
  };
  EXPECT_TRUE(BitEqual(norm(x), norm(Cast(x, DType::kF32))));
}

// Each step rounded to three bits, by hand. tests/e2e/older_layers_test.cc has recorded values of LayerNorm.
TEST(NormTest, LowPrecisionRmsNorm) {
  const SmallFloat format{-6, 8, 3};
  const Array x = RandomArray({DType::kF32, {3, 8}}, 9), scale = RandomArray({DType::kF32, {8}}, 10, 0.5, 1.5);
  const SlotValues params = {{kScale, scale}};
  const EagerParams eager(params);
  const absl::StatusOr<Array> y =
      RmsNorm(Value(x), "norm", {.low_precision = LowPrecision{.steps = format, .sums = format}}).ToArray();
  ASSERT_THAT(y, IsOk());
  const auto q = [&](float v) { return format.Round(v); };
  for (int64_t row = 0; row < 3; ++row) {
    float sum = 0;
    for (int64_t i = 0; i < 8; ++i) {
      const float c = q(x.View<float>()[row * 8 + i]);
      sum = q(sum + q(c * c));
    }
    // The format's smallest number replaces a smaller epsilon; 1 / 8 is a number of the format.
    const float mean = q(q(sum) * 0.125f), factor = q(1 / std::sqrt(q(mean + 0x1p-6f)));
    for (int64_t i = 0; i < 8; ++i) {
      const float scaled = q(factor * q(scale.View<float>()[i]));
      EXPECT_EQ(y->View<float>()[row * 8 + i], q(q(x.View<float>()[row * 8 + i]) * scaled));
    }
  }
}

Values Loss(In in) {
  const Value y = BatchNorm(in[0], "norm", {.momentum = 0.75});
  return {ops::Mean(y * y * y)};
}

TEST(NormTest, BatchNormMovesItsStatistics) {
  const Aval aval{DType::kF32, {6, 2, 3}};
  const absl::StatusOr<SlotValues> initial = InitParams(Loss, {{kX, aval}}, MakeKey(1));
  ASSERT_THAT(initial, IsOk());
  EXPECT_TRUE(BitEqual(initial->at(kMean), Array::Of<float>({0, 0, 0}, {3})));
  EXPECT_TRUE(BitEqual(initial->at(kVariance), Array::Of<float>({1, 1, 1}, {3})));
  absl::StatusOr<Trainer> trainer =
      Trainer::Make(*Trace(Loss, {{kX, aval}}), Sgd{.learning_rate = 0.1}, *initial, MakeKey(2));
  ASSERT_THAT(trainer, IsOk());
  std::vector<double> mean(3, 0), variance(3, 1);
  for (int step = 0; step < 3; ++step) {
    const Array x = RandomArray(aval, 10 + step, -1, 2);
    ASSERT_THAT(trainer->Step({{kX, x}}), IsOk());
    for (int64_t c = 0; c < 3; ++c) {
      double sum = 0, square = 0;
      for (int64_t i = c; i < 36; i += 3) sum += x.View<float>()[i] / 12.0;
      for (int64_t i = c; i < 36; i += 3) square += std::pow(x.View<float>()[i] - sum, 2) / 12.0;
      mean[c] = 0.75 * mean[c] + 0.25 * sum;
      variance[c] = 0.75 * variance[c] + 0.25 * square;
      // A sum of 12 f32 numbers below 4, and a few roundings per step.
      EXPECT_NEAR(trainer->state().at(kMean).View<float>()[c], mean[c], 1e-5);
      EXPECT_NEAR(trainer->state().at(kVariance).View<float>()[c], variance[c], 1e-5);
    }
  }
}

// With running statistics an example has the same bits in every batch; statistics are not written.
TEST(NormTest, BatchNormInUse) {
  const Array x = RandomArray({DType::kF32, {4, 3}}, 1);
  SlotValues values = {{kScale, RandomArray({DType::kF32, {3}}, 2)},
                       {kBias, RandomArray({DType::kF32, {3}}, 3)},
                       {kMean, RandomArray({DType::kF32, {3}}, 4)},
                       {kVariance, RandomArray({DType::kF32, {3}}, 5, 0.5, 2)}};
  const auto run = [&](const Array& input) {
    const absl::StatusOr<Program> program =
        Trace([](In in) { return Values{BatchNorm(in[0], "norm", {.train = false})}; }, {{kX, input.aval()}});
    EXPECT_THAT(program, IsOk());
    EXPECT_EQ(program->outputs.size(), 1u);
    values[kX] = input;
    return EvalSlots(*program, values)->begin()->second;
  };
  const Array all = run(x);
  const Array one = run(*ops::Slice(Value(x), {2, 0}, {3, 3}).ToArray());
  EXPECT_TRUE(BitEqual(one, *ops::Slice(Value(all), {2, 0}, {3, 3}).ToArray()));
  for (int64_t i = 0; i < 12; ++i) {
    const auto number = [&](const Slot& slot) { return static_cast<double>(values.at(slot).View<float>()[i % 3]); };
    const double want =
        (x.View<float>()[i] - number(kMean)) / std::sqrt(number(kVariance) + 1e-5) * number(kScale) + number(kBias);
    EXPECT_NEAR(all.View<float>()[i], want, 1e-6 * (1 + std::abs(want)));
  }
}

TEST(NormTest, Errors) {
  const auto traced = [](const Shape& shape, const std::function<Value(const Value&)>& layer) {
    return Trace([&](In in) { return Values{layer(in[0])}; }, {{kX, {DType::kF32, shape}}});
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(traced({2, 3}, [](const Value& x) { return LayerNorm(x, "norm", {.axes = {2}}); }),
              FailsWith(kInvalid, {"layer_norm [norm]", "axis 2", "f32[2,3]", "norm_test.cc:"}));
  EXPECT_THAT(traced({2, 3}, [](const Value& x) { return LayerNorm(x, "norm", {.axes = {}}); }),
              FailsWith(kInvalid, {"layer_norm [norm]", "there are no axes"}));
  EXPECT_THAT(traced({2, 3}, [](const Value& x) { return RmsNorm(x, "norm", {.epsilon = -1}); }),
              FailsWith(kInvalid, {"rms_norm [norm]: epsilon = -1"}));
  EXPECT_THAT(traced({2, 3}, [](const Value& x) { return BatchNorm(x, "norm", {.momentum = 1}); }),
              FailsWith(kInvalid, {"batch_norm [norm]: momentum = 1"}));
  EXPECT_THAT(traced({}, [](const Value& x) { return BatchNorm(x, "norm"); }),
              FailsWith(kInvalid, {"batch_norm [norm]", "at least one axis"}));
  EXPECT_THAT(traced({2, 3},
                     [](const Value& x) {
                       return LayerNorm(x, "norm", {.low_precision = LowPrecision{.steps = {.mantissa_bits = 0}}});
                     }),
              FailsWith(kInvalid, {"layer_norm [norm]: mantissa_bits = 0"}));
  EXPECT_THAT(traced({2, 3},
                     [](const Value& x) {
                       return RmsNorm(ops::Cast(x, DType::kF64), "norm", {.low_precision = LowPrecision{}});
                     }),
              FailsWith(kInvalid, {"rms_norm [norm]: low_precision is not for f64"}));
  // Two layers of one name would write one statistic twice.
  EXPECT_THAT(traced({2, 3}, [](const Value& x) { return BatchNorm(BatchNorm(x, "norm"), "norm"); }),
              FailsWith(absl::StatusCode::kAlreadyExists, {"norm/mean"}));
}

}  // namespace
}  // namespace aqt::nn
