#ifndef AQT_NN_DENSE_H_
#define AQT_NN_DENSE_H_

#include <cstdint>
#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/graph/value.h"
#include "aqt/nn/parameter.h"
#include "aqt/ops/quantized_dot.h"
#include "aqt/quant/config.h"

namespace aqt::nn {

// For DenseOptions::dot_general: quantize as this configuration says; `weights` is the mode of the kernel.
QuantizedDotOptions AqtDotGeneral(DotGeneral config, QuantMode weights = QuantMode::kTrain);

struct DenseOptions {
  int64_t features = 0;  // of the output; at least 1
  bool use_bias = true;
  // Quantization of this layer's contraction; null: a plain one, which rules may still quantize (transforms/inject.h).
  // Both ways give the same program, also where a layer is used more than once (NextContractionName).
  std::optional<QuantizedDotOptions> dot_general = std::nullopt;
  Initializer kernel_init = LecunUniform({0});
  Initializer bias_init = Zeros();
};

// y = x kernel + bias:  [..., in] x [in, features] -> [..., features], in the scope `name`. Parameters: kernel, bias,
// of the dtype of x. Poisoned: InvalidArgument when x has no axis, or features < 1.
Value Dense(const Value& x, absl::string_view name, const DenseOptions& options,
            const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_DENSE_H_
