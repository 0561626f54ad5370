#ifndef AQT_QUANT_WEIGHTS_WEIGHT_MATRIX_H_
#define AQT_QUANT_WEIGHTS_WEIGHT_MATRIX_H_

// Shared by the weight rules (compressed_tensors.h, aqt_weight.h). Internal to this package.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/executor.h"
#include "aqt/kernels/quantize/absmax.h"

namespace aqt::internal {

// w [o, i] as the kernels see it. InvalidArgument, naming `operation`, unless w is a nonempty matrix of f32, bf16 or
// f16.
absl::StatusOr<kernels::FloatMatrix> WeightMatrix(absl::string_view operation, const ArrayRef& w);

// Rows [first, first + n) of x.
kernels::FloatMatrix RowsOf(const kernels::FloatMatrix& x, int64_t first, int64_t n);

// Calls f(first, n) for blocks of rows that cover [0, rows), in parallel when there is an executor. Each block begins
// at a multiple of `multiple`.
void ForEachRowBlock(Executor* executor, int64_t rows, int64_t cols, int64_t multiple,
                     absl::FunctionRef<void(int64_t, int64_t)> f);

}  // namespace aqt::internal

#endif  // AQT_QUANT_WEIGHTS_WEIGHT_MATRIX_H_
