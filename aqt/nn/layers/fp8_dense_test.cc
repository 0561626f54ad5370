#include "aqt/nn/layers/fp8_dense.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;
using Values = std::vector<Value>;

const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"},
    kY{SlotKind::kData, "y"};

std::vector<float> Numbers(const Array& array) {
  const Array numbers = Cast(array, DType::kF32);
  return {numbers.View<float>().begin(), numbers.View<float>().end()};
}

absl::StatusOr<Program> TraceLayer(const Aval& x, const Fp8DenseOptions& options) {
  return Trace([&](In in) { return Values{Fp8Dense(in[0], "fc", options)}; }, std::vector<Input>{{kX, x}},
               std::vector<Slot>{kY});
}
// The output of the layer for x before the first step, with these parameters.
absl::StatusOr<Array> RunLayer(const Array& x, const Fp8DenseOptions& options, const SlotValues& params) {
  AQT_ASSIGN_OR_RETURN(const Program program, TraceLayer(x.aval(), options));
  SlotValues values = InitialStats(program);
  values.insert(params.begin(), params.end());
  values[kX] = x;
  AQT_ASSIGN_OR_RETURN(const SlotValues out, EvalSlots(program, values));
  return out.at(kY);
}
SlotValues Params(const Array& kernel, const Array& bias) {
  return {{{SlotKind::kParam, "fc/kernel"}, kernel}, {{SlotKind::kParam, "fc/bias"}, bias}};
}

TEST(Fp8DenseTest, ProgramText) {
  const absl::StatusOr<Program> program =
      TraceLayer({DType::kF32, {2, 3, 4}}, {.features = {5}, .amax_history_length = 3});
  ASSERT_THAT(program, IsOk());
  const std::string text = ToText(*program);
  for (const char* line : {"f32[4,5] param \"fc/kernel\"", "f32[5] param \"fc/bias\"", "f32[1] stat \"fc/input_scale\"",
                           "f32[3] stat \"fc/input_amax_history\"", "f32[1] stat \"fc/kernel_scale\"",
                           "f32[3] stat \"fc/kernel_amax_history\"", "f32[1] stat \"fc/output_grad_scale\"",
                           "f32[3] stat \"fc/output_grad_amax_history\"", "= fp8_dot("}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Fp8DenseTest, ContractsTheLastAxes) {
  const Array x = RandomArray({DType::kF32, {2, 3, 4, 5}}, 1, -3, 3);
  const Array kernel = RandomArray({DType::kF32, {20, 12}}, 2, -3, 3), bias = RandomArray({DType::kF32, {12}}, 3);
  const absl::StatusOr<Array> two = RunLayer(x, {.features = {4, 3}, .axis = {-2, -1}}, Params(kernel, bias));
  ASSERT_THAT(two, IsOk());
  EXPECT_EQ(two->shape(), Shape({2, 3, 4, 3}));
  // The same rows as a matrix.
  const Array rows(Aval{DType::kF32, {6, 20}}, x.buffer());
  const absl::StatusOr<Array> one = RunLayer(rows, {.features = {12}}, Params(kernel, bias));
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->shape(), Shape({6, 12}));
  EXPECT_EQ(Numbers(*one), Numbers(*two));
}

TEST(Fp8DenseTest, ComputesInItsDType) {
  const Array kernel = Array::Of<float>({1, 1}, {2, 1}), bias = Array::Of<float>({1.001f}, {1});
  const Array x = Array::Of<float>({1.0625f, 16}, {1, 2});
  // 1.0625 is 1 in e4m3fn. A bias of f32 is rounded to bf16.
  absl::StatusOr<Array> y = RunLayer(x, {.features = {1}}, Params(kernel, bias));
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->dtype(), DType::kF32);
  EXPECT_THAT(Numbers(*y), ElementsAre(18));
  y = RunLayer(x, {.features = {1}, .dtype = DType::kBF16}, Params(kernel, bias));
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->dtype(), DType::kBF16);
  EXPECT_THAT(Numbers(*y), ElementsAre(18));
  // An f16 bias is not rounded further.
  y = RunLayer(Array::Zeros(DType::kF32, {1, 2}), {.features = {1}, .dtype = DType::kF16}, Params(kernel, bias));
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(Numbers(*y), ElementsAre(ToFloat(RoundToFloat16(1.001f))));
  // Without a dtype: the promoted one.
  y = RunLayer(Cast(x, DType::kF16), {.features = {1}}, Params(kernel, bias));
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->dtype(), DType::kF32);
  const absl::StatusOr<Program> narrow =
      TraceLayer({DType::kBF16, {1, 2}}, {.features = {1}, .param_dtype = DType::kBF16});
  ASSERT_THAT(narrow, IsOk());
  EXPECT_THAT(ToText(*narrow), HasSubstr("{compute=f32}"));
  EXPECT_EQ(narrow->aval(narrow->outputs[0].var).dtype, DType::kBF16);
}

TEST(Fp8DenseTest, TheFlavoursOfTheOriginals) {
  const Fp8DenseOptions flax = FlaxFp8Dense({4, 3});
  EXPECT_THAT(flax.features, ElementsAre(4, 3));
  EXPECT_TRUE(flax.use_bias);
  EXPECT_EQ(flax.amax_history_length, 16);
  EXPECT_EQ(flax.scale_shape, Shape({1}));
  EXPECT_FALSE(flax.rounds_bias_of_matrices_only);
  const Fp8DenseOptions tensorflow = TensorFlowFp8Dense(7);
  EXPECT_EQ(tensorflow.amax_history_length, 1024);
  EXPECT_EQ(tensorflow.scale_shape, Shape());
  EXPECT_TRUE(tensorflow.use_bias);
  const Fp8DenseOptions linear = PraxisFp8Linear(7);
  EXPECT_FALSE(linear.use_bias);
  EXPECT_EQ(linear.amax_history_length, 16);

  const Array kernel = Array::Of<float>({1}, {1, 1}), bias = Array::Of<float>({1.001f}, {1});
  const auto run = [&](const Array& x, const Fp8DenseOptions& options) {
    const absl::StatusOr<Array> y = RunLayer(x, options, Params(kernel, bias));
    EXPECT_THAT(y, IsOk());
    return y.ok() ? Numbers(*y) : std::vector<float>();
  };
  const Array matrix = Array::Zeros(DType::kF32, {1, 1}), cube = Array::Zeros(DType::kF32, {1, 1, 1});
  EXPECT_THAT(run(matrix, PraxisFp8FeedForward(1)), ElementsAre(1));
  EXPECT_THAT(run(cube, PraxisFp8FeedForward(1)), ElementsAre(1.001f));
  EXPECT_THAT(run(cube, FlaxFp8Dense({1})), ElementsAre(1));
  EXPECT_THAT(run(Array::Of<float>({-8}, {1, 1}), PraxisFp8FeedForward(1)), ElementsAre(0));
  EXPECT_THAT(run(matrix, TensorFlowFp8Dense(1)), ElementsAre(1));

  const absl::StatusOr<Program> mlp =
      Trace([](In in) { return Values{Fp8Mlp(in[0], "mlp", {.output_dims = 3, .hidden_dims = 5})}; },
            std::vector<Input>{{kX, {DType::kF32, {2, 4}}}});
  ASSERT_THAT(mlp, IsOk());
  const std::string text = ToText(*mlp);
  for (const char* line : {"f32[4,5] param \"mlp/layer_0/kernel\"", "f32[5,5] param \"mlp/layer_1/kernel\"",
                           "f32[5,3] param \"mlp/layer_2/kernel\""}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Fp8DenseTest, Refuses) {
  const Aval x{DType::kF32, {2, 3, 4}};
  const auto expect = [](const Aval& input, const Fp8DenseOptions& options, const char* message) {
    EXPECT_THAT(TraceLayer(input, options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect({DType::kF32, {4}}, {.features = {2}}, "with at least two axes");
  expect({DType::kF64, {4, 4}}, {.features = {2}}, "expected f32, bf16 or f16");
  expect(x, {.features = {}}, "features = []");
  expect(x, {.features = {2, 0}}, "features = [2,0], expected one number or more, each at least 1");
  expect(x, {.features = {2}, .axis = {-1, -2}}, "axis = [-1,-2], expected the last axes of f32[2,3,4]");
  expect(x, {.features = {2}, .axis = {1}}, "expected the last axes");
  expect(x, {.features = {2}, .axis = {}}, "expected the last axes");
  expect(x, {.features = {2}, .axis = {3}}, "expected the last axes");
  expect(x, {.features = {2}, .dtype = DType::kF64}, "the dtype is f64");
  expect(x, {.features = {2}, .amax_history_length = 0}, "amax_history_length = 0, expected at least 1");
  expect(x, {.features = {2}, .scale_shape = {2}}, "input_scale is f32[2], expected one f32 number");
}

// ---- training

constexpr int64_t kBatch = 16;
Values LossFn(In in) {
  const Value hidden =
      Fp8Dense(in[0], "fc1", {.features = {12}, .activation = [](const Value& y) { return ops::Relu(y); }});
  return {ops::SoftmaxCrossEntropy(Fp8Dense(hidden, "fc2", {.features = {3}}), in[1])};
}
const std::vector<Input>& Inputs() {
  static const auto& inputs =
      *new std::vector<Input>{{kX, {DType::kF32, {kBatch, 5}}}, {kLabels, {DType::kF32, {kBatch, 3}}}};
  return inputs;
}
absl::StatusOr<Trainer> MakeTrainer() {
  AQT_ASSIGN_OR_RETURN(const Program loss, Trace(LossFn, Inputs(), std::vector<Slot>{kLoss}));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, InitParams(LossFn, Inputs(), MakeKey(7)));
  return Trainer::Make(loss, Sgd{}, params, MakeKey(1));
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
  return Numbers(trainer.state().at({SlotKind::kStat, path}));
}

TEST(Fp8DenseTrainingTest, LearnsAndKeepsItsState) {
  absl::StatusOr<Trainer> trainer = MakeTrainer();
  ASSERT_THAT(trainer, IsOk());
  EXPECT_THAT(Stat(*trainer, "fc1/input_scale"), ElementsAre(1));
  std::vector<float> losses = Train(*trainer, 3);
  const auto amax = [](int64_t step) {
    float largest = 0;
    for (const float v : Numbers(Batch(step).at(kX))) largest = std::max(largest, std::fabs(v));
    return largest;
  };
  const std::vector<float> history = Stat(*trainer, "fc1/input_amax_history");
  ASSERT_EQ(history.size(), 16u);
  EXPECT_THAT(std::vector<float>({history[0], history[15], history[14], history[13]}),
              ElementsAre(amax(2), amax(1), amax(0), 0));
  // Numbers below 2 need 2^-7: 448 * 2^-8 is 1.75.
  EXPECT_THAT(Stat(*trainer, "fc1/input_scale"), ElementsAre(0x1p-7f));
  // The loss is a mean over 16 examples: the gradients of the logits are at most 1/16, which needs 2^-19.
  const float gradient = Stat(*trainer, "fc2/output_grad_amax_history")[0];
  EXPECT_GT(gradient, 0);
  EXPECT_LE(gradient, 1.0f / 16);
  EXPECT_LE(Stat(*trainer, "fc2/output_grad_scale")[0], 0x1p-19f);
  losses = Train(*trainer, 150);
  float last = 0;
  for (size_t i = losses.size() - 20; i < losses.size(); ++i) last += losses[i] / 20;
  EXPECT_LT(last, 0.45f);
}

TEST(Fp8DenseTrainingTest, ResumedTrainingHasTheSameBits) {
  const std::string path = ::testing::TempDir() + "/fp8.safetensors";
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

// A layer that is used twice has one kernel, and a state for each use.
TEST(Fp8DenseTrainingTest, EachUseHasAStateOfItsOwn) {
  const absl::StatusOr<Program> program = Trace(
      [](In in) {
        const Fp8DenseOptions options{.features = {5}};
        return Values{Fp8Dense(Fp8Dense(in[0], "fc", options), "fc", options)};
      },
      std::vector<Input>{{kX, {DType::kF32, {2, 5}}}});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(program->InputsOfKind(SlotKind::kParam).size(), 2u);
  EXPECT_EQ(program->InputsOfKind(SlotKind::kStat).size(), 12u);
  EXPECT_THAT(ToText(*program), HasSubstr("stat \"fc/dot_1/input_scale\""));
}

}  // namespace
}  // namespace aqt::nn
