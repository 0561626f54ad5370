#ifndef AQT_NN_SGD_H_
#define AQT_NN_SGD_H_

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt::nn {

// Stochastic gradient descent with momentum, for each parameter p with gradient g, in the dtype of p:
//   m' = g + momentum * m;   p' = p - learning_rate * m'
// m is 0 before the first step. momentum 0 keeps no m.
struct Sgd {
  double learning_rate = 0.1;
  double momentum = 0.9;
};

// One training step as a program. `loss` computes a scalar loss as output 0. The step has the inputs of `loss`, and
// stat "sgd/<path>" for each parameter; the outputs of `loss`, the statistics that its gradient writes, the new
// parameters under their own names (kind param), and the new stat "sgd/<path>". Who runs it puts outputs of kinds param
// and stat in the place of the inputs of that name. Errors: ValueAndGrad's; InvalidArgument when the learning rate is
// not finite, the momentum is not in [0, 1), or `loss` has a statistic of that name itself.
absl::StatusOr<Program> TrainStep(const Program& loss, const Sgd& optimizer);

// First values for the inputs of kind stat of a step program that `state` lacks: of a calibration what InitialStats
// says, of the optimizer zeros.
void AddMissingStats(const Program& step, SlotValues& state);

}  // namespace aqt::nn

#endif  // AQT_NN_SGD_H_
