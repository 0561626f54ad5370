#ifndef AQT_KERNELS_QUANTIZE_DECODE_INTEGERS_REFERENCE_H_
#define AQT_KERNELS_QUANTIZE_DECODE_INTEGERS_REFERENCE_H_

// The functions of decode_integers.h, element by element.

#include "aqt/kernels/quantize/decode_integers.h"

namespace aqt::kernels::reference {

void DecodeIntegers(const DecodeIntegersArgs& args);
void DecodeByMap(const DecodeByMapArgs& args);

}  // namespace aqt::kernels::reference

#endif  // AQT_KERNELS_QUANTIZE_DECODE_INTEGERS_REFERENCE_H_
