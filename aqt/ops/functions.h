#ifndef AQT_OPS_FUNCTIONS_H_
#define AQT_OPS_FUNCTIONS_H_

// Functions that models need, made of basic operations.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"

namespace aqt::ops {

// x where x > 0, else 0; NaN stays NaN. The gradient is passed where x > 0, and is 0 elsewhere. As jax.nn.relu.
Value Relu(const ValueOrNumber& x);

// x Phi(x) = x/2 (1 + erf(x / sqrt(2))), the Gaussian error linear unit (Hendrycks and Gimpel 2016).
Value Gelu(const ValueOrNumber& x);
// The approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) of Gelu.
Value GeluTanh(const ValueOrNumber& x);
// x logistic(x), also known as swish.
Value Silu(const ValueOrNumber& x);

// The sum over all axes, or over `axes`, divided by the number of its terms.
Value Mean(const ValueOrNumber& x);
Value Mean(const ValueOrNumber& x, const Axes& axes, bool keepdims = false);

// exp(x) / sum(exp(x)) over one axis, computed from x minus its maximum: no overflow for finite x.
Value Softmax(const ValueOrNumber& x, int64_t axis = -1);

// x - log(sum(exp(x))) over one axis, computed from x minus its maximum: no overflow for finite x.
Value LogSoftmax(const ValueOrNumber& x, int64_t axis = -1);

// Mean over the examples of -sum(labels * log_softmax(logits)). logits and labels [..., classes]; labels are
// probabilities, such as one-hot rows. A scalar.
Value SoftmaxCrossEntropy(const ValueOrNumber& logits, const ValueOrNumber& labels);

// [...] -> [..., classes]: 1 at each index, s32, and 0 elsewhere; all zeros for an index out of range.
Value OneHot(const ValueOrNumber& indices, int64_t classes, DType dtype = DType::kF32);

// How windows are placed at the edges of an array.
enum class PoolPadding : uint8_t {
  kValid,  // only full windows
  kSame,   // as many windows as steps of the stride; padding is split between both ends, an odd element at the end
};

// The maximum of each window of x [batch, spatial..., channels]. `window` and `strides` have a number for each spatial
// axis; empty `strides` means ones. The gradient of a maximum goes to the first one in its window.
Value MaxPool(const ValueOrNumber& x, const PerAxis& window, const PerAxis& strides = {},
              PoolPadding padding = PoolPadding::kValid);
// The mean of each window, otherwise as MaxPool. Padding counts as zeros, or is excluded without `count_padding`.
Value AvgPool(const ValueOrNumber& x, const PerAxis& window, const PerAxis& strides = {},
              PoolPadding padding = PoolPadding::kValid, bool count_padding = true);

// f32 numbers from [0, 1), multiples of 2^-23, from a key u32[2]. Equal to jax.random.uniform.
Value RandomUniform(const ValueOrNumber& key, const Shape& shape);

}  // namespace aqt::ops

#endif  // AQT_OPS_FUNCTIONS_H_
