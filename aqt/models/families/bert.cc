// BERT: words, positions and segments are added, normalized, and go through layers of post_norm.h. RoBERTa and XLM-R
// are BERT whose positions begin after the number of the padding token.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/post_norm.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"

namespace aqt::models {
namespace {

class Bert : public Encoder {
 public:
  // Names of tensors may begin with `base`. Those of the layers that predict words begin with `words`. Positions begin
  // after the number of `padding`, if given.
  Bert(ConfigFields& fields, absl::string_view base, std::string words, std::optional<int64_t> padding)
      : base_(absl::StrCat("(?:", base, "\\.)?")), words_(std::move(words)), padding_(padding) {
    facts_.vocabulary = fields.Count("vocab_size");
    facts_.width = layers_.width = fields.Count("hidden_size");
    positions_ = fields.Count("max_position_embeddings");
    facts_.max_length = padding_.has_value() ? positions_ - *padding_ - 1 : positions_;
    facts_.types = fields.Count("type_vocab_size", 2);
    layers_.layers = fields.Layers("num_hidden_layers");
    layers_.heads = fields.Count("num_attention_heads");
    layers_.hidden = fields.Count("intermediate_size");
    layers_.epsilon = fields.Positive("layer_norm_eps", 1e-12);
    layers_.activation = ReadActivation(fields, "hidden_act");
    CheckHeads(layers_, "num_attention_heads", fields);
    if (facts_.max_length < 1) {
      fields.Refuse("max_position_embeddings", "more than pad_token_id + 1: positions begin after it");
    }
    fields.Only("position_embedding_type", {R"("absolute")"});
    OnlyWholeEncoder(fields);
  }

  Value Hidden(const EncoderInputs& inputs) const override {
    const int64_t length = inputs.ids.dim(1), width = facts_.width;
    const Value words = nn::Embed(inputs.ids, "words", {.entries = facts_.vocabulary, .features = width});
    const Value types = inputs.types.value_or(ops::Iota(DType::kS32, {1, 1}, 0));
    const Value segments = nn::Embed(types, "types", {.entries = facts_.types, .features = width});
    const Value positions = padding_.has_value() ? PositionRowsAfterPadding(inputs.ids, *padding_, positions_, width)
                                                 : PositionRows(length, positions_, width);
    const Value sum = words + segments + positions;
    return PostNormLayers(nn::LayerNorm(sum, "norm", {.epsilon = layers_.epsilon}),
                          nn::PaddingMask(inputs.lengths, length), std::nullopt, layers_);
  }

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map;
    AddRule(base_ + "embeddings\\.word_embeddings\\.weight", "words/embedding", map);
    AddRule(base_ + "embeddings\\.position_embeddings\\.weight", "positions/embedding", map);
    AddRule(base_ + "embeddings\\.token_type_embeddings\\.weight", "types/embedding", map);
    AddNormRules(base_ + "embeddings\\.LayerNorm", "norm", /*bias=*/true, map);
    AddRules({.prefix = base_ + "encoder\\.layer\\.(\\d+)\\.",
              .query = "attention\\.self\\.query",
              .key = "attention\\.self\\.key",
              .value = "attention\\.self\\.value",
              .out = "attention\\.output\\.dense",
              .norm1 = "attention\\.output\\.LayerNorm",
              .fc1 = "intermediate\\.dense",
              .fc2 = "output\\.dense",
              .norm2 = "output\\.LayerNorm"},
             map);
    Ignore(base_ + "embeddings\\.position_ids", map);  // 0, 1, 2, ...
    Ignore(words_ + "\\..*", map);
    return map;
  }

  HeadLayers SequenceHead() const override { return {.dense = base_ + "pooler\\.dense", .classifier = "classifier"}; }

 protected:
  const std::string base_;

 private:
  const std::string words_;
  PostNormOptions layers_;
  int64_t positions_ = 0;  // rows of the table
  const std::optional<int64_t> padding_;
};

class Roberta final : public Bert {
 public:
  explicit Roberta(ConfigFields& fields) : Bert(fields, "roberta", "lm_head", fields.Index("pad_token_id", 1)) {}

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map = Bert::Weights();
    Ignore(base_ + "pooler\\..*", map);
    return map;
  }
  HeadLayers SequenceHead() const override {
    return {.dense = "classifier\\.dense", .classifier = "classifier\\.out_proj"};
  }
};

}  // namespace

std::unique_ptr<Encoder> MakeBert(ConfigFields& fields) {
  return std::make_unique<Bert>(fields, "bert", "cls", std::nullopt);
}

std::unique_ptr<Encoder> MakeRoberta(ConfigFields& fields) { return std::make_unique<Roberta>(fields); }

}  // namespace aqt::models
