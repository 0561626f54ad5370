#ifndef AQT_NN_LAYERS_ATTENTION_H_
#define AQT_NN_LAYERS_ATTENTION_H_

// Attention (Vaswani et al. 2017). It is one operation, ops::Attention (ops/attention/attention.h). Its two products
// are dot_generals in scopes of their own, "qk" and "av": a rule can quantize them like any other (scope: ".*/qk"), and
// the operation is then replaced by its parts. So it is with a dropout of the weights, or another softmax.

#include <cstdint>
#include <optional>
#include <source_location>
#include <variant>

#include "absl/strings/string_view.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/scaling/low_precision.h"

namespace aqt::nn {

// bool [queries, keys]: whether a key is visible to a query. Query i sees the keys up to i + (keys - queries), so the
// last query sees all.
Value CausalMask(int64_t queries, int64_t keys, const std::source_location& where = std::source_location::current());
// lengths s32 [batch] -> bool [batch, 1, 1, keys]: the first `lengths[i]` keys are visible.
Value PaddingMask(const Value& lengths, int64_t keys,
                  const std::source_location& where = std::source_location::current());
// bool [queries, keys]: a query sees the keys at most `distance` before and after its own place, which is i + (keys -
// queries) for query i. Precondition: distance >= 0. The local attention of Beltagy et al. 2020.
Value WindowMask(int64_t queries, int64_t keys, int64_t distance,
                 const std::source_location& where = std::source_location::current());

// The exact softmax, or one of AQT's older layers: ops::LowPrecisionSoftmax, ops::ApproximateSoftmax.
using AttentionSoftmax = std::variant<std::monostate, LowPrecision, SoftmaxApproximation>;

// The options of DotProductAttention.
struct DotProductAttentionOptions {
  // Dropout rate of the weights while training, as in Dropout.
  double dropout_rate = 0.0;
  bool train = true;
  AttentionSoftmax softmax = std::monostate();
  // Added to the scores before the mask; broadcasts to [batch, heads, queries, keys].
  std::optional<Value> bias = std::nullopt;
};

// softmax(query key^T / sqrt(features) + bias over the keys) value:
//   query [batch, queries, heads, features], key [batch, keys, heads, features], value [batch, keys, heads, out]
//   -> [batch, queries, heads, out]
// `mask` is a bool that broadcasts to [batch, heads, queries, keys]. Scores where it is false become the lowest finite
// number, so a query that sees no key gets the mean of all values. The softmax of f16 and bf16 is computed in f32. In
// the scope `name`. Poisoned: InvalidArgument if the shapes do not fit.
Value DotProductAttention(const Value& query, const Value& key, const Value& value, const std::optional<Value>& mask,
                          absl::string_view name, const DotProductAttentionOptions& options = {},
                          const std::source_location& where = std::source_location::current());

// The options of MultiHeadAttention.
struct MultiHeadAttentionOptions {
  int64_t heads = 1;
  // Features of each head. 0: the features of the queries divided among the heads; the number of heads must divide
  // them.
  int64_t head_features = 0;
  // Features of the result. 0: those of the queries.
  int64_t out_features = 0;
  bool use_bias = true;
  // If unset, LecunUniform over the contracted axes.
  Initializer kernel_init = nullptr;
  DotProductAttentionOptions attention = {};
};

// DotProductAttention between projections (DenseGeneral) "query", "key", "value" and "out", in the scope `name`:
//   queries [batch, queries, in], keys_values [batch, keys, in'] -> [batch, queries, out_features]
// For self-attention, pass the same value twice. Poisoned: InvalidArgument if an option is out of range or the shapes
// do not fit.
Value MultiHeadAttention(const Value& queries, const Value& keys_values, const std::optional<Value>& mask,
                         absl::string_view name, const MultiHeadAttentionOptions& options,
                         const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_ATTENTION_H_
