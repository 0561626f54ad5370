#ifndef AQT_SERVING_PLAN_FUSED_GROUPS_H_
#define AQT_SERVING_PLAN_FUSED_GROUPS_H_

// Modules that servers merge when they load a model: q, k and v; gate and up; all parts of all experts of a layer. All
// modules of a group need the same scheme, or none.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/families/module_roles.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {

// Finds the groups whose modules do not all have the same scheme, and follows on_split_group of the rules that quantize
// them: changes the decisions, or returns a warning for each group. Groups whose names differ only in numbers (layers)
// share one. InvalidArgument or Unimplemented if a scheme that is extended to a part does not suit it.
absl::StatusOr<std::vector<std::string>> SettleFusedGroups(const ModuleRoles& roles, std::vector<TensorPlan>& tensors);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_FUSED_GROUPS_H_
