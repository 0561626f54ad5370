#include "aqt/nn/layers/attention.h"

#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/dropout.h"
#include "aqt/ops/attention/attention.h"
#include "aqt/ops/functions.h"
#include "aqt/ops/scaling/low_precision.h"

namespace aqt::nn {
namespace {

absl::Status CheckOperands(const Value& query, const Value& key, const Value& value) {
  for (const Value* operand : {&query, &key, &value}) {
    if (operand->rank() == 4) continue;
    return absl::InvalidArgumentError("takes arrays [batch, length, heads, features]");
  }
  const Shape& q = query.shape();
  const Shape& k = key.shape();
  const Shape& v = value.shape();
  if (q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && q[2] == k[2] && k[2] == v[2] && q[3] == k[3]) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "takes query [batch, queries, heads, features], key [batch, keys, heads, features] and value [batch, keys, "
      "heads, out]");
}

Value SoftmaxOf(const Value& scores, const AttentionSoftmax& kind) {
  if (const auto* precision = std::get_if<LowPrecision>(&kind)) return ops::LowPrecisionSoftmax(scores, *precision);
  if (const auto* lines = std::get_if<SoftmaxApproximation>(&kind)) return ops::ApproximateSoftmax(scores, *lines);
  return ops::Softmax(scores);
}

}  // namespace

Value CausalMask(int64_t queries, int64_t keys, const std::source_location& where) {
  const CallSite site(where);
  const Value row = ops::Iota(DType::kS32, {queries, keys}, 0), column = ops::Iota(DType::kS32, {queries, keys}, 1);
  return ops::LessEqual(column, row + static_cast<double>(keys - queries));
}

Value PaddingMask(const Value& lengths, int64_t keys, const std::source_location& where) {
  const CallSite site(where);
  if (lengths.status().ok() && (lengths.rank() != 1 || lengths.dtype() != DType::kS32)) {
    return Refuse(absl::InvalidArgumentError("takes lengths s32[batch]"), "padding_mask", {lengths}, where);
  }
  return ops::Less(ops::Iota(DType::kS32, {1, 1, 1, keys}, 3), ops::Reshape(lengths, {lengths.dim(0), 1, 1, 1}));
}

Value WindowMask(int64_t queries, int64_t keys, int64_t distance, const std::source_location& where) {
  const CallSite site(where);
  const Value row = ops::Iota(DType::kS32, {queries, keys}, 0), column = ops::Iota(DType::kS32, {queries, keys}, 1);
  return ops::LessEqual(ops::Abs(column - row - static_cast<double>(keys - queries)), static_cast<double>(distance));
}

Value DotProductAttention(const Value& query, const Value& key, const Value& value, const std::optional<Value>& mask,
                          absl::string_view name, const DotProductAttentionOptions& options,
                          const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  for (const Value* operand : {&query, &key, &value}) {
    if (!operand->status().ok()) return *operand;
  }
  if (absl::Status status = CheckOperands(query, key, value); !status.ok()) {
    return Refuse(status, "dot_product_attention", {query, key, value}, where);
  }
  const AttentionOperands operands{query, key, value, options.bias, mask};
  const double rate = options.dropout_rate;
  const bool drops = rate != 0 && (options.train || !(rate > 0 && rate < 1));
  if (std::holds_alternative<std::monostate>(options.softmax) && !drops) return ops::Attention(operands, where);
  const auto weights = [&](const Value& scores) {
    return Dropout(ops::Cast(SoftmaxOf(scores, options.softmax), query.dtype()), "weights",
                   {.rate = rate, .train = options.train}, where);
  };
  return ops::AttentionBy(operands, weights, where);
}

Value MultiHeadAttention(const Value& queries, const Value& keys_values, const std::optional<Value>& mask,
                         absl::string_view name, const MultiHeadAttentionOptions& options,
                         const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  const auto refuse = [&](const auto&... parts) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat(parts...)), "multi_head_attention", {queries, keys_values},
                  where);
  };
  if (!queries.status().ok() || !keys_values.status().ok()) return queries.status().ok() ? keys_values : queries;
  if (queries.rank() != 3 || keys_values.rank() != 3) {
    return refuse("takes arrays [batch, length, features]");
  }
  const int64_t heads = options.heads, in = queries.dim(-1);
  if (heads < 1 || options.head_features < 0 || options.out_features < 0) {
    return refuse("heads = ", heads, ", head_features = ", options.head_features,
                  ", out_features = ", options.out_features, "; expected at least one head, and features from 0 on");
  }
  if (options.head_features == 0 && in % heads != 0) {
    return refuse(heads, " heads do not divide the ", in, " features; give head_features");
  }
  const int64_t features = options.head_features != 0 ? options.head_features : in / heads;
  const auto projected = [&](const Value& x, absl::string_view projection) {
    return DenseGeneral(
        x, projection,
        {.features = {heads, features}, .use_bias = options.use_bias, .kernel_init = options.kernel_init}, where);
  };
  const Value query = projected(queries, "query"), key = projected(keys_values, "key"),
              value = projected(keys_values, "value");
  const Value mixed = DotProductAttention(query, key, value, mask, "attention", options.attention, where);
  return DenseGeneral(mixed, "out",
                      {.features = {options.out_features != 0 ? options.out_features : in},
                       .axes = {-2, -1},
                       .use_bias = options.use_bias,
                       .kernel_init = options.kernel_init},
                      where);
}

}  // namespace aqt::nn
