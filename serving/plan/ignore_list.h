#ifndef AQT_SERVING_PLAN_IGNORE_LIST_H_
#define AQT_SERVING_PLAN_IGNORE_LIST_H_

// The entries of `ignore`: what a loader must not take for quantized. Loaders do not always ask by the names of the
// checkpoint: they ask for single experts where it has all in one tensor, for gate_proj where it has w1, and they call
// the parts of a model with several parts by other prefixes. Where names differ, an entry is a pattern.

#include <string>
#include <vector>

#include "serving/families/module_roles.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {

struct IgnoreOptions {
  // Only what a rule asked for and could not be quantized.
  bool only_left_out = false;
  // Heads that are not stored, as they share the tensor of the embedding.
  std::vector<std::string> heads;
};

// In the order of the checkpoint; no entry matches a module that is quantized, and none is the parent of one.
std::vector<std::string> IgnoreEntries(const ModuleRoles& roles, const std::vector<TensorPlan>& tensors,
                                       const IgnoreOptions& options);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_IGNORE_LIST_H_
