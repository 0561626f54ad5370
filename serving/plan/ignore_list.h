#ifndef AQT_SERVING_PLAN_IGNORE_LIST_H_
#define AQT_SERVING_PLAN_IGNORE_LIST_H_

// The entries of `ignore`: modules that a loader must not treat as quantized. Loaders do not always use the names of
// the checkpoint: they ask for single experts where it stores all in one tensor, for gate_proj where it has w1, and
// they use other prefixes for the parts of a model with several parts. Where names differ, an entry is a pattern.

#include <string>
#include <vector>

#include "serving/families/module_roles.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {

struct IgnoreOptions {
  // Only modules that a rule asked for and that could not be quantized.
  bool only_left_out = false;
  // Also embeddings: targets may be of their class.
  bool embeddings = false;
  // Heads that are not stored because they share the embedding's tensor.
  std::vector<std::string> heads;
};

// In the order of the checkpoint. No entry matches a quantized module, and no entry is the parent of one.
std::vector<std::string> IgnoreEntries(const ModuleRoles& roles, const std::vector<TensorPlan>& tensors,
                                       const IgnoreOptions& options);

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_IGNORE_LIST_H_
