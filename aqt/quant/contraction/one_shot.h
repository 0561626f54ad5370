#ifndef AQT_QUANT_CONTRACTION_ONE_SHOT_H_
#define AQT_QUANT_CONTRACTION_ONE_SHOT_H_

// Plans that run once and allocate their results. Internal.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt::internal {

inline PlanOptions WithPasses(PlanOptions options, PlanPasses passes) {
  options.passes = passes;
  return options;
}

// forward(plan, out, residuals or null)
template <class Plan, class Forward>
absl::StatusOr<Array> RunOnce(const absl::StatusOr<Plan>& plan, Forward forward) {
  if (!plan.ok()) return plan.status();
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan->out_aval());
  AQT_RETURN_IF_ERROR(forward(*plan, out.ref(), static_cast<Residuals*>(nullptr)));
  return std::move(out).Build();
}

// backward(plan, residuals, dlhs, drhs)
template <class Plan, class Forward, class Backward>
absl::StatusOr<DotGeneralGradients> RunOnceWithGradients(const absl::StatusOr<Plan>& plan, Forward forward,
                                                         Backward backward) {
  if (!plan.ok()) return plan.status();
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan->out_aval());
  ArrayBuilder dlhs = ArrayBuilder::ForOverwrite(plan->lhs_aval()), drhs = ArrayBuilder::ForOverwrite(plan->rhs_aval());
  Residuals residuals(Residuals::Operands::kBorrow);
  AQT_RETURN_IF_ERROR(forward(*plan, out.ref(), &residuals));
  AQT_RETURN_IF_ERROR(backward(*plan, residuals, dlhs.ref(), drhs.ref()));
  return DotGeneralGradients{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ONE_SHOT_H_
