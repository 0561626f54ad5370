// One model trained with each recipe for 8-bit floats: the layers of fp8_dense.h, and the presets.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/fp8_dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/programs.h"
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
using ::aqt::testing::StatusIs;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;

// All extents except those of the logits are multiples of 32.
constexpr int64_t kSize = 32, kClasses = 3;
const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"};

std::vector<Value> Model(In in, const std::function<Value(const Value&, const char*)>& layer) {
  const Value h = ops::Relu(layer(ops::Relu(layer(in[0], "fc1")), "fc2"));
  return {ops::SoftmaxCrossEntropy(Dense(h, "logits", {.features = kClasses}), in[1])};
}
std::vector<Value> PlainModel(In in) {
  return Model(in, [](const Value& x, const char* name) { return Dense(x, name, {.features = kSize}); });
}
std::vector<Value> Fp8Model(In in) {
  return Model(in, [](const Value& x, const char* name) { return Fp8Dense(x, name, {.features = {kSize}}); });
}
std::vector<Input> Inputs() {
  return {{kX, {DType::kF32, {kSize, kSize}}}, {kLabels, {DType::kF32, {kSize, kClasses}}}};
}

absl::StatusOr<Program> Injected(const std::string& preset) {
  AQT_ASSIGN_OR_RETURN(const Program loss, Trace(PlainModel, Inputs(), std::vector<Slot>{kLoss}));
  AQT_ASSIGN_OR_RETURN(const InjectConfig config,
                       InjectConfigFromText(absl::StrCat("schema: 1 rules { scope: 'logits' keep: true } ",
                                                         "rules { dot_general { base: '", preset, "' } }")));
  return Inject(loss, config);
}

// The class of an example is the index of the largest of its first three numbers.
SlotValues Batch(uint64_t seed) {
  const Array x = RandomArray({DType::kF32, {kSize, kSize}}, seed);
  ArrayBuilder labels(DType::kF32, {kSize, kClasses});
  for (int64_t i = 0; i < kSize; ++i) {
    const float* row = x.View<float>().data() + i * kSize;
    for (int64_t j = 0; j < kClasses; ++j) {
      labels.Mutable<float>()[i * kClasses + j] = j == std::max_element(row, row + kClasses) - row ? 1 : 0;
    }
  }
  return {{kX, x}, {kLabels, std::move(labels).Build()}};
}

// The mean loss of the last fifty of two hundred steps.
absl::StatusOr<double> TrainedLoss(const Program& loss, TracedFunction model) {
  AQT_ASSIGN_OR_RETURN(const SlotValues params, InitParams(model, Inputs(), MakeKey(7)));
  AQT_ASSIGN_OR_RETURN(Trainer trainer, Trainer::Make(loss, Sgd{.learning_rate = 0.05}, params, MakeKey(1)));
  double sum = 0;
  for (int64_t step = 0; step < 200; ++step) {
    AQT_ASSIGN_OR_RETURN(const SlotValues out, trainer.Step(Batch(static_cast<uint64_t>(step))));
    if (step >= 150) sum += double{out.at(kLoss).View<float>()[0]};
  }
  return sum / 50;
}

TEST(Fp8RecipesTest, AllLearnAsInF32) {
  const absl::StatusOr<Program> plain = Trace(PlainModel, Inputs(), std::vector<Slot>{kLoss});
  ASSERT_THAT(plain, IsOk());
  const absl::StatusOr<double> want = TrainedLoss(*plain, PlainModel);
  ASSERT_THAT(want, IsOk());
  EXPECT_LT(*want, 0.5);  // 1.1 is the loss of a guess
  for (const char* preset : {"fp8_delayed", "fp8_current", "fp8_hybrid", "fp8_mx", "fwd_fp8"}) {
    const absl::StatusOr<Program> program = Injected(preset);
    ASSERT_THAT(program, IsOk()) << preset;
    EXPECT_EQ(testing::CountOps(*program, "aqt_dot_general"), 2) << preset;
    const absl::StatusOr<double> loss = TrainedLoss(*program, PlainModel);
    ASSERT_THAT(loss, IsOk()) << preset;
    EXPECT_NEAR(*loss, *want, 0.05) << preset;
  }
  const absl::StatusOr<Program> layers = Trace(Fp8Model, Inputs(), std::vector<Slot>{kLoss});
  ASSERT_THAT(layers, IsOk());
  const absl::StatusOr<double> loss = TrainedLoss(*layers, Fp8Model);
  ASSERT_THAT(loss, IsOk());
  EXPECT_NEAR(*loss, *want, 0.05);
}

// The output of one layer for x, with this configuration of its contraction, before the first step.
absl::StatusOr<Array> ThroughLayer(const std::string& dot_general, const Array& x,
                                   const std::function<Value(const Value&)>& layer) {
  const auto model = [&](In in) { return std::vector<Value>{layer(in[0])}; };
  const std::vector<Input> inputs = {{kX, x.aval()}};
  AQT_ASSIGN_OR_RETURN(const Program program, Trace(model, inputs, std::vector<Slot>{kLoss}));
  AQT_ASSIGN_OR_RETURN(const InjectConfig config,
                       InjectConfigFromText(absl::StrCat("schema: 1 rules { dot_general { ", dot_general, " } }")));
  AQT_ASSIGN_OR_RETURN(const Program quantized, Inject(program, config));
  AQT_ASSIGN_OR_RETURN(SlotValues values, InitParams(model, inputs, MakeKey(7)));
  values.merge(InitialStats(quantized));
  values[kX] = x;
  AQT_ASSIGN_OR_RETURN(const SlotValues out, EvalSlots(quantized, values));
  return out.at(kLoss);
}
absl::StatusOr<Array> ThroughLayer(const std::string& preset, const Array& x) {
  return ThroughLayer(absl::StrCat("base: '", preset, "'"), x,
                      [](const Value& in) { return Dense(in, "fc", {.features = kSize}); });
}

// Scales measured in each step: zeros give zeros; an infinity or a NaN turns all values that share its scale into NaN.
TEST(Fp8RecipesTest, ZerosAndInfinities) {
  constexpr int64_t kRow = 3;
  const Array numbers = Batch(1).at(kX);
  std::vector<float> values(numbers.View<float>().begin(), numbers.View<float>().end());
  for (const char* preset : {"fp8_current", "fp8_hybrid", "fp8_mx"}) {
    const absl::StatusOr<Array> zeros = ThroughLayer(preset, Array::Zeros(DType::kF32, {kSize, kSize}));
    ASSERT_THAT(zeros, IsOk()) << preset;
    for (const float v : zeros->View<float>()) EXPECT_EQ(v, 0) << preset;
    const absl::StatusOr<Array> finite = ThroughLayer(preset, numbers);
    ASSERT_THAT(finite, IsOk()) << preset;
    for (const float special : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      values[kRow * kSize] = special;
      const absl::StatusOr<Array> y = ThroughLayer(preset, Array::FromSpan<float>(values, {kSize, kSize}));
      ASSERT_THAT(y, IsOk()) << preset;
      for (int64_t i = 0; i < kSize * kSize; ++i) {
        const float got = y->View<float>()[i];
        if (i / kSize == kRow || preset == std::string("fp8_current")) EXPECT_TRUE(std::isnan(got)) << preset << i;
        else EXPECT_EQ(got, finite->View<float>()[i]) << preset << i;
      }
    }
  }
}

// The blocks of fp8_mx must fit.
TEST(Fp8RecipesTest, BlocksOf32) {
  const absl::StatusOr<Program> loss = Trace(PlainModel, Inputs(), std::vector<Slot>{kLoss});
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<InjectConfig> config =
      InjectConfigFromText("schema: 1 rules { dot_general { base: 'fp8_mx' } }");
  ASSERT_THAT(config, IsOk());
  EXPECT_THAT(Inject(*loss, *config), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32")));
}

// Two contracted axes: an error that names the remedy; and with the tiling in the preset's text, the blocks and the
// bits of the layer whose input has a single axis instead.
TEST(Fp8RecipesTest, BlocksOfTwoContractedAxes) {
  const auto general = [](const Value& in) { return DenseGeneral(in, "fc", {.features = {kSize}, .axes = {-2, -1}}); };
  for (const int64_t first : {int64_t{3}, kSize}) {  // its blocks do not fit, or fit on the wrong axis
    EXPECT_THAT(ThroughLayer("base: 'fp8_mx'", Array::Zeros(DType::kF32, {kSize, first, 2 * kSize}), general).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("give this contraction a rule with a tiling of its own axes")));
  }
  const Array x = RandomArray({DType::kF32, {kSize, 3, 2 * kSize}}, 4);
  const absl::StatusOr<Array> got = ThroughLayer(
      "base: 'fp8_mx' tiling {"
      "  lhs { contraction_axes { axis: -2 tile_size: 1 } contraction_axes { axis: -1 tile_size: 32 } }"
      "  rhs { contraction_axes { axis: 0 tile_size: 1 } contraction_axes { axis: 1 tile_size: 32 } } }",
      x, general);
  const absl::StatusOr<Array> want = ThroughLayer("base: 'fp8_mx'", x, [](const Value& in) {
    return Dense(ops::Reshape(in, {kSize, 6 * kSize}), "fc", {.features = kSize});
  });
  ASSERT_THAT(got, IsOk());
  ASSERT_THAT(want, IsOk());
  EXPECT_TRUE(BitEqual(*got, *want));
}

}  // namespace
}  // namespace aqt::nn
