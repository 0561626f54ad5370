#ifndef AQT_NN_DENSE_H_
#define AQT_NN_DENSE_H_

#include <cstdint>
#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/graph/value.h"
#include "aqt/nn/parameter.h"
#include "aqt/ops/quantized_dot.h"
#include "aqt/quant/config/config.h"

namespace aqt::nn {

// For DenseOptions::dot_general: quantizes according to `config`; `weights` is the mode of the kernel.
QuantizedDotOptions AqtDotGeneral(DotGeneral config, QuantMode weights = QuantMode::kTrain);

struct DenseOptions {
  int64_t features = 0;  // of the output; at least 1
  bool use_bias = true;
  // Quantization of this layer's contraction. If unset, it is a plain one, which rules may still quantize
  // (transforms/inject.h). Both ways give the same program, even if a layer is used more than once
  // (NextContractionName).
  std::optional<QuantizedDotOptions> dot_general = std::nullopt;
  Initializer kernel_init = LecunUniform({0});
  Initializer bias_init = Zeros();
};

// y = x kernel + bias:  [..., in] x [in, features] -> [..., features], in the scope `name`. The parameters kernel and
// bias have the dtype of x. Poisoned: InvalidArgument if x has no axes or features < 1.
Value Dense(const Value& x, absl::string_view name, const DenseOptions& options,
            const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_DENSE_H_
