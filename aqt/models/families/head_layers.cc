#include "aqt/models/families/head_layers.h"

#include "absl/strings/str_cat.h"
#include "aqt/graph/context.h"
#include "aqt/models/families/pooling.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/norm.h"

namespace aqt::models {

Value Logits(const Value& hidden, const Value& lengths, const HeadLayers& layers, int64_t classes) {
  const NamedScope scope("head");
  const int64_t width = hidden.dim(2);
  Value x = hidden;
  if (layers.reads != HeadLayers::Reads::kEach) {
    const PoolMode mode = layers.reads == HeadLayers::Reads::kFirst ? PoolMode::kFirst : PoolMode::kMean;
    x = Pool(hidden, lengths, {.steps = {PoolTokens{{mode}}}, .width = width});
  }
  if (!layers.dense.empty()) {
    x = Activate(nn::Dense(x, "dense", {.features = width, .use_bias = layers.dense_bias}), layers.activation);
  }
  if (!layers.norm.empty()) {
    x = nn::LayerNorm(x, "norm", {.epsilon = layers.epsilon, .use_bias = layers.norm_bias});
  }
  return nn::Dense(x, "logits", {.features = classes});
}

void AddHeadRules(const HeadLayers& layers, nn::WeightsMap& map) {
  if (!layers.dense.empty()) AddDenseRules(layers.dense, "head/dense", layers.dense_bias, /*split=*/false, map);
  if (!layers.norm.empty()) AddNormRules(layers.norm, "head/norm", layers.norm_bias, map);
  AddDenseRules(layers.classifier, "head/logits", /*bias=*/true, /*split=*/false, map);
}

void IgnoreHead(const HeadLayers& layers, const HeadLayers& used, nn::WeightsMap& map) {
  for (const std::string* module : {&layers.dense, &layers.norm, &layers.classifier}) {
    if (module->empty() || *module == used.dense || *module == used.norm || *module == used.classifier) continue;
    Ignore(absl::StrCat(*module, "\\.(?:weight|bias)"), map);
  }
}

}  // namespace aqt::models
