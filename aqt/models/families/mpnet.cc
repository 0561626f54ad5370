// MPNet: BERT without segments, whose scores have a learned bias for each head and distance (Raffel et al. 2019).

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/post_norm.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"

namespace aqt::models {
namespace {

// transformers uses these whatever config.json says.
constexpr int64_t kBuckets = 32, kMaxDistance = 128, kPadding = 1;

// The bucket of the distance from query to key: half of the buckets for each direction, of these half for one distance
// each, the others in logarithmic steps up to kMaxDistance.
int32_t Bucket(int64_t query, int64_t key) {
  constexpr int64_t kHalf = kBuckets / 2, kExact = kHalf / 2;
  const int64_t distance = std::abs(query - key), begin = key > query ? kHalf : 0;
  if (distance < kExact) return static_cast<int32_t>(begin + distance);
  const float step = std::log(static_cast<float>(distance) / kExact) /
                     static_cast<float>(std::log(static_cast<double>(kMaxDistance) / kExact)) * (kHalf - kExact);
  return static_cast<int32_t>(begin + std::min(kHalf - 1, kExact + static_cast<int64_t>(step)));
}

class Mpnet final : public Encoder {
 public:
  explicit Mpnet(ConfigFields& fields) {
    facts_.vocabulary = fields.Count("vocab_size");
    facts_.width = layers_.width = fields.Count("hidden_size");
    positions_ = fields.Count("max_position_embeddings");
    facts_.max_length = positions_ - kPadding - 1;
    layers_.layers = fields.Layers("num_hidden_layers");
    layers_.heads = fields.Count("num_attention_heads");
    layers_.hidden = fields.Count("intermediate_size");
    layers_.epsilon = fields.Positive("layer_norm_eps", 1e-12);
    layers_.activation = ReadActivation(fields, "hidden_act");
    CheckHeads(layers_, "num_attention_heads", fields);
    if (facts_.max_length < 1) fields.Refuse("max_position_embeddings", "more than 2: positions begin at 2");
    fields.Only("relative_attention_num_buckets", {"32"});
    OnlyWholeEncoder(fields);
  }

  Value Hidden(const EncoderInputs& inputs) const override {
    const int64_t length = inputs.ids.dim(1), width = facts_.width;
    const Value words = nn::Embed(inputs.ids, "words", {.entries = facts_.vocabulary, .features = width});
    const Value sum = words + PositionRowsAfterPadding(inputs.ids, kPadding, positions_, width);
    return PostNormLayers(nn::LayerNorm(sum, "norm", {.epsilon = layers_.epsilon}),
                          nn::PaddingMask(inputs.lengths, length), Bias(length), layers_);
  }

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map;
    AddRule("(?:mpnet\\.)?embeddings\\.word_embeddings\\.weight", "words/embedding", map);
    AddRule("(?:mpnet\\.)?embeddings\\.position_embeddings\\.weight", "positions/embedding", map);
    AddNormRules("(?:mpnet\\.)?embeddings\\.LayerNorm", "norm", /*bias=*/true, map);
    AddRule("(?:mpnet\\.)?encoder\\.relative_attention_bias\\.weight", "distances/embedding", map);
    AddRules({.prefix = "(?:mpnet\\.)?encoder\\.layer\\.(\\d+)\\.",
              .query = "attention\\.attn\\.q",
              .key = "attention\\.attn\\.k",
              .value = "attention\\.attn\\.v",
              .out = "attention\\.attn\\.o",
              .norm1 = "attention\\.LayerNorm",
              .fc1 = "intermediate\\.dense",
              .fc2 = "output\\.dense",
              .norm2 = "output\\.LayerNorm"},
             map);
    Ignore("(?:mpnet\\.)?embeddings\\.position_ids", map);  // 0, 1, 2, ...
    Ignore("(?:mpnet\\.)?pooler\\..*", map);
    Ignore("lm_head\\..*", map);
    return map;
  }

  HeadLayers SequenceHead() const override {
    return {.dense = "classifier\\.dense", .classifier = "classifier\\.out_proj"};
  }

 private:
  // f32 [1, heads, length, length]
  Value Bias(int64_t length) const {
    std::vector<int32_t> buckets;
    buckets.reserve(length * length);
    for (int64_t query = 0; query < length; ++query) {
      for (int64_t key = 0; key < length; ++key) buckets.push_back(Bucket(query, key));
    }
    const Value numbers(Array::FromSpan(absl::MakeConstSpan(buckets), {length, length}));
    const Value rows = nn::Embed(numbers, "distances", {.entries = kBuckets, .features = layers_.heads});
    return ops::Reshape(ops::Transpose(rows, {2, 0, 1}), {1, layers_.heads, length, length});
  }

  PostNormOptions layers_;
  int64_t positions_ = 0;  // rows of the table
};

}  // namespace

std::unique_ptr<Encoder> MakeMpnet(ConfigFields& fields) { return std::make_unique<Mpnet>(fields); }

}  // namespace aqt::models
