#ifndef AQT_SERVING_FORMATS_MICROSCALED_QUANTIZED_H_
#define AQT_SERVING_FORMATS_MICROSCALED_QUANTIZED_H_

// The layouts of floats in small groups whose scales have 8 bits (microscaled.h). A weight `m.weight` [o, i] becomes
// with powers of two as scales, in groups of 32 (MX)
//   m.weight_packed        U8 [o, i / 2] for 4 bits, [o, i * 3 / 4] for 6; the first value in the lowest bits
//   m.weight               F8_E4M3 [o, i] for 8 bits
//   m.weight_scale         U8 [o, i / 32]: 2^(u - 127)
// and with 8-bit floats as scales, in groups of 16 (NVFP4)
//   m.weight_packed        U8 [o, i / 2]
//   m.weight_scale         F8_E4M3 [o, i / 16]
//   m.weight_global_scale  F32 [1], which divides the scales

#include "serving/formats/weight_format.h"

namespace aqt::serving {

// "mxfp4-pack-quantized"
const WeightFormat& MxFp4Quantized();
// "mxfp6-pack-quantized"
const WeightFormat& MxFp6Quantized();
// "mxfp8-quantized"
const WeightFormat& MxFp8Quantized();
// "nvfp4-pack-quantized"
const WeightFormat& NvFp4Quantized();

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_MICROSCALED_QUANTIZED_H_
