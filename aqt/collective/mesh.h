#ifndef AQT_COLLECTIVE_MESH_H_
#define AQT_COLLECTIVE_MESH_H_

// Processes in a grid with named axes, such as data 4 x model 2, and the groups of those that differ along some axes
// only. The last axis is the fastest: process r of data 4 x model 2 has the position r / 2 along data and r % 2 along
// model.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/collective/collective.h"

namespace aqt {

struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class Mesh {
 public:
  // InvalidArgument unless there is an axis, names are different, without a comma and not empty, sizes are 1 or more,
  // and their product is below 2^31.
  static absl::StatusOr<Mesh> Make(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int size() const;  // the number of processes
  bool HasAxis(absl::string_view name) const;
  // The extent of the axis, and the position of a process along it. 1 and 0 for a name that no axis has.
  int SizeOf(absl::string_view name) const;
  int PositionOf(int rank, absl::string_view name) const;
  // The groups of ranks that differ in their positions along `names` only; each group ascends, and groups come in the
  // order of their first ranks. Groups of one for no names.
  std::vector<std::vector<int>> Groups(absl::Span<const std::string> names) const;
  std::string ToString() const;  // "data 4 x model 2"

 private:
  explicit Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}

  std::vector<MeshAxis> axes_;
};

// One process's place in the groups of a mesh: one for each axis, and for each choice of several.
class MeshGroups {
 public:
  // Called by all processes of `collective`, which must outlive the object. InvalidArgument if the mesh has another
  // number of processes, or more than 6 axes.
  static absl::StatusOr<MeshGroups> Make(const Mesh& mesh, Collective& collective);

  // The group of this process along the axes, such as "data", or "data,model" in the order of the mesh. Null if the
  // mesh has no such axes.
  Collective* Along(absl::string_view axes) const;

 private:
  std::map<std::string, std::unique_ptr<Collective>, std::less<>> groups_;
};

}  // namespace aqt

#endif  // AQT_COLLECTIVE_MESH_H_
