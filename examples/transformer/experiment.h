#ifndef EXAMPLES_TRANSFORMER_EXPERIMENT_H_
#define EXAMPLES_TRANSFORMER_EXPERIMENT_H_

// Trains the language model with a set of rules, freezes it, and serves it. The result is a function of the options and
// the number of the step: a training that stops and resumes has the bits of an uninterrupted one.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/quantize/inject.h"
#include "examples/transformer/model.h"

namespace transformer {

struct ExperimentOptions {
  ModelOptions model = {};
  int64_t text_bytes = 400'000;  // the last tenth is held out
  int64_t steps = 1000, batch = 16;
  double learning_rate = 2e-3;  // the peak, after a tenth of the steps; then a cosine down to a tenth of it
  uint64_t seed = 1;            // of text, initial parameters, order of the batches, and noise
  // The precision in which the model computes, trained and served; null: f32. Parameters are f32.
  std::optional<aqt::AmpOptions> amp = std::nullopt;
};

// InvalidArgument, naming the option, if one is out of range.
absl::Status Validate(const ExperimentOptions& options);

struct Text {
  std::string train, held_out;
};
Text MakeText(const ExperimentOptions& options);

// The entropy of a byte of `text` given the previous byte, in nat.
double BigramEntropy(absl::string_view text);

// The trainer of the quantized loss, at step 0; AdamW with a warm-up. Errors: those of Validate and Inject.
absl::StatusOr<aqt::nn::Trainer> MakeTrainer(const ExperimentOptions& options, const aqt::InjectConfig& config);
// Windows of the text at random places, with the bytes that follow.
aqt::SlotValues BatchOfStep(absl::string_view text, const ExperimentOptions& options, int64_t step);
extern const aqt::Slot kLoss;  // an output of Trainer::Step: nat per byte, before the step

// The values for serving, from the state of a training: see aqt::Freeze.
absl::StatusOr<aqt::SlotValues> FreezeModel(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                            const aqt::SlotValues& state);

// A frozen model, ready to run.
class Served {
 public:
  static absl::StatusOr<Served> Make(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                     const aqt::SlotValues& frozen);
  // The mean loss over the complete windows of `text`, in nat per byte. InvalidArgument for a text without one.
  absl::StatusOr<double> Loss(absl::string_view text) const;
  // Logits for bytes s32 [rows, length], rows = 1 or the batch of the options.
  absl::StatusOr<aqt::Array> Logits(const aqt::Array& bytes) const;
  // `bytes` more bytes after `prompt`, whose last bytes are the context. Temperature 0 takes the likeliest byte.
  absl::StatusOr<std::string> Sample(std::string prompt, int64_t bytes, double temperature, uint64_t seed) const;

 private:
  Served(const ExperimentOptions& options, aqt::PreparedProgram program)
      : options_(options), program_(std::move(program)) {}
  ExperimentOptions options_;
  aqt::PreparedProgram program_;
};

// The logits of the training's forward pass, for comparison with Served::Logits.
absl::StatusOr<aqt::Array> TrainedLogits(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                         const aqt::SlotValues& state, const aqt::Array& bytes);

}  // namespace transformer

#endif  // EXAMPLES_TRANSFORMER_EXPERIMENT_H_
