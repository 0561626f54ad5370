#include "aqt/core/shape.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/check.h"

namespace aqt {

int64_t Shape::num_elements() const {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;
  int64_t n = 1;
  bool overflow = false, empty = false;
  for (const int64_t extent : extents_) {
    overflow |= __builtin_mul_overflow(n, extent, &n);
    empty |= extent == 0;
  }
  if (empty) return 0;
  AQT_CHECK((!overflow && n <= kMost) && "num_elements: see CheckShape");
  return n;
}

std::string Shape::ToString() const { return absl::StrCat("[", absl::StrJoin(extents_, ","), "]"); }

std::ostream& operator<<(std::ostream& os, const Shape& shape) { return os << shape.ToString(); }

Strides DenseStrides(const Shape& shape) {
  Strides strides(shape.rank());
  uint64_t stride = 1;  // may wrap around, but only if the array is empty
  for (int64_t axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[axis]);
  }
  return strides;
}

absl::StatusOr<int64_t> CheckedNumElements(absl::Span<const int64_t> extents, int64_t bytes_per_element) {
  bool empty = false;
  for (const int64_t extent : extents) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(extents, ","), "] has a negative extent"));
    }
    empty |= extent == 0;
  }
  if (empty) return 0;
  int64_t n = 1;
  for (const int64_t extent : extents) {
    if (n > std::numeric_limits<int64_t>::max() / bytes_per_element / extent) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(extents, ","), "] has more elements than fit into memory"));
    }
    n *= extent;
  }
  return n;
}

absl::StatusOr<Axes> NormalizeAxes(absl::Span<const int64_t> axes, int64_t rank) {
  Axes result;
  for (const int64_t axis : axes) {
    if (axis < -rank || axis >= rank) {
      return absl::InvalidArgumentError(absl::StrCat("axis ", axis, " is out of range for rank ", rank, " (", -rank,
                                                     " to ", rank - 1, " are allowed)"));
    }
    const int64_t normal = axis < 0 ? axis + rank : axis;
    for (const int64_t seen : result) {
      if (seen == normal) {
        return absl::InvalidArgumentError(
            absl::StrCat("axis ", normal, " is named twice in [", absl::StrJoin(axes, ","), "]"));
      }
    }
    result.push_back(normal);
  }
  return result;
}

}  // namespace aqt
