#ifndef AQT_SERVING_CONVERT_PLAN_INPUT_H_
#define AQT_SERVING_CONVERT_PLAN_INPUT_H_

// The plan for an input, which decides whether its experts are split.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/convert/model_input.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"

namespace aqt::serving {

// MakePlan for the tensors that the recipe's `experts` asks for, which are then input.tensors(). With Experts::kAuto,
// experts are split if this quantizes one of them.
absl::StatusOr<Plan> PlanInput(ModelInput& input, const Recipe& recipe, CheckpointPlanOptions options);

// Explain for these tensors. For a tensor that is split, the names of its parts.
absl::StatusOr<Explanation> ExplainInput(ModelInput& input, const Recipe& recipe, absl::string_view tensor);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_PLAN_INPUT_H_
