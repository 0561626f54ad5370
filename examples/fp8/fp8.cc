// The FP8 tutorial in C++: casts and scales of 8-bit floats, delayed scaling step by step, and one model trained with
// four recipes. README.md explains the output.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/core/array_ops.h"
#include "aqt/precision.h"

namespace fp8 {
namespace {

using aqt::Array;
using aqt::DType;
using aqt::Value;
using Values = absl::Span<const Value>;

constexpr DType kE4M3 = DType::kE4M3FN;
constexpr double kMax = 448;  // the largest number of e4m3fn

absl::StatusOr<std::string> Text(const Value& value, const char* format = "%.4g") {
  AQT_ASSIGN_OR_RETURN(const Array array, value.ToArray());
  const Array numbers = aqt::Cast(array, DType::kF32);
  std::string text;
  for (const float v : numbers.View<float>()) {
    char number[32];
    std::snprintf(number, sizeof(number), format, v);
    text += (text.empty() ? "" : " ") + std::string(number);
  }
  return text;
}

absl::Status Print(const char* name, const Value& value) {
  AQT_ASSIGN_OR_RETURN(const std::string text, Text(value));
  std::printf("  %-16s %s\n", name, text.c_str());
  return absl::OkStatus();
}

Value F16(const std::vector<float>& numbers, const aqt::Shape& shape) {
  return Value(aqt::Cast(Array::FromSpan<float>(numbers, shape), DType::kF16));
}

// ---- 1. Numbers lose bits.

absl::Status Casts() {
  std::printf("casts\n");
  const Value x = F16({1.2345678f, 2.3456789f, 3.4567891f}, {3});
  AQT_RETURN_IF_ERROR(Print("f16", x));
  return Print("e4m3", aqt::ops::Cast(x, kE4M3));
}

// ---- 2. One scale for a tensor, measured now; and a delayed one for the product, which is not known yet.

struct Scaled {
  Value codes, scale;
};
Scaled CurrentScaling(const Value& x) {
  const Value scale = aqt::ops::ReduceMax(aqt::ops::Abs(x)) / kMax;
  return {aqt::ops::Cast(x / scale, kE4M3), scale};
}
Value Dequantized(const Scaled& x) { return aqt::ops::Cast(x.codes, DType::kF16) * x.scale; }

absl::Status CurrentAndDelayed() {
  std::printf("a product\n");
  const Value a = F16({0.3f, -1.7f, 2.4f, 0.9f}, {2, 2}), b = F16({1.1f, 0.2f, -0.6f, 1.9f}, {2, 2});
  const Scaled a8 = CurrentScaling(a), b8 = CurrentScaling(b);
  AQT_RETURN_IF_ERROR(Print("a", a));
  AQT_RETURN_IF_ERROR(Print("scale of a", a8.scale));
  AQT_RETURN_IF_ERROR(Print("codes of a", a8.codes));
  AQT_RETURN_IF_ERROR(Print("a again", Dequantized(a8)));
  const Value c = aqt::ops::MatMul(Dequantized(a8), Dequantized(b8));
  AQT_RETURN_IF_ERROR(Print("a b", c));
  Value c_scale = aqt::ops::Cast(Value(Array::Scalar(1.0f)), DType::kF16);
  for (const char* step : {"codes, step 1", "codes, step 2"}) {
    AQT_RETURN_IF_ERROR(Print(step, aqt::ops::Cast(aqt::ops::Clamp(-kMax, c / c_scale, kMax), kE4M3)));
    c_scale = aqt::ops::ReduceMax(aqt::ops::Abs(c)) / kMax;
  }
  return absl::OkStatus();
}

// ---- 3. The layers' scales: powers of two from the largest magnitudes of the last steps.

absl::Status History() {
  std::printf("a history of four\n");
  aqt::Fp8TensorState state{Value(Array::Of<float>({1}, {1})), Value(Array::Zeros(DType::kF32, {4}))};
  for (const float magnitude : {1.0f, 5.0f, 2.0f, 3.0f, 0.5f, 0.25f, 9.0f}) {
    state = aqt::ops::Fp8Update(Value(Array::Of<float>({magnitude, -magnitude / 2}, {2})), state);
    AQT_ASSIGN_OR_RETURN(const std::string scale, Text(Value(Array::Scalar(1.0f)) / state.scale));
    AQT_ASSIGN_OR_RETURN(const std::string history, Text(state.amax_history));
    std::printf("  amax %-5g scale 1/%-4s history %s\n", magnitude, scale.c_str(), history.c_str());
  }
  return absl::OkStatus();
}

// ---- 4. Training. The first model has the layers; the second is written without FP8, and a rule adds the recipe.

std::vector<Value> Fp8Model(Values in) {
  const Value h = aqt::nn::Fp8Dense(in[0], "hidden",
                                    {.features = {8}, .activation = [](const Value& y) { return aqt::ops::Relu(y); }});
  return {aqt::ops::SoftmaxCrossEntropy(aqt::nn::Fp8Dense(h, "logits", {.features = {2}}), in[1])};
}
std::vector<Value> Model(Values in) {
  const Value h = aqt::ops::Relu(aqt::nn::Dense(in[0], "hidden", {.features = 8}));
  return {aqt::ops::SoftmaxCrossEntropy(aqt::nn::Dense(h, "logits", {.features = 2}), in[1])};
}

absl::Status Train(const char* name, std::vector<Value> (*model)(Values), const std::string& preset) {
  const std::vector<aqt::Input> inputs = {{{aqt::SlotKind::kData, "x"}, {DType::kF32, {4, 2}}},
                                          {{aqt::SlotKind::kData, "labels"}, {DType::kF32, {4, 2}}}};
  AQT_ASSIGN_OR_RETURN(aqt::Program loss, aqt::Trace(model, inputs));
  if (!preset.empty()) {
    AQT_ASSIGN_OR_RETURN(const aqt::InjectConfig config,
                         aqt::InjectConfigFromText("schema: 1 rules { dot_general { base: '" + preset + "' } }"));
    AQT_ASSIGN_OR_RETURN(loss, aqt::Inject(loss, config));
  }
  AQT_ASSIGN_OR_RETURN(const aqt::SlotValues params, aqt::nn::InitParams(model, inputs, aqt::MakeKey(0)));
  AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer,
                       aqt::nn::Trainer::Make(loss, aqt::nn::Sgd{.learning_rate = 0.3}, params, aqt::MakeKey(1)));
  const aqt::SlotValues batch = {{inputs[0].slot, Array::Of<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2})},
                                 {inputs[1].slot, Array::Of<float>({1, 0, 0, 1, 0, 1, 1, 0}, {4, 2})}};
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    AQT_ASSIGN_OR_RETURN(const aqt::SlotValues out, trainer.Step(batch));
    last = out.at({aqt::SlotKind::kData, "0"}).View<float>()[0];
    if (step == 0) first = last;
  }
  std::printf("  %-26s the loss of xor falls from %.1f to %.1f\n", name, first, last);
  if (!preset.empty() || model == Model) return absl::OkStatus();
  for (const char* statistic : {"hidden/input_scale", "hidden/kernel_scale", "hidden/output_grad_scale"}) {
    const Array& scale = trainer.state().at({aqt::SlotKind::kStat, statistic});
    AQT_ASSIGN_OR_RETURN(const std::string text, Text(Value(Array::Scalar(1.0f)) / Value(scale), "%.0f"));
    std::printf("    %-24s 1/%s\n", statistic, text.c_str());
  }
  return absl::OkStatus();
}

absl::Status Training() {
  std::printf("training\n");
  AQT_RETURN_IF_ERROR(Train("f32", Model, ""));
  AQT_RETURN_IF_ERROR(Train("layers, delayed", Fp8Model, ""));
  AQT_RETURN_IF_ERROR(Train("preset fp8_delayed", Model, "fp8_delayed"));
  return Train("preset fp8_hybrid", Model, "fp8_hybrid");
}

absl::Status Run() {
  AQT_RETURN_IF_ERROR(Casts());
  AQT_RETURN_IF_ERROR(CurrentAndDelayed());
  AQT_RETURN_IF_ERROR(History());
  return Training();
}

}  // namespace
}  // namespace fp8

int main() {
  const absl::Status status = fp8::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
