#include "aqt/models/post_norm.h"

#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/ops/functions.h"

namespace aqt::models {
namespace {

Value Activate(const Value& x, HiddenActivation activation) {
  switch (activation) {
    case HiddenActivation::kGelu: return ops::Gelu(x);
    case HiddenActivation::kGeluTanh: return ops::GeluTanh(x);
    case HiddenActivation::kRelu: return ops::Relu(x);
    case HiddenActivation::kSilu: return ops::Silu(x);
  }
  return x;
}

Value Layer(const Value& x, const Value& mask, const std::optional<Value>& bias, const PostNormOptions& options) {
  const nn::LayerNormOptions norm = {.epsilon = options.epsilon};
  nn::MultiHeadAttentionOptions attention = {.heads = options.heads};
  attention.attention.bias = bias;
  const Value mixed = nn::LayerNorm(x + nn::MultiHeadAttention(x, x, mask, "attention", attention), "norm1", norm);
  const Value hidden = Activate(nn::Dense(mixed, "fc1", {.features = options.hidden}), options.activation);
  return nn::LayerNorm(mixed + nn::Dense(hidden, "fc2", {.features = options.width}), "norm2", norm);
}

}  // namespace

HiddenActivation ReadActivation(ConfigFields& fields, const std::string& name) {
  const std::string text = fields.Text(name, "gelu");
  if (text == "gelu") return HiddenActivation::kGelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh") return HiddenActivation::kGeluTanh;
  if (text == "relu") return HiddenActivation::kRelu;
  if (text == "silu" || text == "swish") return HiddenActivation::kSilu;
  fields.Refuse(name, "gelu, gelu_new, gelu_pytorch_tanh, relu, silu or swish");
  return HiddenActivation::kGelu;
}

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

Value PositionRows(int64_t length, int64_t first, int64_t positions, int64_t width) {
  const Value numbers = ops::Iota(DType::kS32, {length}, 0) + static_cast<double>(first);
  return nn::Embed(numbers, "positions", {.entries = positions, .features = width});
}

void AddRule(absl::string_view tensor, absl::string_view param, nn::WeightsMap& map) {
  map.rules.push_back({.tensor = std::string(tensor), .slot = Slot{SlotKind::kParam, std::string(param)}});
}

void Ignore(absl::string_view tensor, nn::WeightsMap& map) { map.rules.push_back({.tensor = std::string(tensor)}); }

void AddNormRules(absl::string_view module, absl::string_view scope, nn::WeightsMap& map) {
  AddRule(absl::StrCat(module, "\\.weight"), absl::StrCat(scope, "/scale"), map);
  AddRule(absl::StrCat(module, "\\.bias"), absl::StrCat(scope, "/bias"), map);
}

void AddRules(const PostNormNames& names, nn::WeightsMap& map) {
  const auto dense = [&](const std::string& module, absl::string_view scope, bool heads) {
    const std::string tensor = names.prefix + module, param = absl::StrCat("layer\\1/", scope);
    map.rules.push_back({.tensor = tensor + "\\.weight",
                         .slot = Slot{SlotKind::kParam, param + "/kernel"},
                         .transpose = {1, 0},
                         .reshape = heads});
    map.rules.push_back(
        {.tensor = tensor + "\\.bias", .slot = Slot{SlotKind::kParam, param + "/bias"}, .reshape = heads});
  };
  dense(names.query, "attention/query", /*heads=*/true);
  dense(names.key, "attention/key", /*heads=*/true);
  dense(names.value, "attention/value", /*heads=*/true);
  dense(names.out, "attention/out", /*heads=*/true);
  dense(names.fc1, "fc1", /*heads=*/false);
  dense(names.fc2, "fc2", /*heads=*/false);
  AddNormRules(names.prefix + names.norm1, "layer\\1/norm1", map);
  AddNormRules(names.prefix + names.norm2, "layer\\1/norm2", map);
}

}  // namespace aqt::models
