#ifndef AQT_SERVING_TOOLS_FINITE_H_
#define AQT_SERVING_TOOLS_FINITE_H_

#include <cstdint>

#include "aqt/core/dtype.h"

namespace aqt::serving {

// The index of the first NaN or infinity among `n` f32, bf16 or f16 values (unaligned), or -1.
int64_t FirstNonFinite(const void* data, DType dtype, int64_t n);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_FINITE_H_
