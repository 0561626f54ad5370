#ifndef AQT_KERNELS_REDUCE_REDUCE_WINDOW_H_
#define AQT_KERNELS_REDUCE_REDUCE_WINDOW_H_

// Sums, maxima and minima over windows, as pooling needs them. Plain C++ with the same bits on every machine.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/reduce/reduce_kind.h"  // IWYU pragma: export

namespace aqt::kernels {

// One axis: window j covers the elements j * stride - low, ..., window of them; those that do not exist are left out.
struct WindowAxis {
  int64_t size = 0;  // of x
  int64_t window = 1;
  int64_t stride = 1;
  int64_t low = 0;
  int64_t windows = 0;  // how many
  bool operator==(const WindowAxis&) const = default;
};

// out[j...] = the sum, maximum, minimum or product of window j... of the dense array x; `out` is dense. The elements of
// a window are taken row-major; a sum starts with +0, a product with 1. f16 and bf16 are computed in f32 and rounded
// once; s32 wraps. No elements give 0, -infinity (-2^31 for s32), +infinity (2^31 - 1) or 1. NaN gives NaN; zeros are
// ordered as in elementwise.h. Precondition: IsArithmetic(dtype).
void ReduceWindow(ReduceKind kind, DType dtype, absl::Span<const WindowAxis> axes, const void* x, void* out);

// out[j...] = the row-major number in x of the first maximum (kMax) or minimum (kMin) of window j...; the first NaN if
// there is one; 0 for an empty window. x has at most 2^31 elements.
void ArgReduceWindow(ArgKind kind, DType dtype, absl::Span<const WindowAxis> axes, const void* x, int32_t* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_REDUCE_WINDOW_H_
