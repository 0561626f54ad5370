// RoBERTa and XLM-R: BERT whose positions begin after the number of the padding token, and without segments in use.

#include <memory>

#include "aqt/graph/basic_ops.h"
#include "aqt/models/encoder.h"
#include "aqt/models/post_norm.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"

namespace aqt::models {
namespace {

class Roberta final : public Encoder {
 public:
  explicit Roberta(ConfigFields& fields) {
    facts_.vocabulary = fields.Count("vocab_size");
    facts_.width = layers_.width = fields.Count("hidden_size");
    positions_ = fields.Count("max_position_embeddings");
    first_position_ = fields.Index("pad_token_id", 1) + 1;
    facts_.max_length = positions_ - first_position_;
    facts_.types = fields.Count("type_vocab_size", 2);
    layers_.layers = fields.Count("num_hidden_layers");
    layers_.heads = fields.Count("num_attention_heads");
    layers_.hidden = fields.Count("intermediate_size");
    layers_.epsilon = fields.Positive("layer_norm_eps", 1e-12);
    layers_.activation = ReadActivation(fields, "hidden_act");
    CheckHeads(layers_, "num_attention_heads", fields);
    if (facts_.max_length < 1) {
      fields.Refuse("max_position_embeddings", "more than pad_token_id + 1: positions begin after it");
    }
    fields.Only("position_embedding_type", {R"("absolute")"});
    fields.Only("is_decoder", {"false"});
    fields.Only("add_cross_attention", {"false"});
    fields.Only("pruned_heads", {"{}"});
    fields.Only("chunk_size_feed_forward", {"0"});  // other sizes only sum in another order
  }

  Value Hidden(const EncoderInputs& inputs) const override {
    const int64_t length = inputs.ids.dim(1), width = facts_.width;
    const Value words = nn::Embed(inputs.ids, "words", {.entries = facts_.vocabulary, .features = width});
    const Value types = inputs.types.value_or(ops::Iota(DType::kS32, {1, 1}, 0));
    const Value segments = nn::Embed(types, "types", {.entries = facts_.types, .features = width});
    const Value sum = words + segments + PositionRows(length, first_position_, positions_, width);
    return PostNormLayers(nn::LayerNorm(sum, "norm", {.epsilon = layers_.epsilon}),
                          nn::PaddingMask(inputs.lengths, length), std::nullopt, layers_);
  }

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map;
    AddRule("(?:roberta\\.)?embeddings\\.word_embeddings\\.weight", "words/embedding", map);
    AddRule("(?:roberta\\.)?embeddings\\.position_embeddings\\.weight", "positions/embedding", map);
    AddRule("(?:roberta\\.)?embeddings\\.token_type_embeddings\\.weight", "types/embedding", map);
    AddNormRules("(?:roberta\\.)?embeddings\\.LayerNorm", "norm", map);
    AddRules({.prefix = "(?:roberta\\.)?encoder\\.layer\\.(\\d+)\\.",
              .query = "attention\\.self\\.query",
              .key = "attention\\.self\\.key",
              .value = "attention\\.self\\.value",
              .out = "attention\\.output\\.dense",
              .norm1 = "attention\\.output\\.LayerNorm",
              .fc1 = "intermediate\\.dense",
              .fc2 = "output\\.dense",
              .norm2 = "output\\.LayerNorm"},
             map);
    Ignore("(?:roberta\\.)?embeddings\\.position_ids", map);  // 0, 1, 2, ...
    Ignore("(?:roberta\\.)?pooler\\..*", map);
    Ignore("lm_head\\..*", map);
    return map;
  }

 private:
  PostNormOptions layers_;
  int64_t positions_ = 0;  // rows of the table
  int64_t first_position_ = 0;
};

}  // namespace

std::unique_ptr<Encoder> MakeRoberta(ConfigFields& fields) { return std::make_unique<Roberta>(fields); }

}  // namespace aqt::models
