#ifndef AQT_TRANSFORMS_QUANTIZE_SERVE_H_
#define AQT_TRANSFORMS_QUANTIZE_SERVE_H_

// A trained model becomes a served one: Inject, Fold and Dce in the modes that belong together. What is served has the
// bits of what was trained with the same rules.

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt {

// The values from which `model` is served: its weights as `config` quantizes them, the scales that statistics of
// activations give, and the parameters and statistics that stay as they are. `known` has the parameters and statistics
// after training or calibration (Trainer::state()); what the served model does not read is left out. The modes of
// `config` are not read. Errors: those of Inject and Fold; NotFound or InvalidArgument, naming the slot, if a value is
// missing or has another dtype or shape.
absl::StatusOr<SlotValues> Freeze(const Program& model, const InjectConfig& config, const SlotValues& known);

// The program that serves `model` from the values of Freeze, without inputs that it does not use any more. `model` may
// be traced for another batch than Freeze's. Errors: those of Inject.
absl::StatusOr<Program> ServeProgram(const Program& model, const InjectConfig& config, const SlotValues& frozen);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_SERVE_H_
