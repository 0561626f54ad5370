#include "examples/digits/training.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/nn/train/batch_order.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/transforms/quantize/inject_proto.h"

namespace digits {
namespace {

// Numbers of independent keys derived from the seed.
enum : uint32_t { kOrderKey, kNoiseKey };

// Settings that affect the steps but are not in the state: a training must resume with the same.
std::map<std::string, std::string> Settings(const TrainingOptions& options, const aqt::InjectConfig& config) {
  return {{"rules", aqt::ToText(config)},
          {"batch", absl::StrCat(options.batch)},
          {"learning rate", absl::StrFormat("%.17g", options.learning_rate)},
          {"momentum", absl::StrFormat("%.17g", options.momentum)},
          {"seed", absl::StrCat(options.seed)}};
}

}  // namespace

absl::Status Validate(const TrainingOptions& options, int64_t rows) {
  const auto positive = [](const char* name, auto value) {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " = ", value, ", expected a positive number"));
  };
  for (const int64_t width : options.hidden) AQT_RETURN_IF_ERROR(positive("width of a hidden layer", width));
  AQT_RETURN_IF_ERROR(positive("batch", options.batch));
  AQT_RETURN_IF_ERROR(positive("learning rate", options.learning_rate));
  if (options.epochs < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("epochs = ", options.epochs, ", expected a number that is not negative"));
  }
  if (options.batch > rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch = ", options.batch, ", expected at most the ", rows, " rows that train"));
  }
  return absl::OkStatus();
}

absl::StatusOr<aqt::nn::Trainer> MakeTrainer(const TrainingOptions& options, const aqt::InjectConfig& config,
                                             int64_t rows) {
  AQT_RETURN_IF_ERROR(Validate(options, rows));
  AQT_ASSIGN_OR_RETURN(const aqt::Program loss, LossProgram(options.hidden, options.batch));
  AQT_ASSIGN_OR_RETURN(const aqt::Program quantized, aqt::Inject(loss, config));
  AQT_ASSIGN_OR_RETURN(const aqt::SlotValues params, InitialParams(options.hidden, options.seed));
  return aqt::nn::Trainer::Make(
      quantized, aqt::nn::Sgd{.learning_rate = options.learning_rate, .momentum = options.momentum}, params,
      aqt::FoldIn(aqt::MakeKey(options.seed), kNoiseKey), {.settings = Settings(options, config)});
}

int64_t StepsPerEpoch(const TrainingOptions& options, int64_t rows) { return rows / options.batch; }

std::vector<int64_t> RowsOfStep(const TrainingOptions& options, int64_t rows, int64_t step) {
  const aqt::Key key = aqt::FoldIn(aqt::MakeKey(options.seed), kOrderKey);
  return aqt::nn::RowsOfStep(key, rows, options.batch, step);
}

aqt::SlotValues BatchOfStep(const Dataset& data, const TrainingOptions& options, int64_t step) {
  const std::vector<int64_t> rows = RowsOfStep(options, data.rows(), step);
  return {{kPixelsSlot, Pixels(data, rows)}, {kLabelsSlot, OneHotLabels(data, rows)}};
}

absl::Status TrainTo(aqt::nn::Trainer& trainer, const Dataset& data, const TrainingOptions& options, int64_t last,
                     const std::function<void(int64_t steps, double loss)>& progress) {
  while (trainer.steps() < last) {
    AQT_ASSIGN_OR_RETURN(const aqt::SlotValues outputs, trainer.Step(BatchOfStep(data, options, trainer.steps())));
    if (progress) progress(trainer.steps(), outputs.at(kLossSlot).View<float>()[0]);
  }
  return absl::OkStatus();
}

}  // namespace digits
