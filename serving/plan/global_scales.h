#ifndef AQT_SERVING_PLAN_GLOBAL_SCALES_H_
#define AQT_SERVING_PLAN_GLOBAL_SCALES_H_

// Which weights share a global scale (NVFP4). Servers compute q, k and v, or gate and up, as one product, which has one
// global scale. The parts of an expert have scales of their own, except w1 and w3: so does llm-compressor.

#include <vector>

#include "serving/families/module_roles.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {

// Sets TensorPlan::scale_set: "model.layers.0.self_attn.(q_proj, k_proj, v_proj)", or the module's name.
void FindScaleSets(const ModuleRoles& roles, std::vector<TensorPlan>& tensors);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_GLOBAL_SCALES_H_
