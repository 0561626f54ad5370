#include "aqt/ops/contraction/aqt_dot_fields.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/contraction/aqt_dot_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;
using Made = absl::StatusOr<std::shared_ptr<const Composite>>;

absl::StatusOr<std::shared_ptr<const Impl>> MakeImpl(const ContractionFields& fields) {
  if (fields.config.has_value()) {
    return Impl::Make(*fields.config, fields.lhs, fields.rhs, fields.dims, fields.semantics,
                      {fields.lhs_mode, fields.rhs_mode});
  }
  if (std::holds_alternative<DotDims>(fields.dims)) {
    return absl::InvalidArgumentError("a float dot_general is a basic operation");
  }
  return Impl::MakeFloat(fields.lhs, fields.rhs, fields.dims);
}

absl::Status ExpectKey(bool needs, bool has_key) {
  if (!needs || has_key) return absl::OkStatus();
  return absl::InvalidArgumentError("rounds stochastically, but has no key");
}

absl::Status ExpectQuantized(const Impl& dot, Side side) {
  if (IsQuantized(dot.forward(side).quantizer.numerics)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Name(side), " has a scale, but is not quantized"));
}

// No field counts the statistics among the operands: the plan determines them.
absl::StatusOr<OperandOrder> OrderOf(const DotForwardFields& fields, const Impl& dot) {
  OperandOrder order;
  for (const Side side : kSides) {
    const int i = static_cast<int>(side);
    const OperandForm form = side == Side::kLhs ? fields.lhs : fields.rhs;
    if (form == OperandForm::kPacked || form == OperandForm::kPackedWithScale) {
      return absl::InvalidArgumentError(absl::StrCat(Name(side), " is packed; BindPacked packs operands"));
    }
    order.has_scale[i] = form != OperandForm::kFloat;
    order.quantized[i] = form == OperandForm::kQvalueWithScale;
    if (order.has_scale[i]) AQT_RETURN_IF_ERROR(ExpectQuantized(dot, side));
  }
  if (fields.with_residuals && (order.has_scale[0] || order.has_scale[1])) {
    return absl::InvalidArgumentError("an operand has a scale, and so has no gradient");
  }
  order.has_groups = dot.ragged() != nullptr;
  const absl::Span<const StateSlot> forward = dot.plan().forward_state(), backward = dot.plan().backward_state();
  for (size_t i = 0; i < forward.size(); ++i) {
    if (!order.has_scale[static_cast<int>(forward[i].side)]) order.forward_state.push_back(i);
  }
  if (fields.has_backward_state) order.backward_state = backward.size();
  if (fields.has_backward_state ? backward.empty() : fields.with_residuals && !backward.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the gradient has ", backward.size(), " statistics, which are ",
                                                   fields.has_backward_state ? "" : "not ", "operands"));
  }
  if (fields.backward_slots.size() != order.backward_state) {
    return absl::InvalidArgumentError(absl::StrCat("names ", fields.backward_slots.size(),
                                                   " statistics of the gradient, expected ", order.backward_state));
  }
  order.has_key = fields.has_key;
  return order;
}

}  // namespace

Made MakeComposite(const DotForwardFields& fields) {
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> dot, MakeImpl(fields.contraction));
  AQT_ASSIGN_OR_RETURN(OperandOrder order, OrderOf(fields, *dot));
  AQT_RETURN_IF_ERROR(ExpectKey(dot->plan().ForwardNeedsKey(), fields.has_key));
  AQT_RETURN_IF_ERROR(ExpectKey(fields.with_residuals && dot->plan().BackwardNeedsKey(), fields.has_key));
  return MakeForwardOp(std::move(dot), std::move(order), fields.with_residuals, fields.backward_slots, fields.name);
}

Made MakeComposite(const DotBackwardFields& fields) {
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> dot, MakeImpl(fields.contraction));
  AQT_RETURN_IF_ERROR(ExpectKey(dot->plan().BackwardNeedsKey(), fields.has_key));
  return MakeBackwardOp(std::move(dot), fields.has_key);
}

Made MakeComposite(const DotQuantizeFields& fields) {
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> dot, MakeImpl(fields.contraction));
  AQT_RETURN_IF_ERROR(ExpectQuantized(*dot, fields.side));
  AQT_RETURN_IF_ERROR(dot->plan().quantized_avals(fields.side).status());
  const Quantizer& quantizer = dot->forward(fields.side).quantizer;
  if (HasState(quantizer) && !fields.has_scale) {
    return absl::InvalidArgumentError("has a calibration with state, but no scale");
  }
  return MakeQuantizeOp(std::move(dot), fields.side, fields.has_scale, NeedsKey(quantizer.numerics));
}

ContractionFields FieldsOfDot(const AqtDot::Impl& dot) {
  ContractionFields fields{.lhs = dot.plan().lhs_aval(), .rhs = dot.plan().rhs_aval(), .dims = dot.dims};
  if (dot.name == KindOf(dot.dims)) return fields;
  fields.config = dot.config;
  fields.semantics = dot.semantics();
  fields.lhs_mode = dot.modes.lhs;
  fields.rhs_mode = dot.modes.rhs;
  return fields;
}

OperandForm FormOf(const OperandOrder& order, Side side) {
  const int i = static_cast<int>(side);
  if (order.packed[i]) return order.has_scale[i] ? OperandForm::kPackedWithScale : OperandForm::kPacked;
  if (order.quantized[i]) return OperandForm::kQvalueWithScale;
  return order.has_scale[i] ? OperandForm::kFloatWithScale : OperandForm::kFloat;
}

const DotOp* DotOpOf(const Op& op) {
  const auto* composite = std::get_if<CompositeOp>(&op);
  return composite == nullptr ? nullptr : dynamic_cast<const DotOp*>(composite->impl.get());
}

std::optional<ContractionFields> ContractionFieldsOf(const Op& op) {
  const DotOp* const dot = DotOpOf(op);
  if (dot == nullptr) return std::nullopt;
  return FieldsOfDot(dot->dot());
}

}  // namespace aqt::internal
