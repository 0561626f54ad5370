#ifndef AQT_NN_LAYERS_DENSE_H_
#define AQT_NN_LAYERS_DENSE_H_

#include <cstdint>
#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/quant/config/config.h"

namespace aqt::nn {

// For the options of layers: quantizes according to `config`; `weights` is the mode of the kernel.
QuantizedDotOptions AqtDotGeneral(DotGeneralConfig config, QuantMode weights = QuantMode::kTrain);

// The options of Dense.
struct DenseOptions {
  int64_t features = 0;  // of the output; at least 1
  bool use_bias = true;
  // Quantization of this layer's contraction. If unset, it is a plain contraction, which rules may still quantize
  // (transforms/quantize/inject.h). Both ways give the same program, even if a layer is used more than once
  // (NextContractionName).
  std::optional<QuantizedDotOptions> dot_general = std::nullopt;
  Initializer kernel_init = LecunUniform({0});
  Initializer bias_init = Zeros();
};

// y = x kernel + bias:  [..., in] x [in, features] -> [..., features], in the scope `name`. The parameters kernel and
// bias have the dtype of x. Poisoned: InvalidArgument if x has no axes or features < 1.
Value Dense(const Value& x, absl::string_view name, const DenseOptions& options,
            const std::source_location& where = std::source_location::current());

// The options of DenseGeneral.
struct DenseGeneralOptions {
  Shape features = {};  // the new axes; each at least 1
  Axes axes = {-1};     // the contracted axes of x, in the order of the kernel's axes
  bool use_bias = true;
  std::optional<QuantizedDotOptions> dot_general = std::nullopt;  // as in DenseOptions
  // If unset, LecunUniform over the contracted axes.
  Initializer kernel_init = nullptr;
  Initializer bias_init = Zeros();
};

// Contracts several axes of x and creates several new ones, which become the last. With axes = {-2, -1}:
//   [..., a, b] x kernel [a, b, features...] + bias [features...] -> [..., features...]
// Otherwise as Dense, which is the case of one axis and one feature axis. Poisoned: InvalidArgument if an axis is not
// one of x or named twice, or if there are no features.
Value DenseGeneral(const Value& x, absl::string_view name, const DenseGeneralOptions& options,
                   const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_DENSE_H_
