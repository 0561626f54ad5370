#ifndef AQT_COLLECTIVE_MESH_H_
#define AQT_COLLECTIVE_MESH_H_

// A grid of processes with named axes, such as data 4 x model 2, and the groups of processes that differ only along
// some axes. The last axis is the fastest: process r of data 4 x model 2 has position r / 2 along data and r % 2 along
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

// One axis of a Mesh: its name and extent.
struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// A row-major grid of processes with named axes.
class Mesh {
 public:
  // InvalidArgument unless there is at least one axis, names are unique, nonempty and without commas, sizes are at
  // least 1, and their product is below 2^31.
  static absl::StatusOr<Mesh> Make(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int size() const;  // number of processes
  bool HasAxis(absl::string_view name) const;
  // The extent of an axis, and the position of a process along it; 1 and 0 for an unknown name.
  int SizeOf(absl::string_view name) const;
  int PositionOf(int rank, absl::string_view name) const;
  // The groups of ranks that differ only in their positions along `names`. Ranks ascend within a group; groups are
  // ordered by their first rank. Without names, each rank is a group of one.
  std::vector<std::vector<int>> Groups(absl::Span<const std::string> names) const;
  std::string ToString() const;  // "data 4 x model 2"

 private:
  explicit Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {}

  std::vector<MeshAxis> axes_;
};

// One process's groups in a mesh: one per axis and one per combination of axes.
class MeshGroups {
 public:
  // Called by all processes of `collective`, which must outlive the object. InvalidArgument if the mesh and
  // `collective` differ in size, or if the mesh has more than 6 axes.
  static absl::StatusOr<MeshGroups> Make(const Mesh& mesh, Collective& collective);

  // The group of this process along `axes`: "data", or "data,model" in the order of the mesh. Null if the mesh has no
  // such axes.
  Collective* Along(absl::string_view axes) const;

 private:
  std::map<std::string, std::unique_ptr<Collective>, std::less<>> groups_;
};

}  // namespace aqt

#endif  // AQT_COLLECTIVE_MESH_H_
