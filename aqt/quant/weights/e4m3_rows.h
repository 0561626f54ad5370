#ifndef AQT_QUANT_WEIGHTS_E4M3_ROWS_H_
#define AQT_QUANT_WEIGHTS_E4M3_ROWS_H_

// The elements of fp8 weights (compressed_tensors.h): n consecutive ones of a row that share a scale. Internal to this
// package.

#include <cstdint>

#include "aqt/core/dtype.h"

namespace aqt::internal {

// q[k] = e4m3fn(clamp(R(x[k * stride] / scale), -448, 448)), where R rounds to `dtype` (kF32, kBF16 or kF16), the type
// of x. A NaN gives 0x7f. `reference` rounds by RoundTo instead of on the bits.
void QuantizeE4M3(const void* x, DType dtype, int64_t stride, int64_t n, float scale, Float8E4M3FN* q, bool reference);

// x[k] = R(q[k] * scale), of type `dtype`. A NaN gives the positive quiet NaN.
void DequantizeE4M3(const Float8E4M3FN* q, int64_t n, float scale, void* x, DType dtype);

}  // namespace aqt::internal

#endif  // AQT_QUANT_WEIGHTS_E4M3_ROWS_H_
