// Cuts the opaque operations of a quantized contraction, and attention, along the batch. Those without a rule here run
// on the gathered batch.

#include <cstdint>
#include <numeric>
#include <optional>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/ops/expand/opaque_fields.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/transforms/parallel/partition.h"

namespace aqt::internal {
namespace {

using In = absl::Span<const Part>;
using Result = std::optional<Part>;

// Without a key, the operation works by element.
Result Rule(const Partition&, const CompositeOp& composite, const QvalueFields&, In in, const Aval& out) {
  if (in.size() != 1) return std::nullopt;
  return Part{BindOne(composite, {in[0].value}), out, in[0].axis};
}

// Scales of rows. Over the batch only AbsMax: the maximum of the processes' largest magnitudes.
Result Rule(const Partition& partition, const CompositeOp& composite, const ScaleFields& op, In in, const Aval& out) {
  if (in.size() != 1) return std::nullopt;
  const int64_t axis = *in[0].axis;
  if (out.shape[axis] == 1) {
    if (!std::holds_alternative<AbsMax>(*op.quantizer.calibration)) return std::nullopt;
    Axes shared;
    for (int64_t i = 0; i < out.shape.rank(); ++i) {
      if (out.shape[i] == 1) shared.push_back(i);
    }
    const Value largest = ops::ReduceMax(ops::Abs(in[0].value), shared, /*keepdims=*/true);
    return Part{BindOne(composite, {partition.AllReduce(AllReduceKind::kMax, largest)}), out};
  }
  // The arithmetic of one scale differs from that of several.
  const bool same_arithmetic =
      op.semantics.arithmetic == Arithmetic::kIeee || partition.AvalOfPart(out, axis).shape.num_elements() > 1;
  if (!same_arithmetic || std::holds_alternative<Constant>(*op.quantizer.calibration)) return std::nullopt;
  return Part{BindOne(composite, {in[0].value}), out, axis};
}

// An entry of the batch needs only its own operands.
Result Rule(const Partition& partition, const CompositeOp& composite, const AttentionFields&, In in, const Aval& out) {
  std::vector<Value> operands;
  for (const Part& part : in) {
    if (part.axis.has_value() && *part.axis != 0) return std::nullopt;
    operands.push_back(part.whole.shape[0] == 1 ? part.value : partition.Cut(part, 0));
  }
  return Part{BindOne(composite, operands), out, 0};
}

}  // namespace

std::optional<Part> CutComposite(const Partition& partition, const CompositeOp& op, absl::Span<const Part> in,
                                 const Aval& out) {
  if (const std::optional<AttentionFields> attention = FieldsOf<AttentionFields>(*op.impl)) {
    return Rule(partition, op, *attention, in, out);
  }
  const std::optional<QvalueFields> qvalue = FieldsOf<QvalueFields>(*op.impl);
  const std::optional<ScaleFields> scale = FieldsOf<ScaleFields>(*op.impl);
  if ((!qvalue.has_value() && !scale.has_value()) || !in[0].axis.has_value()) return std::nullopt;
  return qvalue.has_value() ? Rule(partition, op, *qvalue, in, out) : Rule(partition, op, *scale, in, out);
}

std::vector<Part> OperandsOf(const Partition& partition, const Op& op, absl::Span<const Part> in) {
  std::vector<Part> operands(in.begin(), in.end());
  const std::optional<CalibrateFields> calibrate = FieldsOf<CalibrateFields>(op);
  if (!calibrate.has_value() || !std::holds_alternative<DelayedScaling>(*calibrate->quantizer.calibration) ||
      !in[0].axis.has_value()) {
    return operands;
  }
  Axes all(in[0].whole.shape.rank());
  std::iota(all.begin(), all.end(), 0);
  const Value largest = ops::ReduceMax(ops::Abs(in[0].value), all, /*keepdims=*/true);
  operands[0] = {partition.AllReduce(AllReduceKind::kMax, largest), {largest.dtype(), largest.shape()}};
  return operands;
}

}  // namespace aqt::internal
