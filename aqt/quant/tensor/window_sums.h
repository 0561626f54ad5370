#ifndef AQT_QUANT_TENSOR_WINDOW_SUMS_H_
#define AQT_QUANT_TENSOR_WINDOW_SUMS_H_

// Sums in f32 in the order of XLA on CPU, as far as that does not depend on the machine (docs/bits.md). An axis of at
// most 32 elements is summed sequentially, several axes in row-major order. A longer axis is cut into windows
// (aqt/kernels/reduce/xla_windows.h), whose sums are added the same way. Internal.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/shape.h"

namespace aqt::internal {

// Scratch memory of WindowSumsInto, in floats.
int64_t WindowSumFloats(const Shape& x, const Shape& groups_shape);

// sums[i], over dense `groups_shape` (extent 1 along axes that are summed): the sum of the terms of x. `terms` turns n
// numbers of x into their terms, in place. The sum of an empty group is 0.
void WindowSumsInto(const ArrayRef& x, const Shape& groups_shape, absl::FunctionRef<void(float* y, int64_t n)> terms,
                    float* work, float* sums);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TENSOR_WINDOW_SUMS_H_
