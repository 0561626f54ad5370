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

namespace aqt {
namespace {

constexpr int64_t kRows = 32, kIn = 8, kHidden = 16, kClasses = 3;
const Slot kX{SlotKind::kData, "x"}, kT{SlotKind::kData, "t"};

Slot Param(const char* name) { return {SlotKind::kParam, name}; }

// Of layers in 8-bit floats, or a plain one that a rule may quantize.
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

// Three clouds of points, and parameters to start with.
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

// What a rule injects.
DotGeneral Recipe(Quantization quantization) {
  switch (quantization) {
    case Quantization::kInt8: return *FullyQuantized({.use_stochastic_rounding = false});
    case Quantization::kFp8: return DotGeneralMake(Bits::E4M3(), Bits::E4M3());
    case Quantization::kFp8Current: return *DotGeneralFromPreset("fp8_current");
    case Quantization::kFp8Delayed: return *DotGeneralFromPreset("fp8_delayed");
    default: return {};
  }
}

class Composition : public testing::TestWithParam<std::tuple<Quantization, std::optional<DType>, bool>> {};

TEST_P(Composition, Trains) {
  const auto [quantization, compute, scaled] = GetParam();
  Pipeline pipeline;
  if (compute.has_value()) {
    AmpOptions amp{.compute_dtype = *compute};
    // The integer sums of a quantized contraction do not fit f16 (docs/precision.md).
    if (quantization != Quantization::kNone) amp.policy["dot_general"] = UsePrecision(DType::kBF16);
    pipeline.Add(StageKind::kAmp, "amp", [amp](const Program& p) { return Amp(p, amp); });
  }
  const bool has_layers = quantization == Quantization::kFp8Layers;
  if (quantization != Quantization::kNone && !has_layers) {
    InjectConfig config;
    config.rules.push_back({.dot_general = Recipe(quantization)});
    pipeline.Add(StageKind::kInject, "inject", [config](const Program& p) { return Inject(p, config); });
  }
  SlotValues values = Data();
  for (auto& [slot, array] : InitialScalerState({.scaler = 1024})) values.emplace(slot, array);
  const Program classifier = Classifier(has_layers);
  const std::vector<int> params = classifier.InputsOfKind(SlotKind::kParam);
  pipeline.Add(StageKind::kGrad, "grad",
               [&](const Program& p) { return DynamicScaleValueAndGrad(p, params, {.scaler = 1024}); });
  ScalifyOptions options{.rules = {.scale_dtype = DType::kF32}};
  if (scaled) {
    for (const char* name : {"w1", "b1", "w2"}) {
      options.scaled_inputs[Param(name)] = DType::kF32;
      values.emplace(ScaleSlot(Param(name)), Array::Scalar(1.0f));
    }
    options.scaled_inputs[kX] = DType::kF32;
    values.emplace(ScaleSlot(kX), Array::Scalar(1.0f));
    pipeline.Add(StageKind::kScalify, "scalify", [&](const Program& p) { return Scalify(p, options); });
  }
  const absl::StatusOr<Program> step = pipeline.Run(classifier);
  ASSERT_TRUE(step.ok()) << step.status();
  nn::AddMissingStats(*step, values);
  const Executable executable = *Executable::Make(*step);

  const auto value = [](const SlotValues& out, const Slot& slot) {
    const auto scale = out.find(ScaleSlot(slot));
    const Value data(out.at(slot));
    return scale == out.end() ? ops::Cast(data, DType::kF32)
                              : scaled::ToArray({data, Value(scale->second)}, DType::kF32);
  };
  const Slot loss{SlotKind::kData, "0"};
  float first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    const absl::StatusOr<SlotValues> out = executable.RunSlots(values);
    ASSERT_TRUE(out.ok()) << out.status();
    last = (*value(*out, loss).ToArray()).View<float>()[0];
    if (i == 0) first = last;
    for (const char* name : {"w1", "b1", "w2"}) {
      const Value gradient = value(*out, {SlotKind::kData, absl::StrCat("grad(", name, ")")});
      Array& param = values.at(Param(name));
      param = *(Value(param) - gradient * 0.3).ToArray();
    }
    for (const auto& [slot, array] : *out) {
      if (slot.kind == SlotKind::kStat && values.contains(slot)) values.at(slot) = array;
    }
  }
  EXPECT_GT(first, 0.5f);
  EXPECT_LT(last, 0.25f * first);
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
