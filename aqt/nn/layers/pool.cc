#include "aqt/nn/layers/pool.h"

#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt::nn {

Value MaxPool(const Value& x, absl::string_view name, const PoolOptions& options, const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  return ops::MaxPool(x, options.window, options.strides, options.padding);
}

Value AvgPool(const Value& x, absl::string_view name, const AvgPoolOptions& options,
              const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  return ops::AvgPool(x, options.window, options.strides, options.padding, options.count_padding);
}

}  // namespace aqt::nn
