#ifndef AQT_NN_LAYERS_FP8_DENSE_H_
#define AQT_NN_LAYERS_FP8_DENSE_H_

// Dense layers that multiply in 8-bit floats with delayed scaling, as NVIDIA's FP8 layers for Flax, TensorFlow and
// Praxis do. docs/precision.md says when to use these, and when a preset for the dense layer of dense.h. Differences
// from the originals: docs/differences-from-fp8layers.md.
//
// The parameters are those of nn::Parameter: kernel, always a matrix, and bias, always a vector. The state
// (ops/fp8/fp8_dot.h) is six statistics, input_scale, input_amax_history, kernel_scale, ..., under the name of the
// layer's contraction (NextContractionName: a layer that is used twice has one state for each use). A trainer updates,
// saves and restores them like all statistics. Running the layer without a gradient does not change them.

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

// A function applied to the result of a layer, such as a ReLU.
using Activation = std::function<Value(const Value&)>;

// The options of Fp8Dense. The defaults are those of the Flax layer.
struct Fp8DenseOptions {
  std::vector<int64_t> features = {};  // extents of the new axes; at least one, each at least 1
  Axes axis = {-1};                    // the contracted axes of the input: its last axes, in their order
  bool use_bias = true;
  // The dtype to which input, kernel, bias and the output are converted. Null: the common dtype of input and
  // parameters; then operands are divided by their scales in f32.
  std::optional<DType> dtype = std::nullopt;
  DType param_dtype = DType::kF32;
  int64_t amax_history_length = 16;
  Shape scale_shape = {1};  // or {}, as in TensorFlow
  // An f32 bias is rounded to bf16 before it is added, and so is its gradient. If set, this happens only if the input
  // is a matrix, as in Praxis.
  bool rounds_bias_of_matrices_only = false;
  Initializer kernel_init = LecunUniform({0});
  Initializer bias_init = Zeros();
  Activation activation = nullptr;  // applied to the product with its bias, [rows, features]
  Fp8Compat compat = {};
};

// The options of Flax DenseGeneral.
Fp8DenseOptions FlaxFp8Dense(std::vector<int64_t> features);
// The options of TensorFlow Dense, with a history of 1024 and scales of shape [].
Fp8DenseOptions TensorFlowFp8Dense(int64_t units);
// The options of Praxis Linear, without a bias.
Fp8DenseOptions PraxisFp8Linear(int64_t output_dims);
// The options of Praxis FeedForward, with bias and ReLU.
Fp8DenseOptions PraxisFp8FeedForward(int64_t output_dims);

// y = activation(x kernel + bias) in the scope `name`. x [..., in...] is reshaped to rows of the contracted axes, and y
// is [..., features...]. Poisoned: InvalidArgument if x has fewer than two axes or is not f32, bf16 or f16, or if the
// options do not fit.
Value Fp8Dense(const Value& x, absl::string_view name, const Fp8DenseOptions& options,
               const std::source_location& where = std::source_location::current());

// The options of Fp8Mlp.
struct Fp8MlpOptions {
  int64_t output_dims = 0;
  int64_t num_layers = 3;
  int64_t hidden_dims = 128;
};
// Praxis MLPBlock: `num_layers` layers PraxisFp8FeedForward, "layer_0", "layer_1", ..., in the scope `name`. All but
// the last have `hidden_dims` features; each has its activation. Poisoned: InvalidArgument unless there are at least
// two layers.
Value Fp8Mlp(const Value& x, absl::string_view name, const Fp8MlpOptions& options,
             const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_FP8_DENSE_H_
