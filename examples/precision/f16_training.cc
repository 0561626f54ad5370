#include "examples/precision/f16_training.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/precision.h"
#include "examples/digits/classifier.h"
#include "examples/digits/line_chart.h"

namespace precision {
namespace {

using aqt::Array;
using aqt::DType;
using aqt::Slot;
using aqt::SlotKind;
using aqt::SlotValues;
using aqt::Value;
using Values = absl::Span<const Value>;

const Slot kX{SlotKind::kData, "x"}, kLabels{SlotKind::kData, "labels"}, kLoss{SlotKind::kData, "loss"};
// The factor of the loss and the learning rate: numbers that f16 represents only with a scale.
const Slot kFactor{SlotKind::kData, "factor"}, kRate{SlotKind::kData, "rate"};

Value Model(const Value& x, const Value& labels, int64_t hidden) {
  const Value h = aqt::ops::Relu(aqt::nn::Dense(x, "hidden", {.features = hidden}));
  return aqt::ops::SoftmaxCrossEntropy(aqt::nn::Dense(h, "logits", {.features = digits::kClasses}), labels);
}

class Training {
 public:
  Training(const digits::Dataset& data, const F16TrainingOptions& options) : options_(options) {
    std::vector<int64_t> rows(options.rows);
    std::iota(rows.begin(), rows.end(), 0);
    batch_ = {{kX, digits::Pixels(data, rows)},
              {kLabels, digits::OneHotLabels(data, rows)},
              {kFactor, Array::Scalar(static_cast<float>(options.loss_factor))}};
  }

  absl::StatusOr<SlotValues> InitialParams() const {
    return aqt::nn::InitParams([&](Values in) { return Outputs(in); }, Inputs(DType::kF32), aqt::MakeKey(0));
  }

  // With the Trainer: in f32, or in f16 through Amp.
  absl::StatusOr<Curve> WithTrainer(std::string name, bool in_f16, const aqt::nn::TrainOptions& how) const {
    AQT_ASSIGN_OR_RETURN(aqt::Program loss, LossProgram(DType::kF32));
    if (in_f16) {
      AQT_ASSIGN_OR_RETURN(loss, aqt::Amp(loss, {.compute_dtype = DType::kF16}));
    }
    AQT_ASSIGN_OR_RETURN(const SlotValues params, InitialParams());
    AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer,
                         aqt::nn::Trainer::Make(loss, aqt::nn::Sgd{.learning_rate = Rate(), .momentum = 0}, params,
                                                aqt::MakeKey(1), how));
    Curve curve{.name = std::move(name), .loss = {}};
    for (int step = 0; step < options_.steps; ++step) {
      AQT_ASSIGN_OR_RETURN(const SlotValues out, trainer.Step(batch_));
      Add(out.at(kLoss).View<float>()[0], curve);
    }
    return curve;
  }

  // The whole step in scaled arithmetic: parameters, data and gradients are f16, with scales in f32.
  absl::StatusOr<Curve> WithScalify(std::string name) const {
    AQT_ASSIGN_OR_RETURN(const aqt::Program loss, LossProgram(DType::kF16));
    AQT_ASSIGN_OR_RETURN(const aqt::Program step, StepProgram(loss));
    aqt::ScalifyOptions scalify{.rules = {.scale_dtype = DType::kF32}};
    for (const aqt::Program::Port& port : step.inputs) scalify.scaled_inputs[port.slot] = DType::kF32;
    AQT_ASSIGN_OR_RETURN(const aqt::Program scaled, aqt::Scalify(step, scalify));
    AQT_ASSIGN_OR_RETURN(const aqt::Executable executable, aqt::Executable::Make(scaled));
    AQT_ASSIGN_OR_RETURN(SlotValues plain, InitialParams());
    plain.insert(batch_.begin(), batch_.end());
    plain.emplace(kRate, Array::Scalar(static_cast<float>(Rate())));
    SlotValues values;
    for (const auto& [slot, array] : plain) {
      // Arrays get the scale 1, numbers the power of two at or below them.
      const aqt::ScaledValue value = aqt::scaled::AsScaled(Value(array));
      AQT_ASSIGN_OR_RETURN(const Array numbers, aqt::ops::Cast(value.data, DType::kF16).ToArray());
      values.emplace(slot, numbers);
      AQT_ASSIGN_OR_RETURN(const Array scale, value.scale.ToArray());
      values.emplace(aqt::ScaleSlot(slot), scale);
    }
    Curve curve{.name = std::move(name), .loss = {}};
    for (int i = 0; i < options_.steps; ++i) {
      AQT_ASSIGN_OR_RETURN(const SlotValues out, executable.RunSlots(values));
      const aqt::ScaledValue value{Value(out.at(kLoss)), Value(out.at(aqt::ScaleSlot(kLoss)))};
      AQT_ASSIGN_OR_RETURN(const Array number, aqt::scaled::ToArray(value, DType::kF32).ToArray());
      Add(number.View<float>()[0], curve);
      for (auto& [slot, array] : values) {
        if (const auto it = out.find(slot); it != out.end()) array = it->second;
      }
    }
    return curve;
  }

 private:
  std::vector<aqt::Input> Inputs(DType dtype) const {
    std::vector<aqt::Input> inputs;
    for (const Slot& slot : {kX, kLabels, kFactor}) inputs.push_back({slot, {dtype, batch_.at(slot).shape()}});
    return inputs;
  }
  std::vector<Value> Outputs(Values in) const { return {Model(in[0], in[1], options_.hidden) * in[2]}; }
  absl::StatusOr<aqt::Program> LossProgram(DType dtype) const {
    return aqt::Trace([&](Values in) { return Outputs(in); }, Inputs(dtype), {kLoss});
  }
  // p - rate * gradient for each parameter p.
  static absl::StatusOr<aqt::Program> StepProgram(const aqt::Program& loss) {
    const std::vector<int> params = loss.InputsOfKind(SlotKind::kParam);
    AQT_ASSIGN_OR_RETURN(const aqt::Program gradients, aqt::ValueAndGrad(loss, params));
    return aqt::Trace(
        [&](Values in) {
          const std::vector<Value> out = aqt::Inline(gradients, in);
          const Value rate = aqt::InputSlot(kRate, {in[0].dtype(), {}});
          for (size_t i = 0; i < params.size(); ++i) {
            aqt::WriteSlot(gradients.inputs[params[i]].slot, in[params[i]] - rate * out[1 + i]);
          }
          return std::vector<Value>{out[0]};
        },
        aqt::InputsOf(gradients), {kLoss});
  }
  double Rate() const { return options_.learning_rate / options_.loss_factor; }
  void Add(double loss, Curve& curve) const { curve.loss.push_back(loss / options_.loss_factor); }

  const F16TrainingOptions options_;
  SlotValues batch_;
};

}  // namespace

absl::StatusOr<std::vector<Curve>> TrainInF16(const digits::Dataset& data, const F16TrainingOptions& options) {
  const Training training(data, options);
  std::vector<Curve> curves(4);
  AQT_ASSIGN_OR_RETURN(curves[0], training.WithTrainer("f32", false, {}));
  AQT_ASSIGN_OR_RETURN(curves[1], training.WithTrainer("f16", true, {}));
  // The first step finds a scale that is small enough.
  AQT_ASSIGN_OR_RETURN(curves[2], training.WithTrainer("f16, loss scale", true,
                                                       {.step = {.scaler = aqt::DynamicScaler{}}, .redo_on_nan = 40}));
  AQT_ASSIGN_OR_RETURN(curves[3], training.WithScalify("f16, scalify"));
  return curves;
}

std::string F16TrainingSvg(const std::vector<Curve>& curves) {
  digits::LineChart chart{.title = "A training whose gradients do not fit f16",
                          .x_label = "step",
                          .y_label = "mean cross entropy",
                          .log_y = true};
  for (const Curve& curve : curves) {
    digits::LineChart::Series series{.name = curve.name, .points = {}};
    for (size_t step = 0; step < curve.loss.size(); ++step) {
      if (std::isfinite(curve.loss[step])) {
        series.points.emplace_back(static_cast<double>(step), curve.loss[step]);
      } else {
        series.name = absl::StrCat(curve.name, ": NaN from step ", step);
        break;
      }
    }
    chart.series.push_back(std::move(series));
  }
  return digits::ToSvg(chart);
}

}  // namespace precision
