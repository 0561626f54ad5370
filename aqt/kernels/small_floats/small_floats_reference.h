#ifndef AQT_KERNELS_SMALL_FLOATS_SMALL_FLOATS_REFERENCE_H_
#define AQT_KERNELS_SMALL_FLOATS_SMALL_FLOATS_REFERENCE_H_

// The functions of small_floats.h and decode_small_floats.h, element by element.

#include "aqt/kernels/small_floats/decode_small_floats.h"
#include "aqt/kernels/small_floats/small_floats.h"

namespace aqt::kernels::reference {

void MxScales(const float* absmax, int64_t n, DType dtype, SmallFloat type, uint8_t* exponent, float* factor);
void E4M3Scales(const float* absmax, int64_t n, DType dtype, float global, Float8E4M3FN* scale, float* factor);
void QuantizeSmallFloats(const QuantizeSmallFloatsArgs& args);
void DecodeSmallFloats(const DecodeSmallFloatsArgs& args);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_SMALL_FLOATS_SMALL_FLOATS_REFERENCE_H_
