#ifndef AQT_NN_LAYERS_POOL_H_
#define AQT_NN_LAYERS_POOL_H_

// Pooling layers: windows of an array [batch, spatial..., channels], each layer in its own scope. They have no
// parameters. The gradients are those of the operations (ops/functions.h).

#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/ops/functions.h"

namespace aqt::nn {

// The options of MaxPool.
struct PoolOptions {
  PerAxis window = {};   // extent per spatial axis; at least 1
  PerAxis strides = {};  // stride per spatial axis; empty: ones, as in Flax
  ops::PoolPadding padding = ops::PoolPadding::kValid;
};

// The largest number of each window. Poisoned: InvalidArgument if window or strides do not have one positive number for
// each spatial axis.
Value MaxPool(const Value& x, absl::string_view name, const PoolOptions& options,
              const std::source_location& where = std::source_location::current());

// The options of AvgPool.
struct AvgPoolOptions {
  PerAxis window = {}, strides = {};  // as in PoolOptions
  ops::PoolPadding padding = ops::PoolPadding::kValid;
  bool count_padding = true;  // padding counts as zeros; otherwise only elements of x are averaged
};

// The mean of each window. Otherwise as MaxPool.
Value AvgPool(const Value& x, absl::string_view name, const AvgPoolOptions& options,
              const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_POOL_H_
