#include "serving/plan/global_scales.h"

#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "serving/families/module_name.h"

namespace aqt::serving {
namespace {

std::string SetOf(const ModuleRoles& roles, absl::string_view module) {
  const absl::string_view last = LastPartOf(module), parent = ParentOf(module);
  const bool in_expert = !ExpertsOf(module).empty();
  for (const std::vector<std::string>& parts : roles.fused()) {
    if (!absl::c_linear_search(parts, last)) continue;
    if (in_expert && last != "w1" && last != "w3") continue;
    return absl::StrCat(parent, parent.empty() ? "" : ".", "(", absl::StrJoin(parts, ", "), ")");
  }
  return std::string(module);
}

}  // namespace

void FindScaleSets(const ModuleRoles& roles, std::vector<TensorPlan>& tensors) {
  for (TensorPlan& tensor : tensors) {
    if (tensor.quantized() && tensor.decision.scheme->weights.scale_type == ScaleType::kE4M3) {
      tensor.scale_set = SetOf(roles, tensor.module());
    }
  }
}

}  // namespace aqt::serving
