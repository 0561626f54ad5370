#ifndef AQT_KERNELS_REDUCE_CUMULATIVE_H_
#define AQT_KERNELS_REDUCE_CUMULATIVE_H_

// Running sums in plain C++, with the same bits on every machine.

#include <cstdint>

#include "aqt/core/dtype.h"

namespace aqt::kernels {

// out[o, k, i] = x[o, 0, i] + ... + x[o, k, i] for dense arrays [outer, n, inner], added one term at a time from +0. If
// `reverse`, x[o, n - 1, i] + ... + x[o, k, i]. f16 and bf16 are summed in f32 and each sum is rounded once; s32 wraps.
// `out` may be x. Precondition: IsArithmetic(dtype).
void CumulativeSum(DType dtype, const void* x, int64_t outer, int64_t n, int64_t inner, bool reverse, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_CUMULATIVE_H_
