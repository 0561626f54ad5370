#ifndef AQT_QUANT_CONTRACTION_ENGINE_PLANNED_CONTRACTION_IMPL_H_
#define AQT_QUANT_CONTRACTION_ENGINE_PLANNED_CONTRACTION_IMPL_H_

// The implementation of a plan. Internal.

#include <utility>

#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/planned_contraction.h"

namespace aqt {

struct PlannedContraction::Impl : internal::ContractionPlan {
  explicit Impl(internal::ContractionPlan plan) : internal::ContractionPlan(std::move(plan)) {}
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_ENGINE_PLANNED_CONTRACTION_IMPL_H_
