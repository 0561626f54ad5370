#ifndef AQT_QUANT_WEIGHTS_MICROSCALED_H_
#define AQT_QUANT_WEIGHTS_MICROSCALED_H_

// Weights of small floats in small groups whose scales have 8 bits, bit for bit as compressed-tensors makes them: the
// MX formats (ScaleType::kE8M0: e2m1, e2m3 or e4m3fn in groups of 32) and NVFP4 (ScaleType::kE4M3: e2m1 in groups of
// 16).
//
// With T the dtype of the weight and R(v) the f32 value v rounded to T:
//   MX:     p = absmax of the group, rounded to a power of two as kernels::MxScales does
//           scale = clamp(log2(p) - k + 127, 0, 255) with k = 2 (e2m1, e2m3) or 8 (e4m3fn); 0 for a group of zeros
//           (127 in f16, which cannot hold 2^-127)
//           q = w / 2^(scale - 127), rounded to T and then to the type
//           dequantized = q * 2^(scale - 127)
//   NVFP4:  global_scale = R(R(1 / a) * 2688), with a the largest |w| of the weight, or of all weights that share it;
//           1 if that is infinite, as for a = 0
//           scale = e4m3fn(global_scale * R(absmax / 6)), 0.125 instead of 0
//           q = w / (scale / global_scale), in f32, rounded to e2m1
//           dequantized = q * (scale / global_scale), in f32
// Rounding is to nearest, ties to even, and saturates. A negative w that rounds to 0 keeps its sign, and -0 gives +0
// except in e2m3.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/quant/weights/compressed_tensors.h"

namespace aqt::compressed_tensors {

// The columns of a group: 32 (kE8M0) or 16 (kE4M3).
int64_t GroupSizeOf(ScaleType scale_type);

// The global scale of weights whose largest magnitude, a value of `dtype` (f32, bf16 or f16), is `absmax`.
float GlobalScaleOf(float absmax, DType dtype);

// What q is multiplied by: f32, in the shape of the scales. `weight` is of a scheme with such scales.
Array FactorsOf(const QuantizedWeight& weight, ScaleType scale_type);

// Value k of a row takes bits [k * num_bits, (k + 1) * num_bits) of the row's little-endian bit stream; num_bits is 4
// (e2m1) or 6 (e2m3).
// e4m3fn [o, i] -> u8 [o, i * num_bits / 8]. InvalidArgument for a value that the type lacks, or for bits that do not
// fill a byte.
absl::StatusOr<Array> PackSmallFloats(const ArrayRef& q, int num_bits);
// u8 [o, i * num_bits / 8] -> e4m3fn [o, i], exactly.
absl::StatusOr<Array> UnpackSmallFloats(const ArrayRef& bytes, int num_bits);

// The parts of Validate, QuantizeWeight and DequantizeWeight for these schemes. A group with a NaN or an infinity, or
// whose power of two overflows T, has the scale 255 (kE8M0); DequantizeMicroscaled gives NaN for it.
absl::Status ValidateMicroscaled(const WeightScheme& scheme);
absl::StatusOr<QuantizedWeight> QuantizeMicroscaled(const kernels::FloatMatrix& x, const WeightScheme& scheme,
                                                    const Options& options);
absl::StatusOr<Array> DequantizeMicroscaled(const QuantizedWeight& weight, const WeightScheme& scheme,
                                            const Options& options);

}  // namespace aqt::compressed_tensors

#endif  // AQT_QUANT_WEIGHTS_MICROSCALED_H_
