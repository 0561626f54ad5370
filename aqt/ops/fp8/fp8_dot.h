#ifndef AQT_OPS_FP8_FP8_DOT_H_
#define AQT_OPS_FP8_FP8_DOT_H_

// The matrix product of NVIDIA's FP8 layers: operands in e4m3fn, the gradient of the output in e5m2, each with one
// scale for the tensor and a history of magnitudes (fp8_scaling.h).
//
//   forward    y  = dequantized(x) dequantized(k)
//   backward   dx = dequantized(dy) dequantized(k)^T,   dk = dequantized(x)^T dequantized(dy)
//
// Gradients pass through the quantization unchanged, even where an operand was clipped. If both scales are powers of
// two, as is every scale derived from a history, a product is that of the codes, summed in f32 by the bf16 kernels,
// times both scales. Every step with a gradient updates all six statistics, with x, k and the unquantized dy. Without a
// gradient, nothing is updated.

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"
#include "aqt/ops/fp8/fp8_scaling.h"

namespace aqt {

// The states of the three tensors.
struct Fp8DotState {
  Fp8TensorState input, kernel, output_grad;
};

// The tensors with a state, kept in the slots
//   stat "<name>/input_scale", "<name>/input_amax_history", "<name>/kernel_scale", ..., "<name>/output_grad_scale", ...
enum class Fp8Tensor { kInput, kKernel, kOutputGrad };
// The slots of one tensor's state.
struct Fp8Slots {
  Slot scale, amax_history;
};
// The slots of `tensor` for the state `name`.
Fp8Slots Fp8SlotsOf(absl::string_view name, Fp8Tensor tensor);

// The inputs of the active trace that hold the state `name`. Initially scales are 1 and histories 0 (InitialStats). A
// scale has the shape [1] or []. InvalidArgument if the length is below 1.
Fp8DotState Fp8StateInputs(absl::string_view name, int64_t amax_history_length, const Shape& scale_shape = {1},
                           const std::source_location& where = std::source_location::current());

// Options of Fp8Dot.
struct Fp8DotOptions {
  // Where a gradient writes the new state (Fp8SlotsOf). Two products of a program need two names: AlreadyExists
  // otherwise.
  std::string name = "";
  // The dtype in which operands are divided by their scales; null: their own.
  std::optional<DType> compute_dtype = std::nullopt;
  Fp8Compat compat = {};
  static constexpr const char* kFieldNames[] = {"name", "compute_dtype", "compat"};
  bool operator==(const Fp8DotOptions&) const = default;
};

namespace ops {

// x [m, k] times kernel [k, n], both of one dtype, f32, bf16 or f16: [m, n] of that dtype. InvalidArgument for other
// shapes and dtypes.
Value Fp8Dot(const Value& x, const Value& kernel, const Fp8DotState& state, const Fp8DotOptions& options = {},
             const std::source_location& where = std::source_location::current());

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_FP8_FP8_DOT_H_
