#include "aqt/ops/fp8/fp8_sharding.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

// The mesh axis for a logical axis, other than `taken`.
std::string MeshAxisOf(absl::Span<const AxisRule> rules, const std::string& logical, const std::string& taken) {
  for (const AxisRule& rule : rules) {
    if (rule.logical == logical && (rule.mesh.empty() || rule.mesh != taken)) return rule.mesh;
  }
  return "";
}

}  // namespace

absl::StatusOr<MatrixLayout> LayoutOf(absl::Span<const AxisRule> rules, const Mesh& mesh,
                                      const std::array<std::string, 2>& logical_axes) {
  for (const AxisRule& rule : rules) {
    if (rule.mesh.empty() || mesh.HasAxis(rule.mesh)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the rule \"", rule.logical, "\" -> \"", rule.mesh,
                                                   "\" names an axis that the mesh ", mesh.ToString(),
                                                   " has not; name one of its axes, or none for a whole axis"));
  }
  MatrixLayout layout;
  layout.rows = MeshAxisOf(rules, logical_axes[0], "");
  layout.columns = MeshAxisOf(rules, logical_axes[1], layout.rows);
  return layout;
}

std::string Fp8DotSharding::AxesOf(const MatrixLayout& layout) const {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == layout.rows || axis.name == layout.columns) names.push_back(axis.name);
  }
  return absl::StrJoin(names, ",");
}

absl::StatusOr<Fp8DotSharding> PlanFp8Dot(absl::Span<const AxisRule> rules, const Mesh& mesh,
                                          const std::array<std::string, 2>& x_axes,
                                          const std::array<std::string, 2>& kernel_axes) {
  Fp8DotSharding plan{.mesh = mesh, .x = {}, .kernel = {}, .y = {}, .contracted = ""};
  AQT_ASSIGN_OR_RETURN(plan.x, LayoutOf(rules, mesh, x_axes));
  AQT_ASSIGN_OR_RETURN(plan.kernel, LayoutOf(rules, mesh, kernel_axes));
  plan.y = {plan.x.rows, plan.kernel.columns == plan.x.rows ? "" : plan.kernel.columns};
  for (const std::string& axis : {plan.x.columns, plan.kernel.rows}) {
    const bool divides_y = axis == plan.y.rows || axis == plan.y.columns;
    if (plan.contracted.empty() && !divides_y) plan.contracted = axis;
  }
  return plan;
}

}  // namespace aqt
