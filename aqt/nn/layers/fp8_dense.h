#ifndef AQT_NN_LAYERS_FP8_DENSE_H_
#define AQT_NN_LAYERS_FP8_DENSE_H_

// Dense layers that multiply in 8-bit floats with delayed scaling, as NVIDIA's FP8 layers for Flax, TensorFlow and
// Praxis do. docs/precision.md says when to take one of them, and when a preset for the dense layer of dense.h;
// docs/differences-from-fp8layers.md, what differs from the originals.
//
// The parameters are those of nn::Parameter: kernel, always a matrix, and bias, always a vector. The state
// (ops/fp8_dot.h) is six statistics, input_scale, input_amax_history, kernel_scale, ..., under the name of the layer's
// contraction (NextContractionName: a layer that is used twice has one state for each use). A trainer updates, saves
// and restores them like all statistics; running the layer without a gradient does not change them.

#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/fp8/fp8_scaling.h"

namespace aqt::nn {

using Activation = std::function<Value(const Value&)>;

// The defaults are those of the Flax layer.
struct Fp8DenseOptions {
  std::vector<int64_t> features = {};  // extents of the new axes; at least one, each at least 1
  Axes axis = {-1};                    // of the input, which are contracted: its last axes, in their order
  bool use_bias = true;
  // In which input, kernel and bias are converted, and the output is. Null: the dtype that holds input and parameters;
  // operands are divided by their scales in f32 then.
  std::optional<DType> dtype = std::nullopt;
  DType param_dtype = DType::kF32;
  int64_t amax_history_length = 16;
  Shape scale_shape = {1};  // or {}, as in TensorFlow
  // A bias of f32 is rounded to bf16 before it is added, and so is its gradient. With this, only if the input is a
  // matrix, as in Praxis.
  bool rounds_bias_of_matrices_only = false;
  Initializer kernel_init = LecunUniform({0});
  Initializer bias_init = Zeros();
  Activation activation = nullptr;  // of the product with its bias, [rows, features]
  Fp8Compat compat = {};
};

// Flax DenseGeneral; TensorFlow Dense, with a history of 1024 and scales of shape []; Praxis Linear, without a bias;
// and Praxis FeedForward, with bias and ReLU.
Fp8DenseOptions FlaxFp8Dense(std::vector<int64_t> features);
Fp8DenseOptions TensorFlowFp8Dense(int64_t units);
Fp8DenseOptions PraxisFp8Linear(int64_t output_dims);
Fp8DenseOptions PraxisFp8FeedForward(int64_t output_dims);

// y = activation(x kernel + bias) in the scope `name`. x [..., in...] is reshaped to rows of the contracted axes, and y
// is [..., features...]. Poisoned: InvalidArgument if x has fewer than two axes or is not f32, bf16 or f16, or if the
// options do not fit.
Value Fp8Dense(const Value& x, absl::string_view name, const Fp8DenseOptions& options,
               const std::source_location& where = std::source_location::current());

// Praxis MLPBlock: `num_layers` layers PraxisFp8FeedForward, "layer_0", "layer_1", ..., in the scope `name`. All but
// the last have `hidden_dims` features; each has its activation. InvalidArgument unless there are two or more.
struct Fp8MlpOptions {
  int64_t output_dims = 0;
  int64_t num_layers = 3;
  int64_t hidden_dims = 128;
};
Value Fp8Mlp(const Value& x, absl::string_view name, const Fp8MlpOptions& options,
             const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_FP8_DENSE_H_
