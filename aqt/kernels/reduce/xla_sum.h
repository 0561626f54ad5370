#ifndef AQT_KERNELS_REDUCE_XLA_SUM_H_
#define AQT_KERNELS_REDUCE_XLA_SUM_H_

// Sums in the order and with the roundings of XLA on CPU (jaxlib 0.10.2, op by op). All targets give the same bits.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/array_ref.h"

namespace aqt::kernels {

// out[kept indices] = the sum over the reduced axes of x. `out` is dense, with the kept axes in order and x's dtype.
//
// A sum starts at +0 and adds one element at a time in row-major order. It is rounded to x's dtype after each addition,
// and subnormal f32 and bf16 numbers count as zero. If a reduced axis has more than 32 elements, all reduced axes are
// first split into windows (xla_windows.h). Each window is summed this way, and then the sums are. A sum of one element
// is that element.
//
// XLA passes an f32 array of 4096 elements or more to a library of kernels whose order depends on the processor. If
// only the last axis is reduced, Reduce (reduce.h) is used here: it is the library's order on AVX-512 for rows of up to
// 80 elements. Otherwise the bits do not always match XLA's. They also do not always match where f32 or f16 are summed
// over several axes, because compiled code changes that order.
//
// Precondition: x is f32, bf16 or f16; `axes` are ascending and in 0 .. rank-1.
void SumAsXla(const ArrayRef& x, absl::Span<const int64_t> axes, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_XLA_SUM_H_
