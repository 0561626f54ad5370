#include "aqt/models/families/post_norm.h"

#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"

namespace aqt::models {
namespace {

Value Layer(const Value& x, const Value& mask, const std::optional<Value>& bias, const PostNormOptions& options) {
  const nn::LayerNormOptions norm = {.epsilon = options.epsilon};
  nn::MultiHeadAttentionOptions attention = {.heads = options.heads};
  attention.attention.bias = bias;
  const Value mixed = nn::LayerNorm(x + nn::MultiHeadAttention(x, x, mask, "attention", attention), "norm1", norm);
  const Value hidden = Activate(nn::Dense(mixed, "fc1", {.features = options.hidden}), options.activation);
  return nn::LayerNorm(mixed + nn::Dense(hidden, "fc2", {.features = options.width}), "norm2", norm);
}

}  // namespace

void CheckHeads(const PostNormOptions& options, const std::string& heads_field, ConfigFields& fields) {
  if (options.width % options.heads == 0) return;
  fields.Refuse(heads_field, absl::StrCat("a divisor of the width ", options.width));
}

void OnlyWholeEncoder(ConfigFields& fields) {
  fields.Only("is_decoder", {"false"});
  fields.Only("add_cross_attention", {"false"});
  fields.Only("pruned_heads", {"{}"});
  fields.Only("chunk_size_feed_forward", {"0"});  // other sizes only sum in another order
}

Value PostNormLayers(Value x, const Value& mask, const std::optional<Value>& bias, const PostNormOptions& options) {
  for (int64_t i = 0; i < options.layers; ++i) {
    const NamedScope scope(absl::StrCat("layer", i));
    x = Layer(x, mask, bias, options);
  }
  return x;
}

Value PositionRows(int64_t length, int64_t positions, int64_t width) {
  return nn::Embed(ops::Iota(DType::kS32, {length}, 0), "positions", {.entries = positions, .features = width});
}

Value PositionRowsAfterPadding(const Value& ids, int64_t padding, int64_t positions, int64_t width) {
  const Value counts = ops::Cast(ops::NotEqual(ids, static_cast<double>(padding)), DType::kS32);
  const Value numbers = ops::CumulativeSum(counts, 1) * counts + static_cast<double>(padding);
  return nn::Embed(numbers, "positions", {.entries = positions, .features = width});
}

void AddRules(const PostNormNames& names, nn::WeightsMap& map) {
  const auto dense = [&](const std::string& module, absl::string_view scope, bool heads) {
    AddDenseRules(names.prefix + module, absl::StrCat("layer\\1/", scope), /*bias=*/true, heads, map);
  };
  dense(names.query, "attention/query", /*heads=*/true);
  dense(names.key, "attention/key", /*heads=*/true);
  dense(names.value, "attention/value", /*heads=*/true);
  dense(names.out, "attention/out", /*heads=*/true);
  dense(names.fc1, "fc1", /*heads=*/false);
  dense(names.fc2, "fc2", /*heads=*/false);
  AddNormRules(names.prefix + names.norm1, "layer\\1/norm1", /*bias=*/true, map);
  AddNormRules(names.prefix + names.norm2, "layer\\1/norm2", /*bias=*/true, map);
}

}  // namespace aqt::models
