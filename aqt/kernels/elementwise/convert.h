#ifndef AQT_KERNELS_ELEMENTWISE_CONVERT_H_
#define AQT_KERNELS_ELEMENTWISE_CONVERT_H_

// Conversion of dense arrays between dtypes.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// out[i] = x[i] for i < n, with the bits of ConvertElement on all targets. Vectorized between f32, bf16 and f16. The
// arrays must not overlap.
void Convert(DType from, const void* x, DType to, int64_t n, void* out, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_CONVERT_H_
