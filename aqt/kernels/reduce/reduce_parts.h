#ifndef AQT_KERNELS_REDUCE_REDUCE_PARTS_H_
#define AQT_KERNELS_REDUCE_REDUCE_PARTS_H_

// Sums and maxima in the order of reduce.h, for matrices that come a part at a time. The bits are those of Reduce.

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/reduce/reduce.h"

namespace aqt::kernels {

// A dense array as [outer, k, inner], of which k is reduced.
struct ReduceExtents {
  int64_t outer = 1, k = 1, inner = 1;
};
// Null unless the reduced axes are neighbours. Axes of one element do not count.
std::optional<ReduceExtents> ReduceExtentsOf(const Shape& shape, absl::Span<const int64_t> axes);

// Whether the functions below take this kind. Dtypes are the arithmetic ones.
bool ReducesParts(ReduceKind kind);

// out[r] = over the elements of row r, for a dense matrix. `out` may be x if columns is 1.
void ReduceRows(ReduceKind kind, DType dtype, const void* x, int64_t rows, int64_t columns, void* out);

// A row that comes in parts: StartLanes, AddToRow for all of its parts in their order, and FinishLanes, each with one
// column. x: elements first, first + 1, ... of the row.
void AddToRow(ReduceKind kind, DType dtype, const void* x, int64_t first, int64_t n, void* lanes);

// out[c] = over the elements of column c. The 16 partial results of each column are kept in `lanes`, LaneBytes() bytes,
// aligned like the elements: StartLanes, then AddToLanes for all rows in their order, then FinishLanes.
int64_t LaneBytes(DType dtype, int64_t columns);
void StartLanes(ReduceKind kind, DType dtype, int64_t columns, void* lanes);
// x: rows first, first + 1, ... of the matrix, each `row_stride` elements after the one before.
void AddToLanes(ReduceKind kind, DType dtype, const void* x, int64_t row_stride, int64_t first, int64_t rows,
                int64_t columns, void* lanes);
void FinishLanes(ReduceKind kind, DType dtype, int64_t columns, void* lanes, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_REDUCE_PARTS_H_
