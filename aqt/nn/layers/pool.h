#ifndef AQT_NN_LAYERS_POOL_H_
#define AQT_NN_LAYERS_POOL_H_

// Pooling as layers: windows of an array [batch, spatial..., channels], in a scope of their own. They have no
// parameters. The gradients are those of the operations (ops/functions.h).

#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/ops/functions.h"

namespace aqt::nn {

struct PoolOptions {
  PerAxis window = {};   // of each spatial axis; at least 1
  PerAxis strides = {};  // the same; empty: ones, as in Flax
  ops::PoolPadding padding = ops::PoolPadding::kValid;
};

// The largest number of each window. Poisoned: InvalidArgument if window or strides do not have one positive number for
// each spatial axis.
Value MaxPool(const Value& x, absl::string_view name, const PoolOptions& options,
              const std::source_location& where = std::source_location::current());

struct AvgPoolOptions {
  PerAxis window = {}, strides = {};  // as in PoolOptions
  ops::PoolPadding padding = ops::PoolPadding::kValid;
  bool count_padding = true;  // padding counts as zeros; otherwise a mean is that of what is there
};

// The mean of each window. Otherwise as MaxPool.
Value AvgPool(const Value& x, absl::string_view name, const AvgPoolOptions& options,
              const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_POOL_H_
