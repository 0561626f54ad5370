#ifndef AQT_OPS_FUNCTIONS_H_
#define AQT_OPS_FUNCTIONS_H_

// Functions that models need, made of basic operations.

#include "aqt/graph/basic_ops.h"
#include "aqt/graph/value.h"

namespace aqt::ops {

// x where x > 0, else 0; the gradient at 0 is 0, and NaN becomes 0 (its gradient, too).
Value Relu(const Operand& x);

// The sum over all axes, or over `axes`, divided by the number of its terms.
Value Mean(const Operand& x);
Value Mean(const Operand& x, const Axes& axes, bool keepdims = false);

// x - log(sum(exp(x))) over one axis, computed from x minus its maximum: no overflow for finite x.
Value LogSoftmax(const Operand& x, int64_t axis = -1);

// Mean over the examples of -sum(labels * log_softmax(logits)). logits and labels [..., classes]; labels are
// probabilities, such as one-hot rows. A scalar.
Value SoftmaxCrossEntropy(const Operand& logits, const Operand& labels);

}  // namespace aqt::ops

#endif  // AQT_OPS_FUNCTIONS_H_
