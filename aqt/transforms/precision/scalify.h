#ifndef AQT_TRANSFORMS_PRECISION_SCALIFY_H_
#define AQT_TRANSFORMS_PRECISION_SCALIFY_H_

// Scaled arithmetic: a program whose values carry a scale of their own, so that narrow dtypes hold them (after
// jax-scalify).
//
//   ScalifyOptions options{.rules = {.scale_dtype = DType::kF32}};
//   for (const int i : step.InputsOfKind(SlotKind::kParam)) options.scaled_inputs[step.inputs[i].slot] = DType::kF32;
//   absl::StatusOr<Program> scaled = Scalify(step, options);
//
// Whatever depends on a scaled input is scaled, by the rules of scaled.h; the rest stays as it is. A value that meets a
// scaled one becomes scaled, too: constants and numbers that were broadcast get the power of two at or below them as
// their scale, other plain arrays the scale 1. Scalify gradients, not before them: equations of a gradient are ordinary
// ones. Calls (graph/call.h) and einsums are replaced by what they consist of. Quantized contractions and the gradients
// of contractions pass scales on (ScalePolicy); other composites take and give values without a scale. Differences from
// jax-scalify: docs/differences-from-scalify.md.

#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/transforms/precision/scaled.h"

namespace aqt {

struct ScalifyOptions {
  ScalifyRules rules = {};
  // The inputs that are scaled, with the dtype of the scale.
  absl::btree_map<Slot, DType> scaled_inputs = {};
};

// The name of a scale: "<path>:scale", of the same kind.
Slot ScaleSlot(const Slot& slot);

// The result has the inputs of `program` and then the scales of the scaled ones, in their order; and its outputs, then
// the scales of those that are scaled. Data keep their names. An output of kind param or stat with the name of an
// input, the next state of a training, is scaled if and only if the input is, with a scale of the same dtype.
// InvalidArgument for a scaled input that `program` does not have or that is not a float, for a scale_dtype other than
// f16, bf16, f32 and f64, and for an operation without a rule, with its name, scope and line.
absl::StatusOr<Program> Scalify(const Program& program, const ScalifyOptions& options);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_SCALIFY_H_
