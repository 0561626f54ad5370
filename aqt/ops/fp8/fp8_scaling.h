#ifndef AQT_OPS_FP8_FP8_SCALING_H_
#define AQT_OPS_FP8_FP8_SCALING_H_

// 8-bit floats with delayed scaling, as in NVIDIA's XLA FP8 layers: one scale per tensor, a power of two derived from
// the largest magnitudes of recent steps. A code q stands for q * scale: the scale is the inverse of what Transformer
// Engine stores. fp8_dot.h has the product built from these steps.
//
// A scale has one element, of f32; a history is f32[length]. Steps 1 to 3 of a training step, on a tensor x:
//   1. codes = Fp8Quantize(x, scale, ...)       with the scale of the previous step
//   2. the largest magnitude of x enters the history
//   3. the scale of the next step is computed from the largest number of the history
// Steps 2 and 3 are Fp8Update. Fp8Quantize, Fp8QuantizeDequantize and Fp8Update are one equation each.

#include <optional>

#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/value.h"

namespace aqt {

// Behaviour of the original that a user would not want; docs/differences-from-fp8layers.md. By default the scale stays
// unchanged if the largest magnitude of the history is 0, infinite or NaN, and every scale stays within [2^-126,
// 2^126].
struct Fp8Compat {
  bool all_zero_amax_flips_scale = false;  // 0 gives 1 / scale
  bool nan_amax_flips_scale = false;       // NaN gives 1 / scale, an infinity 1 / (1 / scale)
  bool tiny_scale_is_zero = false;         // a scale below 2^-126 is 0, one above 2^126 infinite
  static constexpr const char* kFieldNames[] = {"all_zero_amax_flips_scale", "nan_amax_flips_scale",
                                                "tiny_scale_is_zero"};
  bool operator==(const Fp8Compat&) const = default;
  static Fp8Compat Original();
};

// The scale of a tensor and the largest magnitudes of its recent steps. The newest is at index 0, the one before it is
// last, and so on backward, so that the oldest is at index 1.
struct Fp8TensorState {
  Value scale, amax_history;
};

// How a scale is computed from a history.
struct Fp8ScaleRule {
  DType dtype = DType::kE4M3FN;  // dtype of the codes: e4m3fn or e5m2
  int margin = 0;                // the scale is 2^margin times what the magnitudes need; -64 to 64
  Fp8Compat compat = {};
  static constexpr const char* kFieldNames[] = {"dtype", "margin", "compat"};
  bool operator==(const Fp8ScaleRule&) const = default;
};

namespace ops {

// clamp(c(x) / c(scale), -max, max) rounded to `dtype` (e4m3fn or e5m2; to nearest, ties to even, with subnormals). c
// rounds to `compute_dtype` (f32, bf16, f16; null: the dtype of x); the division also rounds to it. max is 448 or
// 57344. Infinities give +-max, NaN stays. No gradient flows through codes.
Value Fp8Quantize(const ValueOrNumber& x, const ValueOrNumber& scale, DType dtype,
                  std::optional<DType> compute_dtype = std::nullopt);
// The codes converted to `dtype`, times the scale rounded to it.
Value Fp8Dequantize(const ValueOrNumber& codes, const ValueOrNumber& scale, DType dtype);
// Fp8Quantize, then Fp8Dequantize, in x's own dtype. The gradient passes unchanged, even where x was clipped.
Value Fp8QuantizeDequantize(const ValueOrNumber& x, const ValueOrNumber& scale, DType dtype,
                            std::optional<DType> compute_dtype = std::nullopt);

// The largest magnitude in x, f32[1]; NaN if x contains one, 0 for an empty x.
Value Fp8Amax(const ValueOrNumber& x);

// 2^-e for each element of `amax`, where e = floor(log2(fp8_max / amax)) - margin: the power of two with amax / scale
// in (fp8_max / 2, fp8_max], times 2^margin. The exponent is exact. Where amax is 0 (or a subnormal number), infinite
// or NaN, the result is `previous`, which has one element. All are f32. InvalidArgument unless 1 <= fp8_max < 2^126 and
// -64 <= margin <= 64.
Value Fp8ComputeScale(const ValueOrNumber& amax, const ValueOrNumber& previous, double fp8_max, int margin = 0,
                      const Fp8Compat& compat = {});

// The state after a step on x: Fp8Amax(x) replaces the oldest number of the history, and the scale becomes
// Fp8ComputeScale of the largest one, which is NaN if any of them is. Not differentiable: no gradient flows back to x.
Fp8TensorState Fp8Update(const ValueOrNumber& x, const Fp8TensorState& state, const Fp8ScaleRule& rule = {});

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_SCALING_H_
