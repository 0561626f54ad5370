#include "aqt/ops/aqt_dot_general.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/aqt_dot_ops.h"
#include "aqt/ops/describe.h"
#include "aqt/ops/opaque_ops.h"
#include "aqt/quant/contraction/dot_tiling.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"

namespace aqt {
namespace {

bool HasBias(const Quantizer& quantizer) {
  const Constant* constant =
      quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
  return constant != nullptr && constant->bias.has_value();
}

}  // namespace

absl::StatusOr<AqtDot> AqtDot::Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs, const DotDims& dims,
                                    const Semantics& semantics, const Modes& modes) {
  AQT_ASSIGN_OR_RETURN(DotGeneralPlan plan, DotGeneralPlan::Make(config, lhs, rhs, dims, {.semantics = semantics}));
  std::string attributes = absl::StrCat("dims=", dims.ToString(), ", ", DescribeConfig(config));
  if (semantics.prng_layout == PrngLayout::kOriginal) attributes += ", original_layout";
  attributes += internal::ArithmeticText(semantics);
  std::optional<internal::TiledDot> tiled;
  if (config.tiling.has_value()) {
    AQT_ASSIGN_OR_RETURN(tiled, internal::MakeTiledDot(*config.tiling, dims, lhs.shape, rhs.shape));
  }
  const bool has_state = !plan.forward_state().empty() || !plan.backward_state().empty();
  for (const Side side : internal::kSides) {
    const QuantMode mode = side == Side::kLhs ? modes.lhs : modes.rhs;
    if (!has_state || mode == QuantMode::kTrain) continue;
    absl::StrAppend(&attributes, ", ", side == Side::kLhs ? "lhs" : "rhs", " in ", ToString(mode));
  }
  return AqtDot(std::make_shared<const Impl>(Impl{std::move(plan), modes, std::move(attributes), std::move(tiled)}));
}

const DotGeneralPlan& AqtDot::plan() const { return impl_->plan; }

AqtDot::Result AqtDot::ApplyWithState(const Operand& lhs, const Operand& rhs, const std::optional<Value>& key,
                                      const State& state, const SourceLine& where) const {
  internal::OperandOrder order;
  std::vector<Value> operands;
  for (const Side side : internal::kSides) {
    const Operand& operand = side == Side::kLhs ? lhs : rhs;
    order.has_scale[static_cast<int>(side)] = operand.scale.has_value();
    order.quantized[static_cast<int>(side)] = operand.scale.has_value() && operand.is_quantized;
    operands.push_back(operand.value);
    if (operand.scale.has_value()) operands.push_back(*operand.scale);
  }
  const absl::Span<const StateSlot> slots = plan().forward_state();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (order.has_scale[static_cast<int>(slots[i].side)]) continue;
    order.forward_state.push_back(i);
    if (i < state.forward.size()) operands.push_back(state.forward[i]);
  }
  order.backward_state = state.backward.size();
  operands.insert(operands.end(), state.backward.begin(), state.backward.end());
  order.has_key = key.has_value();
  if (key.has_value()) operands.push_back(*key);
  Result result{Value(), std::vector<std::optional<Value>>(slots.size())};
  const auto refuse = [&](absl::string_view message) {
    result.out = Refuse(absl::FailedPreconditionError(message), "aqt_dot_general", operands, where);
    return result;
  };
  if (ForwardNeedsKey() && !order.has_key) {
    return refuse("rounds stochastically and draws random numbers; give it a key");
  }
  if (!order.forward_state.empty() && state.forward.size() != slots.size()) {
    return refuse("has a calibration with state; QuantizedDot gives it its statistics");
  }
  const CompositeOp op{internal::MakeForwardOp(impl_, order, state.backward_slots, state.name)};
  const std::vector<Value> out = Bind(op, operands, where);
  result.out = out[0];
  size_t next = 1;
  for (const size_t position : order.forward_state) {
    if (impl_->Updates(slots[position])) result.forward_state[position] = out[next++];
  }
  return result;
}

absl::StatusOr<AqtDot::QuantizedAvals> AqtDot::QuantizedAvalsOf(Side side) const {
  const Quantizer& quantizer = impl_->forward(side).quantizer;
  if (!IsQuantized(quantizer.numerics)) {
    return absl::InvalidArgumentError(absl::StrCat(side == Side::kLhs ? "fwd.lhs" : "fwd.rhs",
                                                   " is not quantized by the configuration; leave it in mode TRAIN"));
  }
  if (HasBias(quantizer)) {
    return absl::UnimplementedError("an operand with a calibration bias cannot be quantized ahead of time");
  }
  return plan().quantized_avals(side);
}

AqtDot::Operand AqtDot::Quantize(Side side, const Value& x, const std::optional<Value>& key, const SourceLine& where,
                                 const std::optional<Value>& scale) const {
  // A side that draws nothing does not depend on the key of the other one, so that Fold can compute it.
  const bool draws = aqt::NeedsKey(impl_->forward(side).quantizer.numerics);
  std::vector<Value> operands = {x};
  if (scale.has_value()) operands.push_back(*scale);
  if (draws && key.has_value()) operands.push_back(*key);
  const CompositeOp op{internal::MakeQuantizeOp(impl_, side, scale.has_value(), draws && key.has_value())};
  absl::Status status = QuantizedAvalsOf(side).status();
  if (status.ok() && HasState(impl_->forward(side).quantizer) && !scale.has_value()) {
    status = absl::FailedPreconditionError("has a calibration with state; give it the scale that its statistics hold");
  }
  if (status.ok() && draws && !key.has_value()) {
    status = absl::FailedPreconditionError("rounds stochastically and draws random numbers; give it a key");
  }
  if (!status.ok()) {
    const Value refused = Refuse(status, op.impl->Name(), operands, where);
    return {refused, refused};
  }
  std::vector<Value> out = Bind(op, operands, where);
  return {out[0], out[1]};
}

Value AqtDot::StaticScale(Side side, absl::Span<const Value> statistics) const {
  return internal::StaticScaleOf(impl_->forward(side).quantizer, impl_->inner_aval(side), impl_->shared_axes(side),
                                 statistics, impl_->semantics());
}

namespace ops {

Value AqtDotGeneral(const Operand& lhs, const Operand& rhs, const DotDims& dims, const aqt::DotGeneral& config,
                    const std::optional<Value>& key, const Semantics& semantics) {
  const std::vector<Value> operands = {lhs.As(DType::kF32), rhs.As(DType::kF32)};
  for (const Value& operand : operands) {
    if (!operand.status().ok()) return operand;
  }
  absl::StatusOr<AqtDot> dot = AqtDot::Make(config, operands[0].aval(), operands[1].aval(), dims, semantics);
  if (!dot.ok()) return Refuse(dot.status(), "aqt_dot_general", operands, lhs.where());
  return dot->Apply({operands[0]}, {operands[1]}, key, lhs.where());
}

}  // namespace ops
}  // namespace aqt
