#ifndef AQT_KERNELS_REDUCE_REDUCE_H_
#define AQT_KERNELS_REDUCE_REDUCE_H_

// Sums, maxima, minima and products over axes. All targets give the same bits.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/reduce/reduce_kind.h"  // IWYU pragma: export

namespace aqt::kernels {

// out[kept indices] = the sum, maximum, minimum or product over the reduced axes of x. `out` is dense, with the kept
// axes in order and x's dtype.
//
// The order of a sum is fixed and depends only on K. The K reduced elements are numbered row-major. Element k is added
// to partial sum k mod 16 (each starts at +0), in the order of k. Then the 16 partial sums are added as a tree: s[j] +=
// s[j + 8] for j < 8, and likewise with + 4, + 2, + 1. Products work likewise, from 1. f16 and bf16 are computed in f32
// and rounded once, to nearest even; s32 wraps. Over no elements, a sum is 0, a product 1, a maximum -Inf (-2^31 for
// s32) and a minimum +Inf (2^31 - 1). A NaN gives NaN; zeros are ordered as in elementwise.h.
//
// Precondition: IsArithmetic(x.dtype); `axes` are distinct and in 0 .. rank-1 (their order does not matter).
void Reduce(ReduceKind kind, const ArrayRef& x, absl::Span<const int64_t> axes, void* out,
            Target target = BestTarget());

// out[o, i] = the index k of the first maximum or minimum of x[o, k, i], or of the first NaN if there is one, for a
// dense array [outer, n, inner] with 1 <= n < 2^31. Precondition: IsArithmetic(dtype).
void ArgReduce(ArgKind kind, DType dtype, const void* x, int64_t outer, int64_t n, int64_t inner, int32_t* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_REDUCE_H_
