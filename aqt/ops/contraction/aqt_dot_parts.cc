#include "aqt/ops/contraction/aqt_dot_parts.h"

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

absl::StatusOr<std::shared_ptr<const Impl>> MakeImpl(const ContractionParts& parts) {
  if (!parts.is_float) {
    return Impl::Make(parts.config, parts.lhs, parts.rhs, parts.dims, parts.semantics, parts.modes);
  }
  if (std::holds_alternative<DotDims>(parts.dims)) {
    return absl::InvalidArgumentError("a float dot_general is a basic operation");
  }
  return Impl::MakeFloat(parts.lhs, parts.rhs, parts.dims);
}

absl::Status ExpectKey(bool needs, bool has_key) {
  if (!needs || has_key) return absl::OkStatus();
  return absl::InvalidArgumentError("rounds stochastically, but has no key");
}

absl::Status ExpectQuantized(const Impl& dot, Side side) {
  if (IsQuantized(dot.forward(side).quantizer.numerics)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Name(side), " has a scale, but is not quantized"));
}

Made Make(const DotForwardParts& parts, std::shared_ptr<const Impl> dot) {
  OperandOrder order;
  for (const Side side : kSides) {
    const int i = static_cast<int>(side);
    const OperandForm form = side == Side::kLhs ? parts.lhs : parts.rhs;
    order.has_scale[i] = form != OperandForm::kFloat;
    order.quantized[i] = form == OperandForm::kQvalueWithScale;
    if (order.has_scale[i]) AQT_RETURN_IF_ERROR(ExpectQuantized(*dot, side));
  }
  if (parts.with_residuals && (order.has_scale[0] || order.has_scale[1])) {
    return absl::InvalidArgumentError("an operand has a scale, and so has no gradient");
  }
  AQT_RETURN_IF_ERROR(ExpectKey(dot->plan().ForwardNeedsKey(), parts.has_key));
  AQT_RETURN_IF_ERROR(ExpectKey(parts.with_residuals && dot->plan().BackwardNeedsKey(), parts.has_key));
  order.has_groups = dot->ragged() != nullptr;
  const absl::Span<const StateSlot> forward = dot->plan().forward_state(), backward = dot->plan().backward_state();
  for (size_t i = 0; i < forward.size(); ++i) {
    if (!order.has_scale[static_cast<int>(forward[i].side)]) order.forward_state.push_back(i);
  }
  if (parts.has_backward_state) order.backward_state = backward.size();
  if (parts.has_backward_state ? backward.empty() : parts.with_residuals && !backward.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the gradient has ", backward.size(), " statistics, which are ",
                                                   parts.has_backward_state ? "" : "not ", "operands"));
  }
  if (parts.backward_slots.size() != order.backward_state) {
    return absl::InvalidArgumentError(absl::StrCat("names ", parts.backward_slots.size(),
                                                   " statistics of the gradient, ", "expected ", order.backward_state));
  }
  order.has_key = parts.has_key;
  return MakeForwardOp(std::move(dot), std::move(order), parts.with_residuals, parts.backward_slots, parts.name);
}

Made Make(const DotBackwardParts& parts, std::shared_ptr<const Impl> dot) {
  AQT_RETURN_IF_ERROR(ExpectKey(dot->plan().BackwardNeedsKey(), parts.has_key));
  return MakeBackwardOp(std::move(dot), parts.has_key);
}

Made Make(const DotQuantizeParts& parts, std::shared_ptr<const Impl> dot) {
  AQT_RETURN_IF_ERROR(ExpectQuantized(*dot, parts.side));
  AQT_RETURN_IF_ERROR(dot->plan().quantized_avals(parts.side).status());
  const Quantizer& quantizer = dot->forward(parts.side).quantizer;
  if (HasState(quantizer) && !parts.has_scale) {
    return absl::InvalidArgumentError("has a calibration with state, but no scale");
  }
  return MakeQuantizeOp(std::move(dot), parts.side, parts.has_scale, NeedsKey(quantizer.numerics));
}

}  // namespace

ContractionParts PartsOf(const AqtDot::Impl& dot) {
  return {.lhs = dot.plan().lhs_aval(),
          .rhs = dot.plan().rhs_aval(),
          .dims = dot.dims,
          .is_float = dot.name == KindOf(dot.dims),
          .config = dot.config,
          .semantics = dot.semantics(),
          .modes = dot.modes};
}

absl::StatusOr<std::optional<DotParts>> DotPartsOf(const Composite& op) {
  const auto* dot = dynamic_cast<const DotOp*>(&op);
  if (dot == nullptr) return std::nullopt;
  AQT_ASSIGN_OR_RETURN(DotParts parts, dot->parts());
  return std::make_optional(std::move(parts));
}

std::optional<ContractionParts> ContractionPartsOf(const Composite& op) {
  const auto* dot = dynamic_cast<const DotOp*>(&op);
  if (dot == nullptr) return std::nullopt;
  return PartsOf(dot->dot());
}

Made MakeDotOp(const DotParts& parts) {
  return std::visit(
      [](const auto& own) -> Made {
        AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> dot, MakeImpl(own.contraction));
        return Make(own, std::move(dot));
      },
      parts);
}

}  // namespace aqt::internal
