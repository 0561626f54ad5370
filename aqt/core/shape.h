#ifndef AQT_CORE_SHAPE_H_
#define AQT_CORE_SHAPE_H_

// The extents of a dense row-major array, and lists of axes and strides.

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aqt {

// Shapes up to rank 8 need no allocation; higher ranks work too.
inline constexpr int kInlineRank = 8;
using Axes = absl::InlinedVector<int64_t, kInlineRank>;     // axis numbers, 0 .. rank-1
using Strides = absl::InlinedVector<int64_t, kInlineRank>;  // in elements

// The extents of an array.
class Shape {
 public:
  Shape() = default;  // rank 0, one element
  Shape(std::initializer_list<int64_t> extents) : extents_(extents) {}
  explicit Shape(absl::Span<const int64_t> extents) : extents_(extents.begin(), extents.end()) {}

  int64_t rank() const { return static_cast<int64_t>(extents_.size()); }
  int64_t operator[](int64_t axis) const { return extents_[axis]; }
  int64_t& operator[](int64_t axis) { return extents_[axis]; }
  absl::Span<const int64_t> extents() const { return extents_; }
  auto begin() const { return extents_.begin(); }
  auto end() const { return extents_.end(); }
  void push_back(int64_t extent) { extents_.push_back(extent); }

  // The product of the extents; 1 for rank 0. Aborts on overflow: see CheckShape.
  int64_t num_elements() const;
  // "[2,3]"; "[]" for rank 0.
  std::string ToString() const;

  bool operator==(const Shape& other) const { return extents_ == other.extents_; }

 private:
  absl::InlinedVector<int64_t, kInlineRank> extents_;
};

std::ostream& operator<<(std::ostream& os, const Shape& shape);

// The strides of a dense row-major array.
Strides DenseStrides(const Shape& shape);

// The number of elements. InvalidArgument if an extent is negative or elements * `bytes_per_element` exceeds 2^63 - 1.
absl::StatusOr<int64_t> CheckedNumElements(absl::Span<const int64_t> extents, int64_t bytes_per_element = 1);

// Maps axes in -rank .. rank-1 to 0 .. rank-1. InvalidArgument if an axis is out of range or named twice.
absl::StatusOr<Axes> NormalizeAxes(absl::Span<const int64_t> axes, int64_t rank);

}  // namespace aqt

#endif  // AQT_CORE_SHAPE_H_
