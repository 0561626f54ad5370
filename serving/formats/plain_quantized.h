#ifndef AQT_SERVING_FORMATS_PLAIN_QUANTIZED_H_
#define AQT_SERVING_FORMATS_PLAIN_QUANTIZED_H_

// The layouts with one value per byte. A weight `m.weight` [o, i] of dtype T becomes
//   m.weight             [o, i]: I8 (also for fewer than 8 bits), or F8_E4M3 for floats
//   m.weight_scale       T: [1] per tensor, [o, 1] per channel, [o, i / group_size] per group,
//                        [ceil(o / rows), ceil(i / columns)] per block
//   m.weight_zero_point  I8 like the scale; asymmetric only

#include "serving/formats/weight_format.h"

namespace aqt::serving {

// "int-quantized": integers.
const WeightFormat& IntQuantized();
// "float-quantized": 8-bit floats.
const WeightFormat& FloatQuantized();
// "naive-quantized": either; the default for 8-bit floats if activations are not quantized.
const WeightFormat& NaiveQuantized();

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_PLAIN_QUANTIZED_H_
