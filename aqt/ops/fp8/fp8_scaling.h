#ifndef AQT_OPS_FP8_FP8_SCALING_H_
#define AQT_OPS_FP8_FP8_SCALING_H_

// 8-bit floats with delayed scaling, as in NVIDIA's XLA FP8 layers: one scale per tensor, a power of two that follows
// from the largest magnitudes of the last steps. A code q stands for q * scale: the scale is the inverse of what
// Transformer Engine stores. fp8_dot.h has the product that is made of these steps.
//
// A scale has one element, of f32; a history is f32[length]. Steps 1 to 3 of a training step, on a tensor x:
//   1. codes = Fp8Quantize(x, scale, ...)       with the scale of the step before
//   2. the largest magnitude of x enters the history
//   3. the scale of the next step follows from the largest number of the history
// Steps 2 and 3 are Fp8Update. Fp8Quantize, Fp8QuantizeDequantize and Fp8Update are one equation each.

#include <optional>

#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/value.h"

namespace aqt {

// What the original does and a user would not want; docs/differences-from-fp8layers.md. By default the scale stays as
// it is where the largest magnitude of the history is 0, infinite or NaN, and no scale leaves [2^-126, 2^126].
struct Fp8Compat {
  bool all_zero_amax_flips_scale = false;  // 0 gives 1 / scale
  bool nan_amax_flips_scale = false;       // NaN gives 1 / scale, an infinity 1 / (1 / scale)
  bool tiny_scale_is_zero = false;         // a scale below 2^-126 is 0, one above 2^126 infinite
  bool operator==(const Fp8Compat&) const = default;
  static Fp8Compat Original();
};

// The scale of a tensor and the largest magnitudes of its last steps: the newest first, the one before it last, and so
// on backward, so that the oldest is the second.
struct Fp8TensorState {
  Value scale, amax_history;
};

// How a scale follows from a history.
struct Fp8ScaleRule {
  DType dtype = DType::kE4M3FN;  // of the codes: e4m3fn or e5m2
  int margin = 0;                // the scale is 2^margin times what the magnitudes need; -64 to 64
  Fp8Compat compat = {};
};

namespace ops {

// clamp(c(x) / c(scale), -max, max) rounded to `dtype` (e4m3fn or e5m2; to nearest, ties to even, with subnormals). c
// rounds to `compute_dtype` (f32, bf16, f16; null: the dtype of x), in which the division rounds, too; max is 448 or
// 57344. Infinities give +-max, NaN stays. No gradient flows through codes.
Value Fp8Quantize(const Operand& x, const Operand& scale, DType dtype,
                  std::optional<DType> compute_dtype = std::nullopt);
// The codes in `dtype`, times the scale rounded to it.
Value Fp8Dequantize(const Operand& codes, const Operand& scale, DType dtype);
// The one after the other, in x's own dtype. The gradient passes as it is, also where x was clipped.
Value Fp8QuantizeDequantize(const Operand& x, const Operand& scale, DType dtype,
                            std::optional<DType> compute_dtype = std::nullopt);

// The largest magnitude in x, f32[1]; NaN if there is one in x, 0 of an empty x.
Value Fp8Amax(const Operand& x);

// 2^-e of each element of `amax`, where e = floor(log2(fp8_max / amax)) - margin: the power of two with amax / scale in
// (fp8_max / 2, fp8_max], times 2^margin. The exponent is exact. `previous`, one element, where amax is 0 (or a
// subnormal number), infinite or NaN. All f32. InvalidArgument unless 1 <= fp8_max < 2^126 and -64 <= margin <= 64.
Value Fp8ComputeScale(const Operand& amax, const Operand& previous, double fp8_max, int margin = 0,
                      const Fp8Compat& compat = {});

// The state after a step on x: Fp8Amax(x) enters the history in place of its oldest number, and the scale becomes
// Fp8ComputeScale of the largest one, which is NaN if one of them is. Not differentiable: no gradient flows back to x.
Fp8TensorState Fp8Update(const Operand& x, const Fp8TensorState& state, const Fp8ScaleRule& rule = {});

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_SCALING_H_
