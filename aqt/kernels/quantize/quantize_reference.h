#ifndef AQT_KERNELS_QUANTIZE_QUANTIZE_REFERENCE_H_
#define AQT_KERNELS_QUANTIZE_QUANTIZE_REFERENCE_H_

// The functions of quantize.h, element by element.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/quantize.h"

namespace aqt::kernels::reference {

void QuantizeMatrix(const QuantizeMatrixArgs& args);
void DequantizeMatrix(const DequantizeMatrixArgs& args);

// The index of the scale and zero point of element (r, c).
int64_t GridIndex(const ScaleGrid& grid, int64_t r, int64_t c);
// v rounded once to `dtype` (kF32, kBF16 or kF16), to nearest, ties to even; held in f32.
float RoundToDType(float v, DType dtype);
// Turns a subnormal f32 or bf16 into a zero of its sign. Anything else, including every f16, is unchanged.
float FlushToZero(float v, DType dtype);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_QUANTIZE_QUANTIZE_REFERENCE_H_
