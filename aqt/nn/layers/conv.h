#ifndef AQT_NN_LAYERS_CONV_H_
#define AQT_NN_LAYERS_CONV_H_

#include <cstdint>
#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_dims.h"

namespace aqt::nn {

// For ConvOptions::conv: quantizes according to `config` (ConvGeneralDilatedMake); `weights` is the mode of the kernel.
QuantizedDotOptions AqtConv(DotGeneralRawConfig config, QuantMode weights = QuantMode::kTrain);

// The options of Conv.
struct ConvOptions {
  int64_t features = 0;   // output channels; at least 1
  Axes kernel_size = {};  // extent of each spatial axis; 1 to 3 of them
  ConvDims dims = {.padding = ConvPadding::kSame};
  bool use_bias = true;
  // Quantization of this layer's convolution. If unset, it is a plain convolution, which rules with ops "conv" may
  // still quantize (transforms/quantize/inject.h). Both ways give the same program.
  std::optional<QuantizedDotOptions> conv = std::nullopt;
  // If unset, LecunUniform over all axes of the kernel but the last.
  Initializer kernel_init = nullptr;
  Initializer bias_init = Zeros();
};

// y = conv(x, kernel) + bias, channels last (quant/contraction/conv_dims.h), in the scope `name`:
//   [batch, in..., channels] * [kernel_size..., channels / groups, features] -> [batch, out..., features]
// The parameters kernel and bias have the dtype of x. Poisoned: InvalidArgument if x has other axes, features < 1, or
// the groups do not divide the channels, and as ops::Conv.
Value Conv(const Value& x, absl::string_view name, const ConvOptions& options,
           const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_CONV_H_
