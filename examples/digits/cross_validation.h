#ifndef EXAMPLES_DIGITS_CROSS_VALIDATION_H_
#define EXAMPLES_DIGITS_CROSS_VALIDATION_H_

// The accuracy of a quantized training on held-out rows.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/transforms/quantize/inject.h"
#include "examples/digits/dataset.h"
#include "examples/digits/training.h"

namespace digits {

// The rows of `data` with these numbers.
Dataset Take(const Dataset& data, absl::Span<const int64_t> rows);

struct Fold {
  std::vector<int64_t> train, test;  // numbers of rows
};
// Every row is in the test part of one fold. The order is a function of the seed; sizes differ by at most one.
std::vector<Fold> Folds(int64_t rows, int64_t folds, uint64_t seed);

struct FoldResult {
  double accuracy;                   // of the served model on the fold's test rows
  std::vector<double> epoch_losses;  // mean loss of each epoch
};

// Trains on each fold's train part, freezes, and serves the test part. Two configurations with the same options have
// the same folds, initial parameters and order of the rows. InvalidArgument unless 2 <= folds <= rows; and the errors
// of training.
absl::StatusOr<std::vector<FoldResult>> CrossValidate(const Dataset& data, int64_t folds,
                                                      const TrainingOptions& options, const aqt::InjectConfig& config,
                                                      const std::function<void(const FoldResult&)>& progress = nullptr);

// The mean and the standard deviation (of a sample: divided by n - 1) of the accuracies.
struct Summary {
  double mean, deviation;
};
Summary Summarize(const std::vector<FoldResult>& results);

}  // namespace digits

#endif  // EXAMPLES_DIGITS_CROSS_VALIDATION_H_
