// The public examples of jax-scalify and jaxamp in C++: scaled sums, a simulated 8-bit cast, the search for a loss
// scale, and a training step in f16. README.md explains the output.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/core/array_ops.h"
#include "aqt/precision.h"

namespace precision {
namespace {

using aqt::Array;
using aqt::DType;
using aqt::ScaledValue;
using aqt::Value;
using Values = absl::Span<const Value>;

absl::StatusOr<std::string> Text(const Value& value) {
  AQT_ASSIGN_OR_RETURN(const Array array, value.ToArray());
  const Array numbers = aqt::Cast(array, DType::kF32);
  std::string text;
  for (const float v : numbers.View<float>()) {
    char number[32];
    std::snprintf(number, sizeof(number), "%s%.7g", text.empty() ? "" : " ", v);
    text += number;
  }
  return text;
}

absl::Status Print(const char* name, const ScaledValue& x) {
  AQT_ASSIGN_OR_RETURN(const std::string data, Text(x.data));
  AQT_ASSIGN_OR_RETURN(const std::string scale, Text(x.scale));
  std::printf("  %-16s data [%s]  scale %s\n", name, data.c_str(), scale.c_str());
  return absl::OkStatus();
}

Value F16(std::initializer_list<float> numbers) {
  const std::vector<float> values(numbers);
  return Value(aqt::Cast(Array::FromSpan<float>(values, {static_cast<int64_t>(values.size())}), DType::kF16));
}

// ---- 1. Scaled arrays.

absl::Status ScaledSums() {
  std::printf("scaled sums\n");
  const ScaledValue a = aqt::scaled::AsScaled(F16({1, 2}), Value(Array::Scalar(1.0f)));
  const ScaledValue b = aqt::scaled::AsScaled(F16({3, 6}), Value(Array::Scalar(2.0f)));
  AQT_RETURN_IF_ERROR(Print("b", b));
  AQT_RETURN_IF_ERROR(Print("a + b", aqt::scaled::Add(a, b)));
  AQT_RETURN_IF_ERROR(Print("not rounded", aqt::scaled::Add(a, b, {.rounding = aqt::ScaleRounding::kNone})));
  AQT_RETURN_IF_ERROR(Print("rounded up", aqt::scaled::Add(a, b, {.rounding = aqt::ScaleRounding::kUp})));
  return Print("rescaled", aqt::scaled::DynamicRescaleMax(aqt::scaled::Add(a, b)));
}

// ---- 2. The same as a transform of a function.

absl::Status ScaledFunction() {
  std::printf("a function, scaled\n");
  const aqt::Slot x{aqt::SlotKind::kData, "x"}, y{aqt::SlotKind::kData, "0"};
  AQT_ASSIGN_OR_RETURN(
      const aqt::Program plain,
      aqt::Trace(
          [](Values in) { return std::vector<Value>{aqt::ops::ReducePrecisionOnForward(in[0], DType::kE4M3FN) * 2.0}; },
          {{{x, {DType::kF32, {2}}}}}));
  AQT_ASSIGN_OR_RETURN(const aqt::Program scaled, aqt::Scalify(plain, {.scaled_inputs = {{x, DType::kF32}}}));
  AQT_ASSIGN_OR_RETURN(const aqt::SlotValues out, aqt::EvalSlots(scaled, {{x, Array::Of<float>({17, 19}, {2})},
                                                                          {aqt::ScaleSlot(x), Array::Scalar(1.0f)}}));
  return Print("2 cast([17, 19])", {Value(out.at(y)), Value(out.at(aqt::ScaleSlot(y)))});
}

// ---- 3. The search for a loss scale: the derivative of x^3 in f16.

absl::Status LossScale() {
  std::printf("loss scale\n");
  const aqt::Slot x{aqt::SlotKind::kParam, "x"};
  AQT_ASSIGN_OR_RETURN(const aqt::Program cube,
                       aqt::Trace([](Values in) { return std::vector<Value>{aqt::ops::IntegerPow(in[0], 3)}; },
                                  {{{x, {DType::kF16, {}}}}}));
  const aqt::DynamicScaler scaler{.patience = 10};
  AQT_ASSIGN_OR_RETURN(const aqt::Program step, aqt::DynamicScaleValueAndGrad(cube, {{0}}, scaler));
  aqt::SlotValues values = aqt::InitialScalerState(scaler);
  values.emplace(x, aqt::Cast(Array::Scalar(2.0f), DType::kF16));
  for (int call = 1; call <= 12; ++call) {
    AQT_ASSIGN_OR_RETURN(const aqt::SlotValues out, aqt::EvalWithRedo(step, values, 100));
    for (auto& [slot, array] : values) {
      if (const auto it = out.find(slot); it != out.end()) array = it->second;
    }
    if (call > 1 && call < 11) continue;
    const auto number = [&](aqt::SlotKind kind, const char* path) { return Text(Value(out.at({kind, path}))); };
    AQT_ASSIGN_OR_RETURN(const std::string value, number(aqt::SlotKind::kData, "0"));
    AQT_ASSIGN_OR_RETURN(const std::string gradient, number(aqt::SlotKind::kData, "grad(x)"));
    AQT_ASSIGN_OR_RETURN(const std::string scale, number(aqt::SlotKind::kStat, "dynamic_scaler/scaler"));
    AQT_ASSIGN_OR_RETURN(const std::string resets, number(aqt::SlotKind::kStat, "dynamic_scaler/total_resets"));
    std::printf("  call %-2d  value %s  gradient %s  scaler %s  resets %s\n", call, value.c_str(), gradient.c_str(),
                scale.c_str(), resets.c_str());
  }
  return absl::OkStatus();
}

// ---- 4. A training loop in mixed precision. The model is written without it.

std::vector<Value> Model(Values in) {
  const Value h = aqt::ops::Relu(aqt::nn::Dense(in[0], "hidden", {.features = 8}));
  return {aqt::ops::SoftmaxCrossEntropy(aqt::nn::Dense(h, "logits", {.features = 2}), in[1])};
}

absl::Status MixedPrecision() {
  std::printf("mixed precision\n");
  const std::vector<aqt::Input> inputs = {{{aqt::SlotKind::kData, "x"}, {DType::kF32, {4, 2}}},
                                          {{aqt::SlotKind::kData, "labels"}, {DType::kF32, {4, 2}}}};
  AQT_ASSIGN_OR_RETURN(const aqt::Program loss, aqt::Trace(Model, inputs));
  AQT_ASSIGN_OR_RETURN(const aqt::AmpOptions options, aqt::AmpOptionsFromText(R"(
      schema: 1
      compute_dtype: AMP_DTYPE_F16
      rules { key: "logits"  precision: AMP_PRECISION_ORIGINAL })"));
  aqt::AmpReport report;
  AQT_ASSIGN_OR_RETURN(const aqt::Program fast, aqt::Amp(loss, options, &report));
  std::printf("%s", report.ToString().c_str());
  AQT_ASSIGN_OR_RETURN(const aqt::SlotValues params, aqt::nn::InitParams(Model, inputs, aqt::MakeKey(0)));
  AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer,
                       aqt::nn::Trainer::Make(fast, aqt::nn::Sgd{.learning_rate = 0.3}, params, aqt::MakeKey(1),
                                              {.step = {.scaler = aqt::DynamicScaler{}}, .redo_on_nan = 10}));
  const aqt::SlotValues batch = {{inputs[0].slot, Array::Of<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2})},
                                 {inputs[1].slot, Array::Of<float>({1, 0, 0, 1, 0, 1, 1, 0}, {4, 2})}};
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    AQT_ASSIGN_OR_RETURN(const aqt::SlotValues out, trainer.Step(batch));
    last = out.at({aqt::SlotKind::kData, "0"}).View<float>()[0];
    if (step == 0) first = last;
  }
  std::printf("  the loss of xor falls from %.1f to %.1f\n", first, last);
  return absl::OkStatus();
}

absl::Status Run() {
  AQT_RETURN_IF_ERROR(ScaledSums());
  AQT_RETURN_IF_ERROR(ScaledFunction());
  AQT_RETURN_IF_ERROR(LossScale());
  return MixedPrecision();
}

}  // namespace
}  // namespace precision

int main() {
  const absl::Status status = precision::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
