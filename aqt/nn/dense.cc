#include "aqt/nn/dense.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt::nn {

QuantizedDotOptions AqtDotGeneral(DotGeneral config, QuantMode weights) {
  return {.config = std::move(config), .rhs_mode = weights, .with_gradient = weights == QuantMode::kTrain};
}

Value Dense(const Value& x, absl::string_view name, const DenseOptions& options, const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (x.status().ok() && x.rank() == 0) {
    return Refuse(absl::InvalidArgumentError("takes an array with at least one axis"), "dense", {x}, where);
  }
  if (options.features < 1) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat("features = ", options.features, ", expected at least 1")),
                  "dense", {x}, where);
  }
  const int64_t in = x.dim(-1);
  const Value kernel = Parameter("kernel", {x.dtype(), {in, options.features}}, options.kernel_init, where);
  const DotDims dims = {.lhs_contracting = {x.rank() - 1}, .rhs_contracting = {0}, .lhs_batch = {}, .rhs_batch = {}};
  const Value product = options.dot_general.has_value()
                            ? QuantizedDot(x, kernel, dims, *options.dot_general, NextContractionName(), where)
                            : ops::DotGeneral(x, kernel, dims);
  if (!options.use_bias) return product;
  return product + Parameter("bias", {x.dtype(), {options.features}}, options.bias_init, where);
}

}  // namespace aqt::nn
