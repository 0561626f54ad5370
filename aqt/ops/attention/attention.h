#ifndef AQT_OPS_ATTENTION_ATTENTION_H_
#define AQT_OPS_ATTENTION_ATTENTION_H_

// Attention as one operation of a program, "attention". It expands into the basic operations that define it: two
// dot_generals in the scopes "qk" and "av", and the softmax between them. Its kernel gives the same bits by blocks of
// queries, whose scores stay in the cache (kernels/attention/attention.h): its memory does not grow with the product of
// the lengths. (f64 is computed by the expansion.) Its gradient is that of the expansion, bit for bit if its operands
// are different values. It computes the weights once more, so a training keeps none between the passes.

#include <optional>
#include <source_location>

#include "absl/functional/function_ref.h"
#include "aqt/graph/value.h"

namespace aqt {

// The operands: query [batch, queries, heads, features], key [batch, keys, heads, features], value [batch, keys, heads,
// out]. The bias is added to the scores; where the mask, a bool, is false, scores become the lowest finite number. Both
// broadcast to [batch, heads, queries, keys].
struct AttentionOperands {
  Value query, key, value;
  std::optional<Value> bias = std::nullopt, mask = std::nullopt;
};

namespace ops {

// softmax(query key^T / sqrt(features) + bias over the keys) value -> [batch, queries, heads, out]. Scores and softmax
// are computed in f32, or in f64 for f64; both products and the weights are rounded to the dtype of the query. One
// equation if the three tensors have one dtype of f32, bf16, f16 and f64 and the shapes fit; otherwise the basic
// operations, whose errors poison the result.
Value Attention(const AttentionOperands& operands, const std::source_location& where = std::source_location::current());

// The same with another function for the softmax, always in basic operations. `weights` maps scores [batch, heads,
// queries, keys] to weights, which are rounded to the dtype of the query.
Value AttentionBy(const AttentionOperands& operands, absl::FunctionRef<Value(const Value& scores)> weights,
                  const std::source_location& where = std::source_location::current());

}  // namespace ops

}  // namespace aqt

#endif  // AQT_OPS_ATTENTION_ATTENTION_H_
