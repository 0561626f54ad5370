#ifndef AQT_NN_TRAIN_OPTIMIZER_H_
#define AQT_NN_TRAIN_OPTIMIZER_H_

// Optimizers, which TrainStep (train_step.h) turns into operations of a program. The formulas, and the order of their
// operations, are those of optax, element by element: p is a parameter, g its gradient, and x' the new value of x.
// Every operation rounds once, and all are of Level 1 (docs/bits.md): the same gradients give the same bits on every
// machine.

#include <functional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/nn/train/schedule.h"

namespace aqt::nn {

// Stochastic gradient descent with momentum, in the dtype of p:
//   m' = g + momentum * m;   p' = p - learning_rate * m'
// m, stat "sgd/<path>", is 0 before the first step. With momentum = 0 there is no m. Stat "sgd_count" exists if the
// learning rate is not constant.
struct Sgd {
  Schedule learning_rate = 0.1;
  double momentum = 0.9;
};

// The Adam optimizer, in f32, or f64 for p of f64; p' is rounded to the dtype of p:
//   t' = t + 1
//   mu' = (1 - b1) * g + b1 * mu;   nu' = (1 - b2) * (g * g) + b2 * nu
//   u = (mu' / (1 - b1^t')) / (sqrt(nu' / (1 - b2^t') + eps_root) + eps)
//   p' = p - learning_rate(t) * u
// The state is stat "adam/count" (t, s32, which stays at 2^31 - 1), "adam/mu/<path>" and "adam/nu/<path>" (f32 or f64),
// all 0 before the first step.
struct Adam {
  Schedule learning_rate = 0.001;
  double b1 = 0.9, b2 = 0.999, eps = 1e-8, eps_root = 0;
};

// Selects parameters: a regular expression (RE2) that matches the full path, such as ".*/kernel", or a predicate on the
// path.
using ParamMask = std::variant<std::string, std::function<bool(absl::string_view path)>>;

// Adam with decoupled weight decay: for the parameters that `decays` selects,
//   p' = p - learning_rate(t) * (u + weight_decay * p)
// The state is Adam's, with the same names.
struct AdamW {
  Schedule learning_rate = 0.001;
  double b1 = 0.9, b2 = 0.999, eps = 1e-8, eps_root = 0;
  double weight_decay = 1e-4;
  ParamMask decays = ".*";
};

// Any of the optimizers.
using Optimizer = std::variant<Sgd, Adam, AdamW>;

// Checks the fields. InvalidArgument, naming the optimizer and the field, for a value out of range.
absl::Status Validate(const Optimizer& optimizer);

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_OPTIMIZER_H_
