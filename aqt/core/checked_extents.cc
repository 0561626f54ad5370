#include "aqt/core/checked_extents.h"

#include "absl/strings/str_cat.h"

namespace aqt {

absl::Status CheckShape(const Shape& shape) {
  CheckedInt bytes = 8;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", shape.ToString(), " has a negative extent"));
    }
    if (extent > 0) bytes = bytes * extent;
  }
  if (bytes.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("shape ", shape.ToString(), " has more elements than fit into memory"));
}

}  // namespace aqt
