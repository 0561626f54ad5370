#ifndef AQT_QUANT_WEIGHTS_AQT_WEIGHT_H_
#define AQT_QUANT_WEIGHTS_AQT_WEIGHT_H_

// Quantizes one weight matrix by AQT's rule, directly on the kernels. The result is that of the general Quantizer for
// {IntSymmetric(bits, preserve_zero), AbsMax} with the input channels as shared axis.
//
// With T the dtype of w [o, i], every operation rounded to T, f32 and bf16 subnormals treated as zero,
// quant_bound = 2^(bits-1) - 0.5 and clip = 2^(bits-1) - 1:
//   bound = max over i of |w|, 0 replaced by 1
//   scale = bound * (1 / quant_bound) when o > 1, bound / quant_bound when o = 1 (XLA's arithmetic; the reciprocal is
//           rounded to T for f32 and f16, to f32 for bf16, where only the product is rounded to bf16)
//   inv   = 1 / scale, infinity replaced by 1
//   q     = round(clamp(w * inv, -clip, clip)), ties to even, NaN gives 0

#include "absl/status/statusor.h"

#include "aqt/core/array.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"

namespace aqt {

// The result of AqtQuantizeWeightPerChannel.
struct AqtQuantizedWeight {
  Array q;      // s8 [o, i]
  Array scale;  // T [o, 1]
};

// Quantizes w with one scale per output channel. w: [o, i], f32, bf16 or f16, any strides; bits: 2 to 8.
// InvalidArgument otherwise, or when w has no elements.
absl::StatusOr<AqtQuantizedWeight> AqtQuantizeWeightPerChannel(const ArrayRef& w, int bits = 8,
                                                               kernels::Target target = kernels::BestTarget(),
                                                               Executor* executor = nullptr);

}  // namespace aqt

#endif  // AQT_QUANT_WEIGHTS_AQT_WEIGHT_H_
