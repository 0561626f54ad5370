#ifndef AQT_OPS_CONTRACTION_AQT_DOT_GENERAL_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_GENERAL_H_

// The quantized contraction (quant/contraction/dot_general.h) as operations of a program:
//   aqt_dot_general(lhs, rhs[, key]) -> out                   one equation per contraction
//   aqt_dot_general_fwd(...) -> out, residuals...             replaces it when a gradient is taken
//   aqt_dot_general_bwd(g, residuals...[, key]) -> dlhs, drhs
//   aqt_quantize(x[, scale][, key]) -> qvalue, scale          quantizes an operand ahead of time (a served weight)
//   aqt_static_scale(statistics...) -> scale                  the scale of a calibration with state
// The same operations exist for a convolution (quant/contraction/conv_general.h): aqt_conv; and for a ragged
// contraction (quant/contraction/ragged_dot.h): aqt_ragged_dot, with group_sizes s32[groups] after rhs and after the
// residuals. A side may be (qvalue, scale) instead of a float operand, or (float operand, scale). Calibrations with
// state (quant/tensor/calibration.h) add the statistics as operands and the updated ones as outputs. Each operation
// runs the plan of its kind and expands into basic operations with the same bits. Only gradients that are used are
// computed.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/planned_contraction.h"

namespace aqt {

// One contraction of any kind, configured for its shapes. Immutable; cheap to copy.
class AqtDot {
 public:
  // One side of a call, as values of a program: a float operand; a qvalue with its scale; or a float operand with the
  // scale that quantizes it.
  struct Operand {
    Value value;
    std::optional<Value> scale = std::nullopt;
    bool is_quantized = true;  // with a scale: value is a qvalue
  };
  // The mode of calibrations with state on each side, in all three contractions: see quant/tensor/calibration.h.
  struct Modes {
    QuantMode lhs = QuantMode::kTrain, rhs = QuantMode::kTrain;
  };
  // Statistics: one for each slot of the plan's forward_state() (those of sides that come with a scale are unused), and
  // one for each of its backward_state(), or none if no gradient is taken. A gradient writes the statistics that it
  // updates to `backward_slots`.
  struct State {
    std::vector<Value> forward = {}, backward = {};
    std::vector<Slot> backward_slots = {};
    std::optional<std::string> name = std::nullopt;  // Composite::instance_name() of the equation
  };

  // Errors as for DotGeneralPlan::Make, ConvGeneralPlan::Make and RaggedDotPlan::Make. A convolution is configured by
  // config.fwd; InvalidArgument for dlhs, drhs or tiling, which it does not have.
  // With kForwardOnly its operations have no gradient, and dlhs and drhs are not planned.
  static absl::StatusOr<AqtDot> Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                     const PlannedDims& dims, const Semantics& semantics, const Modes& modes,
                                     PlanPasses passes = PlanPasses::kForwardAndBackward);
  static absl::StatusOr<AqtDot> Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                     const PlannedDims& dims, const Semantics& semantics = {}) {
    return Make(config, lhs, rhs, dims, semantics, Modes());
  }
  // A contraction that quantizes nothing. Its operations are named without "aqt_", except that of a dot_general:
  // "dot_general" is a basic operation. This one has the bits of a DotGeneralPlan (subnormal operands are zero).
  static absl::StatusOr<AqtDot> MakeFloat(const Aval& lhs, const Aval& rhs, const PlannedDims& dims);

  const PlannedContraction& plan() const;
  // The name of the operation: "aqt_dot_general", "aqt_conv", "aqt_ragged_dot", ...
  const std::string& name() const;
  // Whether the forward pass, or one of its gradients, draws random numbers.
  bool ForwardNeedsKey() const { return plan().ForwardNeedsKey(); }
  bool NeedsKey() const { return plan().ForwardNeedsKey() || plan().BackwardNeedsKey(); }

  // The operands of a call. `group_sizes` is only for a ragged contraction. `key`, u32[2], is AQT's context key: it is
  // split into one key for each operand of the three contractions (for a convolution: one for lhs, one for rhs).
  struct Arguments {
    Operand lhs, rhs;
    std::optional<Value> group_sizes = std::nullopt;
    std::optional<Value> key = std::nullopt;
    State state = {};
  };
  struct Result {
    Value out;
    std::vector<std::optional<Value>>
        forward_state;  // by forward_state(): the next statistics, null where none are updated
  };
  // lhs x rhs. Poisoned: InvalidArgument if operands are not as configured; FailedPrecondition if the forward pass or a
  // gradient needs a key or statistics that are missing, and for a gradient with an operand that comes with a scale;
  // Unimplemented for a gradient of a gradient, unless nothing is quantized.
  Result ApplyWithState(const Arguments& arguments, const SourceLine& where) const;
  Value Apply(const Operand& lhs, const Operand& rhs, const std::optional<Value>& key, const SourceLine& where) const {
    return ApplyWithState({.lhs = lhs, .rhs = rhs, .key = key}, where).out;
  }

  // Quantizes one side as Apply would, with `scale` if given (a calibration with state needs it). Poisoned where
  // QuantizedAvalsOf fails, and with FailedPrecondition if a key or a scale is missing.
  Operand Quantize(Side side, const Value& x, const std::optional<Value>& key, const SourceLine& where,
                   const std::optional<Value>& scale = std::nullopt) const;

  // The scale of a side whose calibration has state, from its statistics in the order of the plan's slots.
  Value StaticScale(Side side, absl::Span<const Value> statistics) const;

  // The avals of Quantize. InvalidArgument if the side is not quantized; Unimplemented if its calibration has a bias.
  using QuantizedAvals = PlannedContraction::QuantizedAvals;
  absl::StatusOr<QuantizedAvals> QuantizedAvalsOf(Side side) const;

  struct Impl;

 private:
  explicit AqtDot(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// The dims of a contraction that quantizes nothing (MakeFloat, but not of a dot_general); null for any other operation.
std::optional<PlannedDims> FloatDimsOf(const Op& op);

namespace ops {

// Make and Apply. Operands have one dtype: f32, bf16 or f16. FailedPrecondition for calibrations with state:
// QuantizedDot (quantized_dot.h) finds their statistics.
Value AqtDotGeneral(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const DotDims& dims,
                    const aqt::DotGeneralConfig& config, const std::optional<Value>& key = std::nullopt,
                    const Semantics& semantics = {});

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_GENERAL_H_
