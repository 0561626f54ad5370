#ifndef AQT_KERNELS_SMALL_FLOATS_E4M3_REFERENCE_H_
#define AQT_KERNELS_SMALL_FLOATS_E4M3_REFERENCE_H_

// The functions of e4m3.h, element by element.

#include "aqt/kernels/small_floats/e4m3.h"

namespace aqt::kernels::reference {

void QuantizeE4M3(const QuantizeE4M3Args& args);
void DequantizeE4M3(const DequantizeE4M3Args& args);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_SMALL_FLOATS_E4M3_REFERENCE_H_
