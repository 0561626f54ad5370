#include "aqt/nn/layers/dense.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt::nn {

QuantizedDotOptions AqtDotGeneral(DotGeneralConfig config, QuantMode weights) {
  return {.config = std::move(config), .rhs_mode = weights, .with_gradient = weights == QuantMode::kTrain};
}

Value Dense(const Value& x, absl::string_view name, const DenseOptions& options, const std::source_location& where) {
  const CallSite site(where);
  if (!x.status().ok()) return x;
  if (options.features < 1 || x.rank() == 0) {
    const NamedScope scope(name);
    return Refuse(absl::InvalidArgumentError(
                      options.features < 1 ? absl::StrCat("features = ", options.features, ", expected at least 1")
                                           : "takes an array with at least one axis"),
                  "dense", {x}, where);
  }
  return DenseGeneral(x, name,
                      {.features = {options.features},
                       .use_bias = options.use_bias,
                       .dot_general = options.dot_general,
                       .kernel_init = options.kernel_init,
                       .bias_init = options.bias_init},
                      where);
}

Value DenseGeneral(const Value& x, absl::string_view name, const DenseGeneralOptions& options,
                   const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const auto refuse = [&](const absl::Status& status) { return Refuse(status, "dense_general", {x}, where); };
  if (options.features.rank() == 0) return refuse(absl::InvalidArgumentError("there are no features"));
  for (const int64_t extent : options.features) {
    if (extent >= 1) continue;
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("features = ", options.features.ToString(), ", expected at least 1 each")));
  }
  const absl::StatusOr<Axes> axes = NormalizeAxes(options.axes, x.rank());
  if (!axes.ok()) return refuse(axes.status());
  Shape shape;
  Axes fan_in;
  for (const int64_t axis : *axes) {
    fan_in.push_back(shape.rank());
    shape.push_back(x.dim(axis));
  }
  const DotDims dims = {.lhs_contracting = *axes, .rhs_contracting = fan_in, .lhs_batch = {}, .rhs_batch = {}};
  for (const int64_t extent : options.features) shape.push_back(extent);
  const Initializer init = options.kernel_init != nullptr ? options.kernel_init : LecunUniform(fan_in);
  const Value kernel = Parameter("kernel", {x.dtype(), shape}, init, where);
  const Value product = options.dot_general.has_value()
                            ? QuantizedDot(x, kernel, dims, *options.dot_general, NextContractionName(), where)
                            : ops::DotGeneral(x, kernel, dims);
  if (!options.use_bias) return product;
  return product + Parameter("bias", {x.dtype(), options.features}, options.bias_init, where);
}

}  // namespace aqt::nn
