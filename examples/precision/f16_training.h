#ifndef EXAMPLES_PRECISION_F16_TRAINING_H_
#define EXAMPLES_PRECISION_F16_TRAINING_H_

// One training in four ways. The loss is so large that its gradients do not fit f16: in f16 the parameters become NaN,
// while with a loss scale or with scaled arithmetic the training proceeds as in f32.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/digits/dataset.h"

namespace precision {

struct F16TrainingOptions {
  int64_t rows = 256;  // of the data; each step uses all of them
  int64_t hidden = 32;
  int steps = 200;
  double learning_rate = 0.5;
  double loss_factor = 1e7;  // the loss is the mean cross entropy times this, and the rate is divided by it
};

struct Curve {
  std::string name;
  std::vector<double> loss;  // mean cross entropy before each step
};

// "f32"; "f16": Amp; "f16, loss scale": the same with a DynamicScaler; "f16, scalify": all data in f16.
absl::StatusOr<std::vector<Curve>> TrainInF16(const digits::Dataset& data, const F16TrainingOptions& options);

// The four curves as a picture.
std::string F16TrainingSvg(const std::vector<Curve>& curves);

}  // namespace precision

#endif  // EXAMPLES_PRECISION_F16_TRAINING_H_
