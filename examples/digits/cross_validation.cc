#include "examples/digits/cross_validation.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/nn/train/trainer.h"
#include "examples/digits/served_model.h"

namespace digits {

Dataset Take(const Dataset& data, absl::Span<const int64_t> rows) {
  Dataset taken;
  for (const int64_t row : rows) {
    taken.pixels.insert(taken.pixels.end(), data.row(row).begin(), data.row(row).end());
    taken.labels.push_back(data.labels[row]);
  }
  return taken;
}

std::vector<Fold> Folds(int64_t rows, int64_t folds, uint64_t seed) {
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  const aqt::RandomBits bits(aqt::MakeKey(seed), rows);
  for (int64_t i = rows - 1; i > 0; --i) std::swap(order[i], order[bits.Bits32(i) % (i + 1)]);
  std::vector<Fold> result(folds);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t f = 0; f < folds; ++f) (i % folds == f ? result[f].test : result[f].train).push_back(order[i]);
  }
  return result;
}

absl::StatusOr<std::vector<FoldResult>> CrossValidate(const Dataset& data, int64_t folds,
                                                      const TrainingOptions& options, const aqt::InjectConfig& config,
                                                      const std::function<void(const FoldResult&)>& progress) {
  if (folds < 2 || folds > data.rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("folds = ", folds, ", expected 2 to ", data.rows(), ", the number of rows"));
  }
  std::vector<FoldResult> results;
  for (const Fold& fold : Folds(data.rows(), folds, options.seed)) {
    const Dataset train = Take(data, fold.train), test = Take(data, fold.test);
    AQT_ASSIGN_OR_RETURN(aqt::nn::Trainer trainer, MakeTrainer(options, config, train.rows()));
    const int64_t steps = StepsPerEpoch(options, train.rows());
    FoldResult result{0, std::vector<double>(options.epochs)};
    AQT_RETURN_IF_ERROR(TrainTo(trainer, train, options, options.epochs * steps, [&](int64_t done, double loss) {
      result.epoch_losses[(done - 1) / steps] += loss / static_cast<double>(steps);
    }));
    AQT_ASSIGN_OR_RETURN(const ServedModel served, Freeze(options.hidden, config, trainer.params()));
    AQT_ASSIGN_OR_RETURN(const aqt::Array logits, Serve(served, Pixels(test)));
    result.accuracy = Accuracy(logits, test.labels);
    if (progress) progress(result);
    results.push_back(std::move(result));
  }
  return results;
}

Summary Summarize(const std::vector<FoldResult>& results) {
  const auto count = static_cast<double>(results.size());
  Summary summary{0, 0};
  for (const FoldResult& result : results) summary.mean += result.accuracy / count;
  for (const FoldResult& result : results) summary.deviation += std::pow(result.accuracy - summary.mean, 2);
  summary.deviation = results.size() > 1 ? std::sqrt(summary.deviation / (count - 1)) : 0;
  return summary;
}

}  // namespace digits
