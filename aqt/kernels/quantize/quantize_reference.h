#ifndef AQT_KERNELS_QUANTIZE_QUANTIZE_REFERENCE_H_
#define AQT_KERNELS_QUANTIZE_QUANTIZE_REFERENCE_H_

// quantize.h, element by element.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/quantize.h"

namespace aqt::kernels::reference {

void QuantizeMatrix(const QuantizeMatrixArgs& args);
void DequantizeMatrix(const DequantizeMatrixArgs& args);

// Where the grid has the scale, and the zero point, of element (r, c).
int64_t GridIndex(const ScaleGrid& grid, int64_t r, int64_t c);
// v rounded to `dtype` (kF32, kBF16 or kF16) once, to nearest, ties to even; held in f32.
float RoundToDType(float v, DType dtype);
// A subnormal f32 or bf16 becomes a zero with its sign; anything else, and every f16, is unchanged.
float FlushToZero(float v, DType dtype);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_QUANTIZE_QUANTIZE_REFERENCE_H_
