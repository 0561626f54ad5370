#ifndef AQT_NN_SGD_H_
#define AQT_NN_SGD_H_

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt::nn {

// Stochastic gradient descent with momentum, for each parameter p with gradient g, in the dtype of p:
//   m' = g + momentum * m;   p' = p - learning_rate * m'
// m is 0 before the first step. With momentum = 0 there is no m.
struct Sgd {
  double learning_rate = 0.1;
  double momentum = 0.9;
};

// One training step as a program. `loss` computes a scalar loss as output 0. The inputs of the step are those of
// `loss`, and stat "sgd/<path>" for each parameter. Its outputs are those of `loss`, the statistics that the gradient
// writes, the new parameters under their own names (kind param), and the new stat "sgd/<path>". The caller passes
// outputs of kinds param and stat to the next step as the inputs with the same names. Errors: ValueAndGrad's;
// InvalidArgument if the learning rate is not finite, the momentum is not in [0, 1), or `loss` itself has a statistic
// "sgd/<path>".
absl::StatusOr<Program> TrainStep(const Program& loss, const Sgd& optimizer);

// Adds initial values for the inputs of kind stat of a step program that `state` lacks: those of InitialStats for
// calibrations, zeros for the optimizer.
void AddMissingStats(const Program& step, SlotValues& state);

}  // namespace aqt::nn

#endif  // AQT_NN_SGD_H_
