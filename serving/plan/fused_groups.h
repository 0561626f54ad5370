#ifndef AQT_SERVING_PLAN_FUSED_GROUPS_H_
#define AQT_SERVING_PLAN_FUSED_GROUPS_H_

// Modules that servers merge into one when they load a model: q, k and v; gate and up; all parts of all experts of a
// layer. Such a group needs one scheme as a whole, or none.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "serving/families/module_roles.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {

// Finds the groups whose modules do not all have the same scheme, and does what the rules that quantize them say
// (on_split_group): changes the decisions, or returns a warning for each group. Groups with names that differ only in
// numbers (layers) share one. InvalidArgument or Unimplemented if a scheme that is extended to a part does not fit it.
absl::StatusOr<std::vector<std::string>> SettleFusedGroups(const ModuleRoles& roles, std::vector<TensorPlan>& tensors);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_FUSED_GROUPS_H_
