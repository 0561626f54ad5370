#ifndef AQT_NN_SGD_H_
#define AQT_NN_SGD_H_

#include <optional>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/transforms/loss_scale.h"

namespace aqt::nn {

// Stochastic gradient descent with momentum, for each parameter p with gradient g, in the dtype of p:
//   m' = g + momentum * m;   p' = p - learning_rate * m'
// m is 0 before the first step. With momentum = 0 there is no m.
struct Sgd {
  double learning_rate = 0.1;
  double momentum = 0.9;
};

// What a step does with gradients that may overflow.
struct StepOptions {
  // The gradients are those of the scaled loss (transforms/loss_scale.h).
  std::optional<DynamicScaler> scaler = std::nullopt;
  // A step whose gradients are not all finite leaves the parameters and the optimizer's state as they are, at most so
  // many times in a row. stat "skip_if_not_finite/count" counts them.
  std::optional<int> max_consecutive_skips = std::nullopt;
};

// One training step as a program. `loss` computes a scalar loss as output 0. The inputs of the step are those of
// `loss`, and stat "sgd/<path>" for each parameter. Its outputs are those of `loss`, the statistics that the gradient
// writes, the new parameters under their own names (kind param), and the new stat "sgd/<path>". The caller passes
// outputs of kinds param and stat to the next step as the inputs with the same names. With a scaler, the loss and the
// gradients are in its dtype, and its state is read and written, too (InitialScalerState). Errors: ValueAndGrad's;
// InvalidArgument if the learning rate is not finite, the momentum is not in [0, 1), or `loss` itself has a statistic
// "sgd/<path>".
absl::StatusOr<Program> TrainStep(const Program& loss, const Sgd& optimizer, const StepOptions& options = {});

// Adds initial values for the inputs of kind stat of a step program that `state` lacks: those of InitialStats for
// calibrations, zeros for the optimizer.
void AddMissingStats(const Program& step, SlotValues& state);

}  // namespace aqt::nn

#endif  // AQT_NN_SGD_H_
