#ifndef AQT_TRANSFORMS_QUANTIZE_SERVE_H_
#define AQT_TRANSFORMS_QUANTIZE_SERVE_H_

// Turns a trained model into a served one: Inject, Fold and Dce in the matching modes. The served model has the bits of
// the model trained with the same rules.

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt {

// The values from which `model` is served: its weights as quantized by `config`, the scales derived from activation
// statistics, and the parameters and statistics that stay as they are. `known` has the parameters and statistics after
// training or calibration (Trainer::state()). Values that the served model does not read are left out. The modes of
// `config` are not read. Errors: those of Inject and Fold; NotFound or InvalidArgument, naming the slot, if a value is
// missing or has another dtype or shape.
absl::StatusOr<SlotValues> Freeze(const Program& model, const InjectConfig& config, const SlotValues& known);

// The program that serves `model` from the values of Freeze, without inputs that it no longer uses. `model` may be
// traced for another batch than Freeze's. Errors: those of Inject.
absl::StatusOr<Program> ServeProgram(const Program& model, const InjectConfig& config, const SlotValues& frozen);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_SERVE_H_
