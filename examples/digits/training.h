#ifndef EXAMPLES_DIGITS_TRAINING_H_
#define EXAMPLES_DIGITS_TRAINING_H_

// Trains the classifier with a set of rules. The result is a function of the options, the data and the number of the
// step: a training that stops and resumes has the bits of an uninterrupted one.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/nn/train/trainer.h"
#include "aqt/transforms/quantize/inject.h"
#include "examples/digits/classifier.h"
#include "examples/digits/dataset.h"

namespace digits {

struct TrainingOptions {
  Hidden hidden = {320, 256};
  int64_t epochs = 20;
  int64_t batch = 32;  // rows per step; the rest of an epoch that does not fill a batch is dropped
  double learning_rate = 0.05;
  double momentum = 0.9;
  uint64_t seed = 1;  // of initial parameters, order of the rows, and noise
};

// InvalidArgument, naming the option, if one is not positive (epochs may be 0), or `rows` do not fill a batch.
absl::Status Validate(const TrainingOptions& options, int64_t rows);

// The trainer of the quantized loss, at step 0. Errors: those of Validate, Inject, and TrainStep.
absl::StatusOr<aqt::nn::Trainer> MakeTrainer(const TrainingOptions& options, const aqt::InjectConfig& config,
                                             int64_t rows);

int64_t StepsPerEpoch(const TrainingOptions& options, int64_t rows);
// Numbers of the rows of step 0, 1, ...: each epoch has its own order, a function of (seed, epoch).
std::vector<int64_t> RowsOfStep(const TrainingOptions& options, int64_t rows, int64_t step);
// Their pixels and labels.
aqt::SlotValues BatchOfStep(const Dataset& data, const TrainingOptions& options, int64_t step);

// Runs the trainer from its current step up to step `last`. `progress`, if set, is called after each step with the
// number of steps done and the loss before the last one.
absl::Status TrainTo(aqt::nn::Trainer& trainer, const Dataset& data, const TrainingOptions& options, int64_t last,
                     const std::function<void(int64_t steps, double loss)>& progress = nullptr);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_TRAINING_H_
