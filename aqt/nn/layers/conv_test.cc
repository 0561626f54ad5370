#include "aqt/nn/layers/conv.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/fold.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

absl::StatusOr<Program> Cnn(const std::optional<QuantizedDotOptions>& conv) {
  return Trace(
      [&](In in) {
        const NamedScope scope("cnn");
        const ConvDims strided{.window_strides = {2, 2}, .padding = ConvPadding::kSame, .feature_group_count = 2};
        const Value hidden =
            ops::Relu(Conv(in[0], "conv1", {.features = 4, .kernel_size = {3, 3}, .dims = strided, .conv = conv}));
        return Values{Conv(hidden, "conv2", {.features = 2, .kernel_size = {1, 1}, .use_bias = false, .conv = conv})};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {2, 6, 6, 2}}}});
}

InjectConfig Int8Convolutions(QuantMode mode) {
  InjectConfig config;
  config.rules.push_back({.ops = {"conv"}, .dot_general = DotGeneralConfig{.fwd = ConvGeneralDilatedMake(2, 8, 8)}});
  config.param_mode = mode;
  return config;
}

TEST(ConvTest, ProgramText) {
  const absl::StatusOr<Program> program = Cnn(std::nullopt);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[2,6,6,2] data "x"
in %1: f32[3,3,1,4] param "cnn/conv1/kernel"
in %2: f32[4] param "cnn/conv1/bias"
in %3: f32[1,1,4,2] param "cnn/conv2/kernel"
const %4: f32[] = 0
const %5: f32[] = 0
%6: f32[2,3,3,4] = conv(%0, %1) {padding=SAME, strides=[2,2], groups=2} @cnn/conv1
%7: f32[2,3,3,4] = broadcast(%2) {axes=[3]} @cnn/conv1
%8: f32[2,3,3,4] = add(%6, %7) @cnn/conv1
%9: f32[2,3,3,4] = broadcast(%4) {axes=[]} @cnn
%10: f32[2,3,3,4] = max(%8, %9) @cnn
%11: f32[2,3,3,4] = stop_gradient(%10) @cnn
%12: f32[2,3,3,4] = broadcast(%5) {axes=[]} @cnn
%13: bool[2,3,3,4] = gt(%8, %12) @cnn
%14: f32[2,3,3,4] = select(%13, %8, %11) @cnn
%15: f32[2,3,3,2] = conv(%14, %3) {padding=SAME} @cnn/conv2
out %15 data "0"
)");
}

// A layer that quantizes itself and one that a rule quantizes give the same program.
TEST(ConvTest, ExplicitAndInjectedQuantizationGiveTheSameText) {
  for (const QuantMode mode : {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kServe}) {
    const absl::StatusOr<Program> injected = Inject(*Cnn(std::nullopt), Int8Convolutions(mode)),
                                  explicit_one = Cnn(AqtConv(ConvGeneralDilatedMake(2, 8, 8), mode));
    ASSERT_THAT(injected, IsOk());
    ASSERT_THAT(explicit_one, IsOk());
    EXPECT_EQ(ToText(*explicit_one), ToText(*injected));
    EXPECT_EQ(CountOps(*injected, "aqt_conv"), 2);
  }
}

// Learns the kernel and bias of a convolution from its results, quantized to int8, and stores the int8 kernel.
TEST(ConvTest, AQuantizedLayerTrainsAndIsStored) {
  const Aval image{DType::kF32, {8, 6, 6, 2}}, target{DType::kF32, {8, 6, 6, 3}};
  const Slot x{SlotKind::kData, "x"}, y{SlotKind::kData, "y"}, out{SlotKind::kData, "out"};
  const auto model = [](const Value& in) { return Conv(in, "conv", {.features = 3, .kernel_size = {3, 3}}); };
  const auto loss_fn = [&](In in) {
    const Value out = model(in[0]), error = out - in[1];
    return Values{ops::Mean(error * error)};
  };
  const std::vector<Input> inputs = {{x, image}, {y, target}};
  const absl::StatusOr<Program> loss = Inject(*Trace(loss_fn, inputs), Int8Convolutions(QuantMode::kTrain));
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<SlotValues> initial = InitParams(loss_fn, inputs, MakeKey(3));
  ASSERT_THAT(initial, IsOk());
  absl::StatusOr<Trainer> trainer = Trainer::Make(*loss, Sgd{.learning_rate = 0.2}, *initial, MakeKey(1));
  ASSERT_THAT(trainer, IsOk());
  const Value kernel(RandomArray({DType::kF32, {3, 3, 2, 3}}, 7, -0.5, 0.5)), bias(Array::Of<float>({1, -1, 0.5}, {3}));
  float first = 0, last = 0;
  for (int step = 0; step < 80; ++step) {
    const Array images = RandomArray(image, 100 + step, -1, 1);
    const Value wanted = ops::Conv(Value(images), kernel, {.padding = ConvPadding::kSame}) + bias;
    const absl::StatusOr<SlotValues> result = trainer->Step({{x, images}, {y, *wanted.ToArray()}});
    ASSERT_THAT(result, IsOk());
    last = result->begin()->second.View<float>()[0];
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.01f * first);

  const auto traced = [&](QuantMode mode, const SlotValues* frozen = nullptr) {
    return Inject(*Trace([&](In in) { return Values{model(in[0])}; }, {{x, image}}, std::vector<Slot>{out}),
                  Int8Convolutions(mode), frozen);
  };
  SlotValues params = trainer->params();
  const absl::StatusOr<Folded> folded = Fold(*traced(QuantMode::kConvert), params);
  ASSERT_THAT(folded, IsOk());
  EXPECT_FALSE(folded->values.contains({SlotKind::kParam, "conv/kernel"}));
  EXPECT_EQ(folded->values.at({SlotKind::kFrozen, "conv/qrhs/value"}).aval(), (Aval{DType::kS8, {3, 3, 2, 3}}));
  EXPECT_EQ(folded->values.at({SlotKind::kFrozen, "conv/qrhs/scale"}).aval(), (Aval{DType::kF32, {1, 1, 1, 3}}));
  SlotValues served = folded->values;
  served[x] = params[x] = RandomArray(image, 5);
  const absl::StatusOr<SlotValues> want = EvalSlots(*traced(QuantMode::kTrain), params),
                                   got = EvalSlots(folded->program, served);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual(got->at(out), want->at(out)));
}

TEST(ConvTest, Errors) {
  const auto traced = [](const Shape& shape, const ConvOptions& options) {
    return Trace([&](In in) { return Values{Conv(in[0], "conv", options)}; },
                 {{{SlotKind::kData, "x"}, {DType::kF32, shape}}});
  };
  EXPECT_THAT(traced({2, 5, 3}, {.features = 3, .kernel_size = {3, 3}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"conv [conv]", "2 spatial axes", "conv_test.cc:"}));
  EXPECT_THAT(traced({2, 5, 3}, {.kernel_size = {3}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"conv [conv]: features = 0", "conv_test.cc:"}));
  EXPECT_THAT(
      traced({2, 5, 3}, {.features = 2, .kernel_size = {3}, .dims = {.feature_group_count = 2}}),
      FailsWith(absl::StatusCode::kInvalidArgument, {"feature_group_count = 2 does not divide the 3 channels"}));
  EXPECT_THAT(
      traced({2, 5, 3}, {.features = 2, .kernel_size = {3}, .dims = {.window_strides = {1, 1}}}),
      FailsWith(absl::StatusCode::kInvalidArgument, {"conv [conv]: conv_general: window_strides", "conv_test.cc:"}));
}

}  // namespace
}  // namespace aqt::nn
