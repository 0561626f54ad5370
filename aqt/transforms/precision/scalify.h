#ifndef AQT_TRANSFORMS_PRECISION_SCALIFY_H_
#define AQT_TRANSFORMS_PRECISION_SCALIFY_H_

// Scaled arithmetic: a program whose values carry their own scales, so that narrow dtypes hold them (after
// jax-scalify).
//
//   ScalifyOptions options{.rules = {.scale_dtype = DType::kF32}};
//   for (const int i : step.InputsOfKind(SlotKind::kParam)) options.scaled_inputs[step.inputs[i].slot] = DType::kF32;
//   absl::StatusOr<Program> scaled = Scalify(step, options);
//
// Every value that depends on a scaled input is scaled, by the rules of scaled.h; the rest stays as it is. A plain
// value that is combined with a scaled one becomes scaled, too: constants and broadcast numbers get the power of two at
// or below them as their scale, other plain arrays the scale 1. Take gradients before Scalify, which treats their
// equations like all others. Calls (graph/interpret/call.h) and einsums are replaced by their definitions. Quantized
// contractions and the gradients of contractions propagate scales (ScalePolicy); other composites take and give values
// without a scale. Differences from jax-scalify: docs/differences-from-scalify.md.

#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/transforms/precision/scaled.h"

namespace aqt {

// The options of Scalify.
struct ScalifyOptions {
  ScalifyRules rules = {};
  // The scaled inputs, with the dtype of each scale.
  absl::btree_map<Slot, DType> scaled_inputs = {};
};

// The slot of a scale: "<path>:scale", of the same kind.
Slot ScaleSlot(const Slot& slot);

// `program` in scaled arithmetic. The result has the inputs of `program` followed by the scales of the scaled ones, in
// their order; and its outputs, followed by the scales of the scaled ones. Data keep their names. An output of kind
// param or stat with the name of an input (the next state of a training) is scaled if and only if the input is, with a
// scale of the same dtype. InvalidArgument for a scaled input that `program` does not have or that is not a float, for
// a scale_dtype other than f16, bf16, f32 and f64, and for an operation without a rule, with its name, scope and line.
absl::StatusOr<Program> Scalify(const Program& program, const ScalifyOptions& options);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_SCALIFY_H_
