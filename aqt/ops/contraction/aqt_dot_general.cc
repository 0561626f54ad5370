#include "aqt/ops/contraction/aqt_dot_general.h"

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
#include "aqt/ops/contraction/aqt_dot_ops.h"
#include "aqt/ops/describe.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"

namespace aqt {
namespace {

using Plan = decltype(AqtDot::Impl::door);

// A convolution has no quantized gradients: a configuration of them would be ignored.
absl::Status CheckConvConfig(const DotGeneralConfig& config) {
  const auto error = [](absl::string_view field, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("conv_general: the configuration sets ", field, ", but ", why, ": leave it out"));
  };
  constexpr absl::string_view kGradients = "the gradients of a convolution are not quantized";
  if (config.dlhs != DotGeneralRawConfig{}) return error("dlhs", kGradients);
  if (config.drhs != DotGeneralRawConfig{}) return error("drhs", kGradients);
  if (config.tiling.has_value()) return error("tiling", "a convolution has no tiles");
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs, const PlannedDims& dims,
                              const PlanOptions& options) {
  if (const DotDims* dot = std::get_if<DotDims>(&dims)) {
    return DotGeneralPlan::Make(config, lhs, rhs, *dot, options);
  }
  if (const ConvDims* conv = std::get_if<ConvDims>(&dims)) {
    AQT_RETURN_IF_ERROR(CheckConvConfig(config));
    return ConvGeneralPlan::Make(config.fwd, lhs, rhs, *conv, options);
  }
  return RaggedDotPlan::Make(config, lhs, rhs, options);
}

bool HasState(const DotGeneralRawConfig& raw) {
  return aqt::HasState(raw.lhs.quantizer) || aqt::HasState(raw.rhs.quantizer);
}

bool HasBias(const Quantizer& quantizer) {
  const Constant* constant =
      quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
  return constant != nullptr && constant->bias.has_value();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const AqtDot::Impl>> AqtDot::Impl::Make(const DotGeneralConfig& config, const Aval& lhs,
                                                                       const Aval& rhs, const PlannedDims& dims,
                                                                       const Semantics& semantics, const Modes& modes,
                                                                       PlanPasses passes) {
  const PlanOptions options{.passes = passes, .semantics = semantics};
  AQT_ASSIGN_OR_RETURN(Plan plan, MakePlan(config, lhs, rhs, dims, options));
  Impl impl{std::move(plan), dims, config, modes, absl::StrCat("aqt_", KindOf(dims)), DescribeDims(dims)};
  std::string& attributes = impl.attributes;
  absl::StrAppend(&attributes, attributes.empty() ? "" : ", ", DescribeConfig(config));
  if (semantics.prng_layout == PrngLayout::kOriginal) attributes += ", original_layout";
  if (semantics.WeightOnlySums() == WeightOnly::kFloat) attributes += ", float_sums";
  attributes += internal::ArithmeticText(semantics);
  const bool has_state = HasState(config.fwd) || HasState(config.dlhs) || HasState(config.drhs);
  for (const Side side : internal::kSides) {
    if (!has_state || impl.mode(side) == QuantMode::kTrain) continue;
    absl::StrAppend(&attributes, ", ", side == Side::kLhs ? "lhs" : "rhs", " in ", ToString(impl.mode(side)));
  }
  return std::make_shared<const Impl>(std::move(impl));
}

absl::StatusOr<std::shared_ptr<const AqtDot::Impl>> AqtDot::Impl::MakeFloat(const Aval& lhs, const Aval& rhs,
                                                                            const PlannedDims& dims) {
  if (std::holds_alternative<DotDims>(dims)) return Make({}, lhs, rhs, dims, {}, {});
  AQT_ASSIGN_OR_RETURN(Plan plan, MakePlan({}, lhs, rhs, dims, {}));
  return std::make_shared<const Impl>(
      Impl{std::move(plan), dims, DotGeneralConfig(), Modes(), std::string(KindOf(dims)), DescribeDims(dims)});
}

absl::StatusOr<AqtDot> AqtDot::Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                    const PlannedDims& dims, const Semantics& semantics, const Modes& modes,
                                    PlanPasses passes) {
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> impl, Impl::Make(config, lhs, rhs, dims, semantics, modes, passes));
  return AqtDot(std::move(impl));
}

absl::StatusOr<AqtDot> AqtDot::MakeFloat(const Aval& lhs, const Aval& rhs, const PlannedDims& dims) {
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const Impl> impl, Impl::MakeFloat(lhs, rhs, dims));
  return AqtDot(std::move(impl));
}

const PlannedContraction& AqtDot::plan() const { return impl_->plan(); }
const std::string& AqtDot::name() const { return impl_->name; }

AqtDot::Result AqtDot::ApplyWithState(const Arguments& arguments, const SourceLine& where) const {
  internal::OperandOrder order;
  std::vector<Value> operands;
  for (const Side side : internal::kSides) {
    const Operand& operand = side == Side::kLhs ? arguments.lhs : arguments.rhs;
    order.has_scale[static_cast<int>(side)] = operand.scale.has_value();
    order.quantized[static_cast<int>(side)] = operand.scale.has_value() && operand.is_quantized;
    operands.push_back(operand.value);
    if (operand.scale.has_value()) operands.push_back(*operand.scale);
  }
  order.has_groups = arguments.group_sizes.has_value();
  if (order.has_groups) operands.push_back(*arguments.group_sizes);
  const State& state = arguments.state;
  const absl::Span<const StateSlot> slots = plan().forward_state();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (order.has_scale[static_cast<int>(slots[i].side)]) continue;
    order.forward_state.push_back(i);
    if (i < state.forward.size()) operands.push_back(state.forward[i]);
  }
  order.backward_state = state.backward.size();
  operands.insert(operands.end(), state.backward.begin(), state.backward.end());
  order.has_key = arguments.key.has_value();
  if (order.has_key) operands.push_back(*arguments.key);
  Result result{Value(), std::vector<std::optional<Value>>(slots.size())};
  const auto refuse = [&](absl::string_view message) {
    result.out = Refuse(absl::FailedPreconditionError(message), impl_->name, operands, where);
    return result;
  };
  if (order.has_groups != (impl_->ragged() != nullptr)) {
    result.out = Refuse(absl::InvalidArgumentError(order.has_groups ? "has no groups of rows; leave out group_sizes"
                                                                    : "has groups of rows; give it group_sizes"),
                        impl_->name, operands, where);
    return result;
  }
  if (ForwardNeedsKey() && !order.has_key) {
    return refuse("rounds stochastically and draws random numbers; give it a key");
  }
  if (!order.forward_state.empty() && state.forward.size() != slots.size()) {
    return refuse("has a calibration with state; QuantizedDot gives it its statistics");
  }
  const CompositeOp op{
      internal::MakeForwardOp(impl_, order, /*with_residuals=*/false, state.backward_slots, state.name)};
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
  // A side that draws no random numbers does not depend on the key of the other one, so Fold can compute it.
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

Value AqtDotGeneral(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const DotDims& dims,
                    const aqt::DotGeneralConfig& config, const std::optional<Value>& key, const Semantics& semantics) {
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
