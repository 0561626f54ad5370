#ifndef AQT_SERVING_FORMATS_PLAIN_QUANTIZED_H_
#define AQT_SERVING_FORMATS_PLAIN_QUANTIZED_H_

// The layout with one value per byte. A weight `m.weight` [o, i] of dtype T becomes
//   m.weight             I8 [o, i], also for fewer than 8 bits
//   m.weight_scale       T: [1] per tensor, [o, 1] per channel, [o, i / group_size] per group
//   m.weight_zero_point  I8 like the scale; asymmetric only

#include "serving/formats/weight_format.h"

namespace aqt::serving {

// "int-quantized"
const WeightFormat& IntQuantized();

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_PLAIN_QUANTIZED_H_
