// Quantization, mixed precision and scaled arithmetic in one training, in every combination.

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/core/array_ops.h"
#include "aqt/precision.h"
#include "aqt/transforms/pipeline.h"

namespace aqt {
namespace {

constexpr int64_t kRows = 32, kIn = 8, kHidden = 16, kClasses = 3;
const Slot kX{SlotKind::kData, "x"}, kT{SlotKind::kData, "t"};

Slot Param(const char* name) { return {SlotKind::kParam, name}; }

// A layer in 8-bit floats, or a plain one that a rule may quantize.
Value Product(const Value& x, const Value& w, bool fp8) {
  if (!fp8) return ops::MatMul(x, w);
  const std::string name = CurrentScope();
  return ops::Fp8Dot(x, w, Fp8StateInputs(name, 4), {.name = name});
}

// A classifier: the mean cross entropy of two layers.
Program Classifier(bool fp8_layers = false) {
  return *Trace(
      [&](absl::Span<const Value> in) {
        const Value &x = in[0], &t = in[1];
        Value h;
        {
          const NamedScope scope("hidden");
          h = ops::Max(Product(x, in[2], fp8_layers) + in[3], 0.0);
        }
        const NamedScope scope("logits");
        const Value z = Product(h, in[4], fp8_layers);
        const Value max = ops::StopGradient(ops::ReduceMax(z, {1}, /*keepdims=*/true));
        const Value log_sum = ops::Log(ops::ReduceSum(ops::Exp(z - max), {1}, /*keepdims=*/true)) + max;
        return std::vector<Value>{-ops::ReduceSum((z - log_sum) * t) / static_cast<double>(kRows)};
      },
      {{{kX, {DType::kF32, {kRows, kIn}}},
        {kT, {DType::kF32, {kRows, kClasses}}},
        {Param("w1"), {DType::kF32, {kIn, kHidden}}},
        {Param("b1"), {DType::kF32, {kHidden}}},
        {Param("w2"), {DType::kF32, {kHidden, kClasses}}}}});
}

Array Normal(const Shape& shape, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(shape.num_elements());
  for (float& v : values) v = normal(random);
  return Array::FromSpan<float>(values, shape);
}

// Three clouds of points, and initial parameters.
SlotValues Data() {
  std::mt19937 random(7);
  const Array centers = Normal({kClasses, kIn}, 2, random), noise = Normal({kRows, kIn}, 0.5f, random);
  std::vector<float> x(kRows * kIn), t(kRows * kClasses, 0.0f);
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t label = row % kClasses;
    t[row * kClasses + label] = 1;
    for (int64_t i = 0; i < kIn; ++i) {
      x[row * kIn + i] = centers.View<float>()[label * kIn + i] + noise.View<float>()[row * kIn + i];
    }
  }
  return {{kX, Array::FromSpan<float>(x, {kRows, kIn})},
          {kT, Array::FromSpan<float>(t, {kRows, kClasses})},
          {Param("w1"), Normal({kIn, kHidden}, 0.3f, random)},
          {Param("b1"), Array::Zeros(DType::kF32, {kHidden})},
          {Param("w2"), Normal({kHidden, kClasses}, 0.3f, random)}};
}

enum class Quantization { kNone, kInt8, kFp8, kFp8Current, kFp8Delayed, kFp8Layers };

// The injected configuration.
DotGeneralConfig Recipe(Quantization quantization) {
  switch (quantization) {
    case Quantization::kInt8: return *FullyQuantized({.use_stochastic_rounding = false});
    case Quantization::kFp8: return DotGeneralMake(Bits::E4M3(), Bits::E4M3());
    case Quantization::kFp8Current: return *DotGeneralFromPreset("fp8_current");
    case Quantization::kFp8Delayed: return *DotGeneralFromPreset("fp8_delayed");
    default: return {};
  }
}

const std::vector<Slot> kParams = {Param("w1"), Param("b1"), Param("w2")};

class Composition : public testing::TestWithParam<std::tuple<Quantization, std::optional<DType>, bool>> {
 protected:
  // The stages before the gradient, in the order of docs/precision.md.
  static Pipeline LossStages() {
    const auto [quantization, compute, scaled] = GetParam();
    Pipeline pipeline;
    if (compute.has_value()) {
      AmpOptions amp{.compute_dtype = *compute};
      // The integer sums of a quantized contraction overflow f16 (docs/precision.md).
      if (quantization != Quantization::kNone) amp.policy["dot_general"] = UsePrecision(DType::kBF16);
      pipeline.Add(StageKind::kAmp, "amp", [amp](const Program& p) { return Amp(p, amp); });
    }
    if (quantization != Quantization::kNone && !has_layers()) {
      InjectConfig config;
      config.rules.push_back({.dot_general = Recipe(quantization)});
      pipeline.Add(StageKind::kInject, "inject", [config](const Program& p) { return Inject(p, config); });
    }
    return pipeline;
  }
  static bool has_layers() { return std::get<Quantization>(GetParam()) == Quantization::kFp8Layers; }
  static bool is_scaled() { return std::get<bool>(GetParam()); }
};

// A number that may be scaled, such as the loss.
double NumberOf(const SlotValues& out, const Slot& slot) {
  return Cast(AsArrays(out, DType::kF32)->at(slot), DType::kF64).View<double>()[0];
}

// With a trainer, which runs the step as an Executable. The momentum has no scale: the step reads and writes it
// unscaled.
TEST_P(Composition, Trains) {
  const Program classifier = Classifier(has_layers());
  const nn::Sgd sgd{.learning_rate = 0.2, .momentum = 0.5};
  nn::TrainOptions options{.step = {.scaler = DynamicScaler{.scaler = 1024}}};
  SlotValues batch = Data(), params;
  for (const Slot& slot : kParams) params.insert(batch.extract(slot));
  Pipeline whole = LossStages();
  whole.Add(StageKind::kGrad, "step", [&](const Program& p) { return nn::TrainStep(p, sgd, options.step); });
  if (is_scaled()) {
    const Array one = Array::Scalar(1.0f);
    params = *AsScaledArrays(params, one);
    ScalifyOptions scalify{.rules = {.scale_dtype = DType::kF32}, .scaled_inputs = ScaleDTypes(params)};
    scalify.scaled_inputs[kX] = DType::kF32;
    batch.emplace(ScaleSlot(kX), one);
    options.transform = [scalify](const Program& p) { return Scalify(p, scalify); };
    whole.Add(StageKind::kScalify, "scalify", options.transform);
  }
  const absl::StatusOr<Program> step = whole.Run(classifier);
  ASSERT_TRUE(step.ok()) << step.status();
  absl::StatusOr<nn::Trainer> trainer =
      nn::Trainer::Make(*LossStages().Run(classifier), sgd, params, MakeKey(0), options);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ(ToText(trainer->program()), ToText(*step));

  const Slot loss{SlotKind::kData, "0"};
  SlotValues before = trainer->state();
  before.insert(batch.begin(), batch.end());
  const absl::StatusOr<SlotValues> want = EvalSlots(*step, before);
  ASSERT_TRUE(want.ok()) << want.status();
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    const absl::StatusOr<SlotValues> out = trainer->Step(batch);
    ASSERT_TRUE(out.ok()) << out.status();
    last = NumberOf(*out, loss);
    if (i > 0) continue;
    first = last;
    for (const auto& [slot, array] : *want) {
      const SlotValues& got = out->contains(slot) ? *out : trainer->state();
      EXPECT_TRUE(BitEqual(got.at(slot), array)) << slot.ToString();
    }
  }
  EXPECT_GT(first, 0.5);
  EXPECT_LT(last, 0.25 * first);
  for (const Slot& slot : kParams) EXPECT_EQ(trainer->state().contains(ScaleSlot(slot)), is_scaled());
}

std::string NameOf(const testing::TestParamInfo<Composition::ParamType>& info) {
  const auto& [quantization, compute, scaled] = info.param;
  const char* const names[] = {"float", "int8", "fp8", "fp8_current", "fp8_delayed", "fp8_layers"};
  return absl::StrCat(names[static_cast<int>(quantization)],
                      compute.has_value() ? absl::StrCat("_", ToString(*compute)) : "", scaled ? "_scaled" : "");
}

INSTANTIATE_TEST_SUITE_P(All, Composition,
                         testing::Combine(testing::Values(Quantization::kNone, Quantization::kInt8, Quantization::kFp8,
                                                          Quantization::kFp8Current, Quantization::kFp8Delayed,
                                                          Quantization::kFp8Layers),
                                          testing::Values(std::optional<DType>(), std::optional<DType>(DType::kF16),
                                                          std::optional<DType>(DType::kBF16)),
                                          testing::Bool()),
                         NameOf);

}  // namespace
}  // namespace aqt
