#ifndef AQT_KERNELS_REDUCE_H_
#define AQT_KERNELS_REDUCE_H_

// Sums and maxima over axes. Plain C++ with the same bits on every machine.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"

namespace aqt::kernels {

enum class ReduceKind : uint8_t { kSum, kMax };
absl::string_view ToString(ReduceKind kind);  // "sum", "max"

// out[kept indices] = the sum or maximum over the reduced axes of x; `out` is dense, with the kept axes in order and
// x's dtype.
//
// The order of a sum is fixed and depends only on K: the K reduced elements are numbered row-major; element k is added
// to partial sum k mod 16 (each starts at +0), in the order of k; then the 16 partial sums are added as a tree: s[j] +=
// s[j + 8] for j < 8, then likewise with + 4, + 2, + 1. f16 and bf16 are summed in f32 and rounded once, to nearest
// even; s32 wraps. An empty sum is 0; an empty maximum is -Inf, or -2^31 for s32. A NaN gives NaN.
//
// Precondition: IsArithmetic(x.dtype); `axes` are distinct and in 0 .. rank-1 (their order does not matter).
void Reduce(ReduceKind kind, const ArrayRef& x, absl::Span<const int64_t> axes, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_H_
