#ifndef AQT_TRANSFORMS_PRECISION_LOSS_SCALE_H_
#define AQT_TRANSFORMS_PRECISION_LOSS_SCALE_H_

// Dynamic loss scaling: gradients of a scaled loss, so that small ones survive in a narrow dtype (after jaxamp).
//
//   AQT_ASSIGN_OR_RETURN(Program fast, Amp(loss));
//   AQT_ASSIGN_OR_RETURN(Program step, DynamicScaleValueAndGrad(fast, fast.InputsOfKind(SlotKind::kParam)));
//   values.merge(InitialScalerState({}));
//   AQT_ASSIGN_OR_RETURN(SlotValues out, EvalWithRedo(step, values, kRedoOfValueAndGrad));
//
// The state is five inputs and outputs of kind stat, which a training saves with its other statistics:
//   dynamic_scaler/patience s32, /adjust_factor, /scaler (DynamicScaler::dtype), /count s32, /total_resets s32
// The update rule:
//   after finite results: if count >= patience, scaler *= adjust_factor and count = 0; else count += 1;
//   after others: scaler /= adjust_factor, count = 0, total_resets += 1.

#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"

namespace aqt {

// The initial state of a dynamic scaler, and its update rule.
struct DynamicScaler {
  int32_t patience = 2000;  // finite steps before the scaler grows
  double adjust_factor = 2;
  double scaler = 32768;
  DType dtype = DType::kF32;  // of the scaler and the results: f32, f16 or bf16
  // Limits of the scaler. Without them it may become 0, or infinite and never recover.
  std::optional<double> min = std::nullopt, max = std::nullopt;
  // A subnormal f32 or bf16 scaler becomes 0, as in the original on a CPU. By default it is kept.
  bool subnormals_are_zero = false;
};

// The initial values of the scaler's slots.
SlotValues InitialScalerState(const DynamicScaler& options);
// Whether the slot is part of the scaler's state.
bool IsScalerState(const Slot& slot);

// The scaler's state inside a trace.
struct ScalerValues {
  Value patience, adjust_factor, scaler, count, total_resets;
};
// The scaler's next state. `finite` is a bool scalar: whether all results were finite.
ScalerValues UpdateScaler(const ScalerValues& state, const Value& finite, const DynamicScaler& options);

// A bool scalar: whether all elements of the floats among `values` are finite.
Value AllFinite(absl::Span<const Value> values);

// The output that says whether a step's results were finite.
inline constexpr char kFiniteOutput[] = "dynamic_scaler/finite";

// A loss and its gradients with dynamic loss scaling. `loss` computes a scalar loss as output 0 (ValueAndGrad). The
// result has its inputs and the state. Its outputs:
//   - those of `loss`, output 0 in the scaler's dtype (left out by DynamicScaleGrad);
//   - data "grad(<path>)" for each position in `wrt`, in the scaler's dtype, then the outputs that backward rules
//     write;
//   - data "dynamic_scaler/finite" bool: whether the value, the gradients and the other outputs of kind data are
//     finite;
//   - the new state.
// The loss is multiplied by the scaler in its own dtype. The value and the gradients are converted to the scaler's
// dtype and divided by it. Errors: those of ValueAndGrad; InvalidArgument for options that make no sense, and if `loss`
// itself has a slot of the state.
absl::StatusOr<Program> DynamicScaleValueAndGrad(const Program& loss, absl::Span<const int> wrt,
                                                 const DynamicScaler& options = {});
// DynamicScaleValueAndGrad without output 0, the value.
absl::StatusOr<Program> DynamicScaleGrad(const Program& loss, absl::Span<const int> wrt,
                                         const DynamicScaler& options = {});

// jaxamp's default number of repetitions.
inline constexpr int kRedoOfValueAndGrad = 10, kRedoOfGrad = 0;

// EvalSlots, repeated with the new state while the results are not finite, at most `redo_on_nan` times. Returns the
// results of the last run, finite or not.
absl::StatusOr<SlotValues> EvalWithRedo(const Program& scaled, SlotValues values, int redo_on_nan);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_LOSS_SCALE_H_
