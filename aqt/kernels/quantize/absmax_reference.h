#ifndef AQT_KERNELS_QUANTIZE_ABSMAX_REFERENCE_H_
#define AQT_KERNELS_QUANTIZE_ABSMAX_REFERENCE_H_

// The functions of absmax.h, element by element.

#include <cstdint>

#include "aqt/kernels/quantize/absmax.h"

namespace aqt::kernels::reference {

void AbsMaxGroups(const FloatMatrix& x, int64_t group, float* absmax);
void MinMaxGroups(const FloatMatrix& x, int64_t group, float* min, float* max);

// Element (r, c) of x, converted exactly.
float ElementOf(const FloatMatrix& x, int64_t r, int64_t c);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_QUANTIZE_ABSMAX_REFERENCE_H_
