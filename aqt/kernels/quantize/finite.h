#ifndef AQT_KERNELS_QUANTIZE_FINITE_H_
#define AQT_KERNELS_QUANTIZE_FINITE_H_

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// The index of the first NaN or infinity among `n` values of f32, bf16 or f16 (any alignment); -1 if there is none.
int64_t FirstNotFinite(const void* x, DType dtype, int64_t n, Target target = BestTarget());

// The index of the first of `n` values that is not finite once it is rounded to f32, bf16 or f16, to nearest; -1 if
// there is none.
int64_t FirstNotFiniteIn(DType dtype, const float* x, int64_t n, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_FINITE_H_
