#ifndef AQT_KERNELS_REDUCE_REDUCE_PARTS_H_
#define AQT_KERNELS_REDUCE_REDUCE_PARTS_H_

// Sums and maxima in the order of reduce.h, for matrices that arrive in parts. The bits are those of Reduce.

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/reduce/reduce.h"

namespace aqt::kernels {

// A dense array viewed as [outer, k, inner], where k is reduced.
struct ReduceExtents {
  int64_t outer = 1, k = 1, inner = 1;
};
// Returns null unless the reduced axes are adjacent. Axes of one element are ignored.
std::optional<ReduceExtents> ReduceExtentsOf(const Shape& shape, absl::Span<const int64_t> axes);

// Whether the functions below support this kind. Dtypes are the arithmetic ones.
bool ReducesParts(ReduceKind kind);

// out[r] = the reduction of row r of a dense matrix. `out` may be x if columns is 1.
void ReduceRows(ReduceKind kind, DType dtype, const void* x, int64_t rows, int64_t columns, void* out);

// Adds part of a row: elements first, first + 1, ... from x. A row that arrives in parts takes StartLanes, AddToRow for
// all of its parts in order, and FinishLanes, each with one column.
void AddToRow(ReduceKind kind, DType dtype, const void* x, int64_t first, int64_t n, void* lanes);

// out[c] = the reduction of column c. The 16 partial results of each column are kept in `lanes`, which has LaneBytes()
// bytes and the alignment of the elements. Call StartLanes, then AddToLanes for all rows in order, then FinishLanes.
int64_t LaneBytes(DType dtype, int64_t columns);
void StartLanes(ReduceKind kind, DType dtype, int64_t columns, void* lanes);
// x: rows first, first + 1, ... of the matrix, `row_stride` elements apart.
void AddToLanes(ReduceKind kind, DType dtype, const void* x, int64_t row_stride, int64_t first, int64_t rows,
                int64_t columns, void* lanes);
void FinishLanes(ReduceKind kind, DType dtype, int64_t columns, void* lanes, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_REDUCE_PARTS_H_
