#include "aqt/quant/contraction/dot_general.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"
#include "aqt/quant/contraction/one_shot.h"
#include "aqt/quant/numerics/arith.h"

namespace aqt {
namespace {

absl::Status CheckAvals(const Aval& lhs, const Aval& rhs) {
  if (lhs.dtype != rhs.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("DotGeneral: lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(),
                                                   "; both must have one dtype: cast one of them"));
  }
  if (!internal::IsArithmeticFloat(lhs.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotGeneral: operands are ", ToString(lhs.dtype), ", expected f32, bf16 or f16"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DotGeneralPlan> DotGeneralPlan::Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                                    const DotDims& dims, const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(CheckAvals(lhs, rhs));
  AQT_RETURN_IF_ERROR(ValidateDotDims(dims, lhs.shape, rhs.shape));
  internal::ContractionShape shape{.name = "DotGeneral",
                                   .lhs = lhs,
                                   .rhs = rhs,
                                   .out = {lhs.dtype, DotOutputShape(dims, lhs.shape, rhs.shape)},
                                   .dims = dims};
  AQT_ASSIGN_OR_RETURN(internal::ContractionPlan plan,
                       internal::ContractionPlan::Make(config, std::move(shape), options));
  return DotGeneralPlan(std::make_shared<const Impl>(std::move(plan)));
}

const DotDims& DotGeneralPlan::dims() const { return impl().shape().dims; }
const DotGeneralConfig& DotGeneralPlan::config() const { return impl().config(); }

absl::Status DotGeneralPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context,
                                     const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                     const StateArrays& state) const {
  return impl().Forward(lhs, rhs, /*group_sizes=*/{}, context, out, residuals, runtime, state);
}

absl::Status DotGeneralPlan::Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                                      const std::optional<MutableArrayRef>& dlhs,
                                      const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                      const StateArrays& state) const {
  return impl().Backward(g, residuals, /*group_sizes=*/{}, context, dlhs, drhs, runtime, state);
}

absl::StatusOr<Array> QuantizedDotGeneral(const DotGeneralConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                          const DotDims& dims, const Context& context, const PlanOptions& options,
                                          const Runtime& runtime) {
  return internal::RunOnce(DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                                                internal::WithPasses(options, PlanPasses::kForwardOnly)),
                           [&](const DotGeneralPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
                             return plan.Forward(lhs, rhs, context, out, residuals, runtime);
                           });
}

absl::StatusOr<DotGeneralGradients> QuantizedDotGeneralWithGradients(const DotGeneralConfig& config,
                                                                     const ArrayRef& lhs, const ArrayRef& rhs,
                                                                     const ArrayRef& g, const DotDims& dims,
                                                                     const Context& context, const PlanOptions& options,
                                                                     const Runtime& runtime) {
  return internal::RunOnceWithGradients(
      DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                           internal::WithPasses(options, PlanPasses::kForwardAndBackward)),
      [&](const DotGeneralPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
        return plan.Forward(lhs, rhs, context, out, residuals, runtime);
      },
      [&](const DotGeneralPlan& plan, const Residuals& residuals, const MutableArrayRef& dlhs,
          const MutableArrayRef& drhs) { return plan.Backward(g, residuals, context, dlhs, drhs, runtime); });
}

}  // namespace aqt
