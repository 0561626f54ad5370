#ifndef AQT_KERNELS_QUANTIZE_HADAMARD_REFERENCE_H_
#define AQT_KERNELS_QUANTIZE_HADAMARD_REFERENCE_H_

// The transform of hadamard.h, number by number.

#include <cstdint>

#include "aqt/core/dtype.h"

namespace aqt::kernels::reference {

// Transforms a row of n numbers of f32, bf16 or f16, held as f32, in place.
void HadamardRow(DType dtype, int64_t block, int64_t n, float* row);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_QUANTIZE_HADAMARD_REFERENCE_H_
