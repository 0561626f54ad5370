#include "aqt/nn/layers/conv.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"

namespace aqt::nn {

QuantizedDotOptions AqtConv(DotGeneralRawConfig config, QuantMode weights) {
  return {.config = {.fwd = std::move(config)}, .rhs_mode = weights, .with_gradient = weights == QuantMode::kTrain};
}

Value Conv(const Value& x, absl::string_view name, const ConvOptions& options, const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  const auto refuse = [&](const auto&... parts) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat(parts...)), "conv", {x}, where);
  };
  const int64_t spatial = static_cast<int64_t>(options.kernel_size.size());
  if (x.status().ok() && x.rank() != spatial + 2) {
    return refuse("a kernel of ", spatial, " spatial axes takes an array [batch, ", spatial,
                  " spatial axes, channels]");
  }
  if (options.features < 1) return refuse("features = ", options.features, ", expected at least 1");
  const int64_t channels = x.dim(-1), groups = options.dims.feature_group_count;
  if (groups < 1 || channels % groups != 0) {
    return refuse("feature_group_count = ", groups, " does not divide the ", channels, " channels");
  }
  Shape shape;
  Axes fan_in;
  for (const int64_t extent : options.kernel_size) shape.push_back(extent);
  shape.push_back(channels / groups);
  for (int64_t axis = 0; axis < shape.rank(); ++axis) fan_in.push_back(axis);
  shape.push_back(options.features);
  const Value kernel = Parameter("kernel", {x.dtype(), shape},
                                 options.kernel_init != nullptr ? options.kernel_init : LecunUniform(fan_in), where);
  const Value product = options.conv.has_value() ? QuantizedContraction({x, kernel}, options.dims, *options.conv,
                                                                        NextContractionName(), where)
                                                 : ops::Conv(x, kernel, options.dims);
  if (!options.use_bias) return product;
  return product + Parameter("bias", {x.dtype(), {options.features}}, options.bias_init, where);
}

}  // namespace aqt::nn
