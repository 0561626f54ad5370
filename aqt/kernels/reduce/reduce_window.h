#ifndef AQT_KERNELS_REDUCE_REDUCE_WINDOW_H_
#define AQT_KERNELS_REDUCE_REDUCE_WINDOW_H_

// Sums, maxima and minima over windows, for pooling. Plain C++ with the same bits on every machine.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/reduce/reduce_kind.h"  // IWYU pragma: export

namespace aqt::kernels {

// One axis: window j covers `window` elements starting at j * stride - low. Elements outside the array are left out.
struct WindowAxis {
  int64_t size = 0;  // of x
  int64_t window = 1;
  int64_t stride = 1;
  int64_t low = 0;
  int64_t windows = 0;  // number of windows
  bool operator==(const WindowAxis&) const = default;
};

// out[j...] = the sum, maximum, minimum or product of window j... of the dense array x; `out` is dense. The elements of
// a window are taken row-major; a sum starts at +0, a product at 1. f16 and bf16 are computed in f32 and rounded once;
// s32 wraps. An empty window gives 0, -infinity (-2^31 for s32), +infinity (2^31 - 1) or 1. NaN gives NaN; zeros are
// ordered as in elementwise.h. Precondition: IsArithmetic(dtype).
void ReduceWindow(ReduceKind kind, DType dtype, absl::Span<const WindowAxis> axes, const void* x, void* out);

// out[j...] = the row-major index in x of the first maximum (kMax) or minimum (kMin) of window j..., or of the first
// NaN if there is one; 0 for an empty window. x has at most 2^31 elements.
void ArgReduceWindow(ArgKind kind, DType dtype, absl::Span<const WindowAxis> axes, const void* x, int32_t* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_REDUCE_WINDOW_H_
