#ifndef AQT_JAX_CONTRACTION_CALLS_H_
#define AQT_JAX_CONTRACTION_CALLS_H_

// The handlers of contractions, as functions of a call. Each reads the attribute `spec` (contraction_spec.h).

#include "absl/status/status.h"
#include "aqt/jax/call.h"

namespace aqt::jax {

// out, residuals... = forward(lhs, rhs, keys...)
//   `passes`  "forward", or "both" with the plan's residuals as results, except the float operands
//             (ResidualKind::kValue)
//   `lhs`, `rhs`  how an operand is given:
//             "float"     value
//             "scales:N"  value, N scales, which replace the calibration
//             "qvalue:N"  qvalue, N scales
//             "both:N"    value, qvalue, N scales; the value is read only for gradients
//             "panels:N:f32[2,3]"  what PackOperand gives, N scales; then the dtype and shape of the operand
//   a key u32[2] for each side of fwd that draws random numbers
absl::Status Forward(const Call& call);

// The gradient of one operand = gradient(g, residuals..., keys...)
//   `side`    "lhs" or "rhs"
//   `lhs`, `rhs`  dtypes and shapes of the operands, "f32[2,3]"
//   all residuals of the plan, float operands included, then a key for each operand of this product that draws
//   random numbers
absl::Status Gradient(const Call& call);

// qvalue, scale... = quantize(x, keys...)
//   `side`    "lhs" or "rhs"
//   `other`   dtype and shape of the other operand, "f32[2,3]"
//   s4 and s2 are returned as s8. Without quantization the result is x.
absl::Status QuantizeSide(const Call& call);

// panels = pack(qvalue, scales...): the operand as the kernels of forward calls read it, u8[bytes]. Other contractions
// may read it if their description has the same key (describe.h).
//   `side`    "lhs" or "rhs"
//   `lhs`, `rhs`  dtypes and shapes of the operands, "f32[2,3]"
absl::Status PackOperand(const Call& call);

// x = dequantize(qvalue, scales...), in the dtype of the result.
absl::Status DequantizeTensor(const Call& call);

}  // namespace aqt::jax

#endif  // AQT_JAX_CONTRACTION_CALLS_H_
