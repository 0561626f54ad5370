#ifndef AQT_OPS_CONTRACTION_QUANTIZED_DOT_H_
#define AQT_OPS_CONTRACTION_QUANTIZED_DOT_H_

// The quantized replacement of a contraction, inserted by a rule (transforms/quantize/inject.h) or by a layer itself:
// both give the same equations.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/state_arrays.h"

namespace aqt {

// What CONVERT stores for a side, and SERVE reads.
enum class FreezerMode {
  kValueAndScale,  // the quantized operand: a weight
  kScale,          // the scale that its statistics hold; each run quantizes the operand with it: an activation
  kNothing,        // the operation quantizes the side, with its current statistics
};

// How a contraction is quantized, and where its state is kept.
struct QuantizedDotOptions {
  DotGeneralConfig config;
  // What happens to each side:
  //   kTrain      the operation quantizes it
  //   kCalibrate  the same; statistics are updated. Needs a calibration with state (quant/tensor/calibration.h)
  //   kConvert    it is quantized by its own equation, whose results are also the frozen outputs
  //               "<name>/qlhs/value" and ".../scale" (qrhs for rhs; see FreezerMode and FrozenSlot)
  //   kServe      these are frozen inputs; a float operand that is stored is unused
  // Statistics are inputs "<name>/fwd.lhs/<statistic>" of kind stat, and outputs where they are updated; those of the
  // gradients ("<name>/dlhs.lhs/...") only with a gradient.
  QuantMode lhs_mode = QuantMode::kTrain, rhs_mode = QuantMode::kTrain;
  FreezerMode lhs_freezer = FreezerMode::kValueAndScale, rhs_freezer = FreezerMode::kValueAndScale;
  // Whether gradients will be taken. If so, a key that only they need is also an input. Ignored unless both sides are
  // in kTrain.
  bool with_gradient = true;
  // The input of kind key whose key is used unchanged. Without it, each contraction folds HashOfName(name) into the key
  // `shared_key_slot`: noise depends only on the name.
  std::optional<std::string> key_slot = std::nullopt;
  std::string shared_key_slot = kSharedKeySlot;
  Semantics semantics = {};
};

// The name of the `ordinal`-th contraction of a scope: the scope itself for the first one, otherwise
// "<scope>/dot_<ordinal>".
std::string ContractionName(absl::string_view scope, int ordinal);
// The first such name in the current scope that no QuantizedDot of the active trace uses.
std::string NextContractionName();

// The side of the product on which an operand of the contraction is: the other one if an einsum exchanges them.
Side SideInProduct(const ContractionDims& dims, const Aval& lhs, const Aval& rhs, Side side);

// The part of an operand's quantized form that a frozen slot holds.
enum class FrozenPart { kValue, kScale };
// The input or output that holds the quantized form of one side of the product: "<name>/qrhs/value". That of a rotated
// side has another name, "<name>/qrhs/hadamard_64/value", so that it is not taken for one that is not.
Slot FrozenSlot(absl::string_view name, Side side, FrozenPart part,
                const std::optional<Hadamard>& hadamard = std::nullopt);

// The input or output that holds a statistic.
Slot StatSlot(absl::string_view name, const StateSlot& slot);

// lhs x rhs, quantized; a ragged contraction has a third operand, group_sizes (contractions.h has the float ones). A
// key becomes an input of the trace if the configuration draws random numbers: in the forward pass, or in a gradient
// (see with_gradient). `where` is the caller's line.
//   dot_general, ragged_dot   as the configuration says
//   conv      config.fwd; InvalidArgument for dlhs, drhs or tiling
//   einsum    lhs and rhs of the options are the operands of the equation. If the product is rhs x lhs, everything is
//             exchanged for it (EinsumPlan), and the names of statistics and frozen tensors are the product's, as in
//             AQT: a weight that is rhs of the equation is then stored as "<name>/qlhs/value"
// Result and errors as for AqtDot, and AlreadyExists if a contraction of the trace already has the name: the two would
// share their noise, statistics and frozen tensors.
Value QuantizedContraction(absl::Span<const Value> operands, const ContractionDims& dims,
                           const QuantizedDotOptions& options, absl::string_view name, const SourceLine& where);

// The same for a dot_general.
Value QuantizedDot(const Value& lhs, const Value& rhs, const DotDims& dims, const QuantizedDotOptions& options,
                   absl::string_view name, const SourceLine& where);

}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_QUANTIZED_DOT_H_
