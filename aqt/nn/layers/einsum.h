#ifndef AQT_NN_LAYERS_EINSUM_H_
#define AQT_NN_LAYERS_EINSUM_H_

#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/contraction/quantized_dot.h"

namespace aqt::nn {

// The options of Einsum.
struct EinsumOptions {
  Shape kernel = {};  // the shape of the kernel; extents at least 1
  bool use_bias = true;
  // Quantization of this layer's contraction. If unset, it is a plain einsum, which rules with ops "einsum" may still
  // quantize (transforms/quantize/inject.h). Both ways give the same program.
  std::optional<QuantizedDotOptions> einsum = std::nullopt;
  // If unset, LecunNormal, where fan_in covers the axes of the kernel that are not in the result.
  Initializer kernel_init = nullptr;
  Initializer bias_init = Zeros();
};

// y = einsum(equation, x, kernel) + bias in the scope `name` (ops::Einsum). x is the first operand of the equation, the
// parameter "kernel" the second one:
//   Einsum(x, "btd,dhk->bthk", "query", {.kernel = {512, 8, 64}})     [b,t,512] -> [b,t,8,64]
// The parameter "bias" has the axes that the result shares with the kernel, in the order of the result, and is
// broadcast along all others. Both have the dtype of x. Poisoned: InvalidArgument if an extent of the kernel is below
// 1, and as ops::Einsum for an equation that does not parse or does not fit.
Value Einsum(const Value& x, absl::string_view equation, absl::string_view name, const EinsumOptions& options,
             const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_EINSUM_H_
