#include "aqt/ops/functions.h"

#include <algorithm>
#include <cstdint>

#include "aqt/graph/context.h"

namespace aqt::ops {
Value Relu(const Operand& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  return Select(Greater(value, 0.0), value, 0.0);
}

Value Mean(const Operand& x) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  return ReduceSum(value) / static_cast<double>(value.shape().num_elements());
}

Value Mean(const Operand& x, const Axes& axes, bool keepdims) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  const Value sum = ReduceSum(value, axes, keepdims);
  const int64_t results = sum.shape().num_elements();
  return sum / (static_cast<double>(value.shape().num_elements()) / static_cast<double>(std::max<int64_t>(results, 1)));
}

Value LogSoftmax(const Operand& x, int64_t axis) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  const Value shifted = value - StopGradient(ReduceMax(value, {axis}, /*keepdims=*/true));
  return shifted - Log(ReduceSum(Exp(shifted), {axis}, /*keepdims=*/true));
}

Value SoftmaxCrossEntropy(const Operand& logits, const Operand& labels) {
  const CallSite site(logits.where());
  const Value log_probabilities = LogSoftmax(logits.value());
  return -Mean(ReduceSum(labels.As(log_probabilities.dtype()) * log_probabilities, {-1}));
}

}  // namespace aqt::ops
