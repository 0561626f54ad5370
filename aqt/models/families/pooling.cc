#include "aqt/models/families/pooling.h"

#include "aqt/graph/basic_ops.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"

namespace aqt::models {
namespace {

Value PoolOver(const Value& hidden, const Value& lengths, PoolMode mode) {
  const int64_t batch = hidden.dim(0), length = hidden.dim(1), width = hidden.dim(2);
  const auto sum = [&](const Value& mask, const Value& x) { return ops::ReduceSum(ops::Select(mask, x, 0.0), {1}); };
  if (mode == PoolMode::kFirst) {
    return ops::Reshape(ops::Slice(hidden, {0, 0, 0}, {batch, 1, width}), {batch, width});
  }
  const Value place = ops::Iota(DType::kS32, {1, length, 1}, 1);
  if (mode == PoolMode::kLast) {
    return sum(ops::Equal(place, ops::Reshape(lengths, {batch, 1, 1}) - 1), hidden);
  }
  const Value mask = ops::Reshape(nn::PaddingMask(lengths, length), {batch, length, 1});
  if (mode == PoolMode::kMax) return ops::ReduceMax(ops::Select(mask, hidden, -1e9), {1});
  if (mode == PoolMode::kWeightedMean) {
    const Value weights = ops::Cast(place + 1, hidden.dtype());
    return sum(mask, hidden * weights) / ops::Max(sum(mask, weights), 1e-9);
  }
  const Value count = ops::Max(ops::ReduceSum(ops::Cast(mask, hidden.dtype()), {1}), 1e-9);
  return sum(mask, hidden) / (mode == PoolMode::kMean ? count : ops::Sqrt(count));
}

Value PoolOver(const Value& hidden, const Value& lengths, const PoolTokens& pool) {
  std::vector<Value> parts;
  for (const PoolMode mode : pool.modes) parts.push_back(PoolOver(hidden, lengths, mode));
  return parts.size() == 1 ? parts[0] : ops::Concatenate(parts, 1);
}

Value Apply(const Value& x, const DenseStep& dense) {
  const Value y = nn::Dense(x, dense.scope, {.features = dense.out, .use_bias = dense.bias});
  return dense.activation.has_value() ? Activate(y, *dense.activation) : y;
}

}  // namespace

Value Pool(const Value& hidden, const Value& lengths, const Pooling& pooling) {
  Value x = hidden;
  for (const PoolingStep& step : pooling.steps) {
    if (const auto* pool = std::get_if<PoolTokens>(&step)) {
      x = PoolOver(x, lengths, *pool);
    } else if (const auto* dense = std::get_if<DenseStep>(&step)) {
      x = Apply(x, *dense);
    } else {
      x = x / ops::Max(ops::Sqrt(ops::ReduceSum(x * x, {1}, /*keepdims=*/true)), 1e-12);
    }
  }
  return x;
}

}  // namespace aqt::models
