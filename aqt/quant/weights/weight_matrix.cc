#include "aqt/quant/weights/weight_matrix.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"

namespace aqt::internal {

absl::StatusOr<kernels::FloatMatrix> WeightMatrix(absl::string_view operation, const ArrayRef& w) {
  if (w.shape.rank() != 2 || w.shape.num_elements() == 0 ||
      (w.dtype != DType::kF32 && w.dtype != DType::kBF16 && w.dtype != DType::kF16)) {
    return absl::InvalidArgumentError(absl::StrCat(operation, ": the weight is ", w.aval().ToString(),
                                                   "; expected a matrix [o,i] of f32, bf16 or f16 with elements"));
  }
  return kernels::FloatMatrix{w.data, w.dtype, w.shape[0], w.shape[1], w.strides[0], w.strides[1]};
}

kernels::FloatMatrix RowsOf(const kernels::FloatMatrix& x, int64_t first, int64_t n) {
  kernels::FloatMatrix rows = x;
  rows.data = static_cast<const char*>(x.data) + first * x.row_stride * SizeOf(x.dtype);
  rows.rows = n;
  return rows;
}

void ForEachRowBlock(Executor* executor, int64_t rows, int64_t cols, int64_t multiple,
                     absl::FunctionRef<void(int64_t, int64_t)> f) {
  if (executor == nullptr || executor->NumThreads() == 1) return f(0, rows);
  // 2^17 elements are tens of microseconds of work, far above the cost of handing out a block.
  const int64_t least = std::max<int64_t>(1, (int64_t{1} << 17) / cols);
  const int64_t block = RoundUp(least, multiple);
  executor->ParallelFor(CeilDiv(rows, block), [&](int64_t b) {
    const int64_t first = b * block;
    f(first, std::min(block, rows - first));
  });
}

}  // namespace aqt::internal
