#ifndef AQT_IO_CONTAINERS_STRIDED_H_
#define AQT_IO_CONTAINERS_STRIDED_H_

// Private to this folder: tensors whose elements are not in row-major order in their file.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"

namespace aqt::io {

// Element (i, j, ..) is at element i * strides[0] + j * strides[1] + .. of the file.
struct StridedView {
  int64_t element_bytes = 1;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;  // not negative
};

// The view without extents of 1, and with axes merged that are one in memory.
StridedView Simplify(const Shape& shape, const std::vector<int64_t>& strides, int64_t element_bytes);

// Whether the elements are in row-major order without gaps. Only for simplified views.
bool IsRowMajor(const StridedView& view);

// The strides of column-major order.
std::vector<int64_t> ColumnMajorStrides(const Shape& shape);

// Fills `dst` with elements [first, first + n) in row-major order, of a simplified view. Reads runs of neighbours.
absl::Status ReadStrided(const RandomAccessFile& file, const StridedView& view, int64_t first, int64_t n, uint8_t* dst);

}  // namespace aqt::io

#endif  // AQT_IO_CONTAINERS_STRIDED_H_
