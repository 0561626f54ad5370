// A convolutional classifier of handwritten digits: trained with batch norm, which is folded into the convolutions,
// quantized as a textproto says, frozen and served.
//   ./bazelw run //examples/cnn -- --help

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "aqt/aqt.h"
#include "aqt/io/standard_streams.h"
#include "aqt/transforms/quantize/fold_batch_norm.h"
#include "examples/common/parse_flags.h"
#include "examples/common/read_config.h"
#include "examples/digits/classifier.h"
#include "examples/digits/cross_validation.h"
#include "examples/digits/dataset.h"
#include "examples/digits/training.h"
#include "serving/tools/exit_code.h"

namespace {

using aqt::Program;
using aqt::Slot;
using aqt::SlotValues;
using aqt::Value;
namespace nn = aqt::nn;

Value Block(const Value& x, const char* name, int64_t features, int64_t stride, bool train) {
  const aqt::NamedScope scope(name);
  const aqt::ConvDims dims{.window_strides = {stride, stride}, .padding = aqt::ConvPadding::kSame};
  const Value y = nn::Conv(x, "conv", {.features = features, .kernel_size = {3, 3}, .dims = dims, .use_bias = false});
  return aqt::ops::Relu(nn::BatchNorm(y, "norm", {.train = train, .momentum = 0.9}));
}

// The model: pixels [rows, 64] -> logits [rows, 10], written without quantization.
Value Model(const Value& pixels, bool train) {
  Value x = aqt::ops::Reshape(pixels, {-1, 8, 8, 1});
  x = Block(x, "block1", 16, 1, train);
  x = Block(x, "block2", 32, 2, train);
  x = Block(x, "block3", 32, 1, train);
  return nn::Dense(aqt::ops::Mean(x, {1, 2}), "logits", {.features = digits::kClasses});
}

std::vector<Value> LossFn(absl::Span<const Value> in) {
  return {aqt::ops::SoftmaxCrossEntropy(Model(in[0], /*train=*/true), in[1])};
}

// The served model: running statistics, folded into the kernels.
absl::StatusOr<Program> ServedModel(int64_t rows) {
  AQT_ASSIGN_OR_RETURN(const Program model,
                       aqt::Trace([](absl::Span<const Value> in) { return std::vector<Value>{Model(in[0], false)}; },
                                  {{digits::kPixelsSlot, {aqt::DType::kF32, {rows, digits::kPixels}}}},
                                  std::vector<Slot>{digits::kLogitsSlot}));
  return aqt::FoldBatchNorm(model);
}

absl::StatusOr<nn::Trainer> Train(const digits::Dataset& data, const digits::TrainingOptions& options,
                                  const aqt::InjectConfig& config) {
  const std::vector<aqt::Input> inputs = {{digits::kPixelsSlot, {aqt::DType::kF32, {options.batch, digits::kPixels}}},
                                          {digits::kLabelsSlot, {aqt::DType::kF32, {options.batch, digits::kClasses}}}};
  AQT_ASSIGN_OR_RETURN(const Program loss, aqt::Trace(LossFn, inputs, std::vector<Slot>{digits::kLossSlot}));
  AQT_ASSIGN_OR_RETURN(const Program quantized, aqt::Inject(loss, config));
  AQT_ASSIGN_OR_RETURN(const SlotValues params, nn::InitParams(LossFn, inputs, aqt::MakeKey(options.seed)));
  const int64_t steps = options.epochs * digits::StepsPerEpoch(options, data.rows());
  const nn::AdamW optimizer = {
      .learning_rate = nn::CosineSchedule{.init_value = options.learning_rate, .decay_steps = steps},
      .decays = ".*/kernel"};
  AQT_ASSIGN_OR_RETURN(nn::Trainer trainer,
                       nn::Trainer::Make(quantized, optimizer, params, aqt::MakeKey(options.seed + 1)));
  AQT_RETURN_IF_ERROR(digits::TrainTo(trainer, data, options, steps));
  return trainer;
}

// The accuracy of the served model on `test`. Checks that it has the bits of the training's forward pass.
absl::StatusOr<double> Accuracy(const nn::Trainer& trainer, const aqt::InjectConfig& config,
                                const digits::Dataset& test) {
  AQT_ASSIGN_OR_RETURN(const Program model, ServedModel(test.rows()));
  AQT_ASSIGN_OR_RETURN(const aqt::PreparedProgram prepared, nn::Serve({model}, config, trainer.state()));
  const aqt::Array pixels = digits::Pixels(test);
  AQT_ASSIGN_OR_RETURN(const SlotValues out, prepared.Eval({{digits::kPixelsSlot, pixels}}));
  const aqt::Array& logits = out.at(digits::kLogitsSlot);
  AQT_ASSIGN_OR_RETURN(const Program quantized, aqt::Inject(model, config));
  AQT_ASSIGN_OR_RETURN(const aqt::Array trained, digits::Logits(quantized, trainer.state(), pixels));
  if (!BitEqual(logits, trained)) return absl::InternalError("the served logits differ from those of the training");
  return digits::Accuracy(logits, test.labels);
}

absl::Status Run(const std::vector<std::string>& configs, int64_t folds, const digits::TrainingOptions& options) {
  AQT_ASSIGN_OR_RETURN(const digits::Dataset data, digits::ReadDataset("examples/digits/digits.csv"));
  if (folds < 2 || folds > data.rows()) {
    return absl::InvalidArgumentError(absl::StrCat("--folds ", folds, ": expected 2 to ", data.rows()));
  }
  double first_mean = 0;
  for (const std::string& name : configs) {
    AQT_ASSIGN_OR_RETURN(
        const aqt::InjectConfig config,
        examples::ReadConfig(name, "examples/cnn/configs", "float, int8, int4_weights, fp8 and static"));
    std::cout << absl::StrFormat("%-13s", name) << std::flush;
    std::vector<digits::FoldResult> results;
    for (const digits::Fold& fold : digits::Folds(data.rows(), folds, options.seed)) {
      const digits::Dataset train = digits::Take(data, fold.train);
      AQT_RETURN_IF_ERROR(digits::Validate(options, train.rows()));
      AQT_ASSIGN_OR_RETURN(const nn::Trainer trainer, Train(train, options, config));
      AQT_ASSIGN_OR_RETURN(const double accuracy, Accuracy(trainer, config, digits::Take(data, fold.test)));
      results.push_back({accuracy, {}});
      std::cout << absl::StrFormat(" %.4f", accuracy) << std::flush;
    }
    const digits::Summary summary = digits::Summarize(results);
    if (name == configs[0]) first_mean = summary.mean;
    std::cout << absl::StrFormat("  mean %.4f, deviation %.4f, %+.2f points\n", summary.mean, summary.deviation,
                                 100 * (summary.mean - first_mean));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 4;
  digits::TrainingOptions options = {.hidden = {}, .epochs = 12, .learning_rate = 5e-3};
  std::vector<std::string> configs = {"float", "int8", "int4_weights", "fp8", "static"};
  int64_t folds = 5;
  CLI::App app("Trains, folds, quantizes and serves a convolutional classifier of digits.", "cnn");
  app.add_option("--config", configs,
                 "comma-separated configurations (examples/cnn/configs); the first is the reference")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--folds", folds, "number of folds of the 1797 rows, each tested once")->capture_default_str();
  app.add_option("--epochs", options.epochs, "epochs of each training")->capture_default_str();
  app.add_option("--batch", options.batch, "rows per step")->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "initial learning rate of AdamW")->capture_default_str();
  app.add_option("--seed", options.seed, "seed of folds, parameters, order and noise")->capture_default_str();
  if (const std::optional<int> exit = examples::ParseFlags(app, {argv + 1, argv + argc}, std::cout, std::cerr);
      exit.has_value())
    return *exit;
  const absl::Status status = Run(configs, folds, options);
  if (!status.ok()) std::cerr << "error: " << status.message() << "\n";
  return static_cast<int>(aqt::serving::ExitCodeOf(status));
}
