#include "aqt/collective/mesh.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

absl::Status CheckAxes(const std::vector<MeshAxis>& axes) {
  if (axes.empty()) return absl::InvalidArgumentError("a mesh without axes; expected one or more, such as data 4");
  int64_t size = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    size *= axis.size;
    const auto same = [&](const MeshAxis& other) { return other.name == axis.name; };
    if (axis.name.empty() || axis.name.find(',') != std::string::npos || axis.size < 1 ||
        size > std::numeric_limits<int>::max() || std::any_of(axes.begin(), axes.begin() + i, same)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the mesh has the axis \"", axis.name, "\" of ", axis.size,
                       " processes; expected different names without commas, sizes of 1 or more, and fewer than 2^31 "
                       "processes in all"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Mesh> Mesh::Make(std::vector<MeshAxis> axes) {
  AQT_RETURN_IF_ERROR(CheckAxes(axes));
  return Mesh(std::move(axes));
}

int Mesh::size() const {
  int size = 1;
  for (const MeshAxis& axis : axes_) size *= axis.size;
  return size;
}

bool Mesh::HasAxis(absl::string_view name) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const MeshAxis& axis) { return axis.name == name; });
}

int Mesh::SizeOf(absl::string_view name) const {
  for (const MeshAxis& axis : axes_) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

int Mesh::PositionOf(int rank, absl::string_view name) const {
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
    if (axis->name == name) return rank % axis->size;
    rank /= axis->size;
  }
  return 0;
}

std::vector<std::vector<int>> Mesh::Groups(absl::Span<const std::string> names) const {
  std::map<std::vector<int>, std::vector<int>> groups;  // by the positions along the other axes
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<int> positions;
    for (const MeshAxis& axis : axes_) {
      if (std::find(names.begin(), names.end(), axis.name) == names.end()) {
        positions.push_back(PositionOf(rank, axis.name));
      }
    }
    groups[positions].push_back(rank);
  }
  std::vector<std::vector<int>> result;
  for (auto& [positions, ranks] : groups) result.push_back(std::move(ranks));
  std::sort(result.begin(), result.end());
  return result;
}

std::string Mesh::ToString() const {
  return absl::StrJoin(axes_, " x ",
                       [](std::string* out, const MeshAxis& axis) { absl::StrAppend(out, axis.name, " ", axis.size); });
}

absl::StatusOr<MeshGroups> MeshGroups::Make(const Mesh& mesh, Collective& collective) {
  constexpr size_t kMaxAxes = 6;
  if (mesh.size() != collective.size() || mesh.axes().size() > kMaxAxes) {
    return absl::InvalidArgumentError(absl::StrCat("the mesh is ", mesh.ToString(), ", and there are ",
                                                   collective.size(), " processes; expected as many, and at most ",
                                                   kMaxAxes, " axes"));
  }
  MeshGroups result;
  for (unsigned choice = 1; choice < 1u << mesh.axes().size(); ++choice) {
    std::vector<std::string> names;
    for (size_t i = 0; i < mesh.axes().size(); ++i) {
      if (choice >> i & 1) names.push_back(mesh.axes()[i].name);
    }
    int color = 0;
    const std::vector<std::vector<int>> groups = mesh.Groups(names);
    while (!std::binary_search(groups[color].begin(), groups[color].end(), collective.rank())) ++color;
    AQT_ASSIGN_OR_RETURN(result.groups_[absl::StrJoin(names, ",")], collective.Split(color));
  }
  return result;
}

Collective* MeshGroups::Along(absl::string_view axes) const {
  const auto found = groups_.find(axes);
  return found == groups_.end() ? nullptr : found->second.get();
}

}  // namespace aqt
