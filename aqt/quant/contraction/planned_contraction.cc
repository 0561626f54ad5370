#include "aqt/quant/contraction/planned_contraction.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"

namespace aqt {

const internal::ContractionPlan& internal::EngineOf(const PlannedContraction& plan) { return *plan.impl_; }

const Aval& PlannedContraction::lhs_aval() const { return impl_->shape().lhs; }
const Aval& PlannedContraction::rhs_aval() const { return impl_->shape().rhs; }
const Aval& PlannedContraction::out_aval() const { return impl_->shape().out; }
const PlanOptions& PlannedContraction::options() const { return impl_->options(); }
absl::Span<const ResidualSlot> PlannedContraction::residuals() const { return impl_->residuals(); }
absl::Span<const StateSlot> PlannedContraction::forward_state() const { return impl_->forward_state(); }
absl::Span<const StateSlot> PlannedContraction::backward_state() const { return impl_->backward_state(); }
bool PlannedContraction::ForwardNeedsKey() const { return impl_->ForwardNeedsKey(); }
bool PlannedContraction::BackwardNeedsKey() const { return impl_->BackwardNeedsKey(); }
int64_t PlannedContraction::scratch_bytes() const { return impl_->scratch_bytes(); }

absl::StatusOr<PlannedContraction::QuantizedAvals> PlannedContraction::quantized_avals(Side side) const {
  const internal::SidePlan& plan = impl_->forward().side(side);
  if (!plan.is_quantized()) {
    return absl::InvalidArgumentError(
        absl::StrCat(impl_->shape().name, ": fwd.", internal::Name(side), " is not quantized"));
  }
  return QuantizedAvals{{plan.spec->q_dtype, plan.x.shape}, {plan.spec->scale_dtype, plan.spec->scale_shape}};
}

absl::StatusOr<PreparedOperand> PlannedContraction::Prepare(Side side, const ArrayRef& value, const Context& context,
                                                            const Runtime& runtime) const {
  return impl_->Prepare(side, value, context, runtime);
}

absl::StatusOr<PreparedOperand> PlannedContraction::Prepare(Side side, QTensor qtensor, const Runtime& runtime) const {
  return impl_->Prepare(side, std::move(qtensor), runtime);
}

}  // namespace aqt
