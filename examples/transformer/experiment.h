#ifndef EXAMPLES_TRANSFORMER_EXPERIMENT_H_
#define EXAMPLES_TRANSFORMER_EXPERIMENT_H_

// Trains the language model as rules say, freezes it, and serves it. Everything is a function of the options and the
// number of the step: a training that stops and resumes has the bits of one that did not.

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
  int64_t text_bytes = 400'000;  // of which the last tenth is held out
  int64_t steps = 1000, batch = 16;
  double learning_rate = 2e-3;  // at its peak, after a tenth of the steps; a cosine from there to a tenth of it
  uint64_t seed = 1;            // of text, initial parameters, order of the batches, and noise
  // The precision in which the model computes, trained and served; null: f32. Parameters are f32.
  std::optional<aqt::AmpOptions> amp = std::nullopt;
};

// InvalidArgument, naming the option, when one is out of range.
absl::Status Validate(const ExperimentOptions& options);

struct Text {
  std::string train, held_out;
};
Text MakeText(const ExperimentOptions& options);

// The entropy of a byte of `text` for somebody who knows the byte before it, in nat.
double BigramEntropy(absl::string_view text);

// The trainer of the quantized loss, at step 0; AdamW with a warm-up. Errors: those of Validate and Inject.
absl::StatusOr<aqt::nn::Trainer> MakeTrainer(const ExperimentOptions& options, const aqt::InjectConfig& config);
// Windows of the text at random places, with the bytes that follow.
aqt::SlotValues BatchOfStep(absl::string_view text, const ExperimentOptions& options, int64_t step);
extern const aqt::Slot kLoss;  // what Trainer::Step returns: nat per byte, before the step

// What serving needs, from the state of a training: see aqt::Freeze.
absl::StatusOr<aqt::SlotValues> FreezeModel(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                            const aqt::SlotValues& state);

// A frozen model, ready to run.
class Served {
 public:
  static absl::StatusOr<Served> Make(const ExperimentOptions& options, const aqt::InjectConfig& config,
                                     const aqt::SlotValues& frozen);
  // The mean loss over the whole windows of `text`, in nat per byte. InvalidArgument for a text without one.
  absl::StatusOr<double> Loss(absl::string_view text) const;
  // Logits for bytes s32 [rows, length], rows = 1 or the batch of the options.
  absl::StatusOr<aqt::Array> Logits(const aqt::Array& bytes) const;
  // `bytes` more bytes after `prompt`, of which the last ones are the context. Temperature 0 takes the likeliest byte.
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
