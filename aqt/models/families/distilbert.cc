// DistilBERT: BERT without segments, with names of its own.

#include <memory>

#include "aqt/graph/basic_ops.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/post_norm.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"

namespace aqt::models {
namespace {

class DistilBert final : public Encoder {
 public:
  explicit DistilBert(ConfigFields& fields) {
    facts_.vocabulary = fields.Count("vocab_size");
    facts_.width = layers_.width = fields.Count("dim");
    facts_.max_length = fields.Count("max_position_embeddings");
    layers_.layers = fields.Layers("n_layers");
    layers_.heads = fields.Count("n_heads");
    layers_.hidden = fields.Count("hidden_dim");
    layers_.epsilon = 1e-12;
    layers_.activation = ReadActivation(fields, "activation");
    CheckHeads(layers_, "n_heads", fields);
    fields.Flag("sinusoidal_pos_embds", false);  // the table of positions is stored in either case
    OnlyWholeEncoder(fields);
    fields.Flag("tie_weights_", true);
  }

  Value Hidden(const EncoderInputs& inputs) const override {
    const int64_t length = inputs.ids.dim(1), width = facts_.width;
    const Value words = nn::Embed(inputs.ids, "words", {.entries = facts_.vocabulary, .features = width});
    const Value sum = words + PositionRows(length, facts_.max_length, width);
    return PostNormLayers(nn::LayerNorm(sum, "norm", {.epsilon = layers_.epsilon}),
                          nn::PaddingMask(inputs.lengths, length), std::nullopt, layers_);
  }

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map;
    AddRule("(?:distilbert\\.)?embeddings\\.word_embeddings\\.weight", "words/embedding", map);
    AddRule("(?:distilbert\\.)?embeddings\\.position_embeddings\\.weight", "positions/embedding", map);
    AddNormRules("(?:distilbert\\.)?embeddings\\.LayerNorm", "norm", /*bias=*/true, map);
    AddRules({.prefix = "(?:distilbert\\.)?transformer\\.layer\\.(\\d+)\\.",
              .query = "attention\\.q_lin",
              .key = "attention\\.k_lin",
              .value = "attention\\.v_lin",
              .out = "attention\\.out_lin",
              .norm1 = "sa_layer_norm",
              .fc1 = "ffn\\.lin1",
              .fc2 = "ffn\\.lin2",
              .norm2 = "output_layer_norm"},
             map);
    Ignore("(?:distilbert\\.)?embeddings\\.position_ids", map);  // 0, 1, 2, ...
    Ignore("vocab_(?:transform|layer_norm|projector)\\..*", map);
    return map;
  }

  HeadLayers SequenceHead() const override {
    return {.dense = "pre_classifier", .activation = Activation::kRelu, .classifier = "classifier"};
  }

 private:
  PostNormOptions layers_;
};

}  // namespace

std::unique_ptr<Encoder> MakeDistilBert(ConfigFields& fields) { return std::make_unique<DistilBert>(fields); }

}  // namespace aqt::models
