#ifndef AQT_OPS_DESCRIBE_H_
#define AQT_OPS_DESCRIBE_H_

#include <string>

#include "aqt/quant/config/config.h"

namespace aqt {

// A configuration as one line of a program's text: deterministic, and equal only for equal configurations. Parts with
// default values are left out, and contractions that quantize nothing are "float".
//   fwd=(int8:s8 absmax * int8:s8 absmax -> s32), dlhs=(int8:s8+jax_uniform absmax * ...), drhs=float
std::string DescribeConfig(const DotGeneralConfig& config);
std::string DescribeQuantizer(const Quantizer& quantizer);

}  // namespace aqt

#endif  // AQT_OPS_DESCRIBE_H_
