#ifndef AQT_NN_TRAIN_TRAIN_STEP_H_
#define AQT_NN_TRAIN_TRAIN_STEP_H_

// A training step as a program: the gradients of a loss and the update of an optimizer.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/nn/train/optimizer.h"
#include "aqt/transforms/precision/loss_scale.h"

namespace aqt::nn {

// An exponential moving average of the parameters, for evaluation. After each update, in f32 (f64 for p of f64), where
// p' is the new parameter:
//   ema' = (1 - decay) * p' + decay * ema
// Before the first update ema is p. With `debias` it is 0 instead, and EmaParams divides by 1 - decay^updates, so that
// the first parameters soon stop counting. The state is stat "ema/<path>" (f32 or f64) and "ema_count".
struct Ema {
  double decay = 0.999;
  bool debias = false;
};

// The options of TrainStep. Around the optimizer, a step does the following, in this order:
//   1. Gradients of a scaled loss are divided by the scaler. If they are not all finite, the step may be skipped.
//   2. They are accumulated. Only every accumulate_steps-th step continues, with their mean.
//   3. They are clipped, by value, then by norm.
//   4. The optimizer makes an update, which enters the moving average.
// A skipped step changes none of this state. A step that only accumulates changes no state of 3 and 4. Statistics of
// calibrations and the scaler's state belong to the loss: they change in every step.
struct StepOptions {
  // The gradients are those of the scaled loss (transforms/precision/loss_scale.h).
  std::optional<DynamicScaler> scaler = std::nullopt;
  // A step whose gradients are not all finite leaves the parameters and the optimizer's state as they are, at most this
  // many times in a row. stat "skip_if_not_finite/count" counts them.
  std::optional<int> max_consecutive_skips = std::nullopt;
  // The gradient of an update is the mean of the gradients of this many steps, in f32 (f64 for parameters of f64):
  //   (sum so far + gradient) / accumulate_steps
  // With more than 1 there are stat "accumulation/count" and "accumulation/gradient/<path>", all 0 after an update.
  // Each step computes an update, whether it is used or not.
  int64_t accumulate_steps = 1;
  // Each element is clipped to [-clip_value, clip_value]. NaN stays.
  std::optional<double> clip_value = std::nullopt;
  // With norm = the square root of the sum of the squares of all gradients, in f32 (f64 if a parameter is of f64), the
  // gradients are (g / norm) * clip_norm unless norm < clip_norm. They become 0 if norm is infinite.
  std::optional<double> clip_norm = std::nullopt;
  std::optional<Ema> ema = std::nullopt;
};

// One training step as a program. `loss` computes a scalar loss as output 0. The inputs of the step are those of
// `loss`, and the state of `optimizer` and `options`. Its outputs are those of `loss`, the statistics that the gradient
// writes, the new parameters under their own names (kind param), and the new state. The caller passes outputs of kinds
// param and stat to the next step as the inputs with the same names. With a scaler, the loss and the gradients are in
// its dtype, and its state is also read and written (InitialScalerState). Errors: ValueAndGrad's; InvalidArgument,
// naming the field, for an option or a field of the optimizer that is out of range, and, naming the slot, if `loss`
// itself has a statistic with a name of the state.
absl::StatusOr<Program> TrainStep(const Program& loss, const Optimizer& optimizer, const StepOptions& options = {});

// Adds initial values for the inputs of kind stat of a step program that `state` lacks: those of InitialStats for
// calibrations, zeros for the optimizer.
void AddMissingStats(const Program& step, SlotValues& state);

// The moving average of the parameters in the state of a training with these options, each in the dtype of its
// parameter; before the first update, the parameters themselves. NotFound, naming the slot, if the state lacks an
// average, InvalidArgument if it has another shape or dtype.
absl::StatusOr<SlotValues> EmaParams(const Ema& ema, const SlotValues& state);

}  // namespace aqt::nn

#endif  // AQT_NN_TRAIN_TRAIN_STEP_H_
