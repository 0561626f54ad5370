#ifndef AQT_SERVING_FORMATS_PACK_QUANTIZED_H_
#define AQT_SERVING_FORMATS_PACK_QUANTIZED_H_

// The layout that packs integers of b bits into words. A weight `m.weight` [o, i] of dtype T becomes
//   m.weight_packed      I32 [o, ceil(i * b / 32)]
//   m.weight_shape       I64 [2]: o and i
//   m.weight_scale       T: [1] per tensor, [o, 1] per channel, [o, i / group_size] per group,
//                        [ceil(o / rows), ceil(i / columns)] per block
//   m.weight_zero_point  I32 [ceil(o * b / 32), columns of the scale] per channel and per group, otherwise I8 like the
//                        scale; asymmetric only

#include "serving/formats/weight_format.h"

namespace aqt::serving {

// "pack-quantized"
const WeightFormat& PackQuantized();

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_PACK_QUANTIZED_H_
