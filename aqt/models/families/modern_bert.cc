// ModernBERT: no positions but the rotary ones, a norm before each part of a layer, gated networks, hardly any biases,
// and attention to a window of tokens in all layers but every third (or as config.json says).

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/models/families/activation.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/rotary_attention.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/rotary.h"

namespace aqt::models {
namespace {

class ModernBert final : public Encoder {
 public:
  explicit ModernBert(ConfigFields& fields) {
    facts_.vocabulary = fields.Count("vocab_size");
    facts_.width = fields.Count("hidden_size");
    facts_.max_length = fields.Count("max_position_embeddings", 8192);
    hidden_ = fields.Count("intermediate_size");
    layers_ = fields.Layers("num_hidden_layers");
    attention_.heads = fields.Count("num_attention_heads");
    if (facts_.width % attention_.heads != 0 || facts_.width / attention_.heads % 2 != 0) {
      fields.Refuse("num_attention_heads", absl::StrCat("a divisor of the width ", facts_.width,
                                                        " that leaves an even number of features for each head"));
    }
    attention_.use_bias = fields.Flag("attention_bias", false);
    mlp_bias_ = fields.Flag("mlp_bias", false);
    norm_bias_ = fields.Flag("norm_bias", false);
    epsilon_ = fields.Positive("norm_eps", 1e-5);
    activation_ = ReadActivation(fields, "hidden_activation");
    window_ = fields.Index("local_attention", 128) / 2;
    ReadRotary(fields);
    ReadLayerTypes(fields);
    ReadHead(fields);
    fields.Only("rope_scaling", {"null"});
    for (const char* name : {"is_decoder", "add_cross_attention", "causal_mask", "is_causal"}) {
      fields.Only(name, {"false"});
    }
    fields.Only("pruned_heads", {"{}"});
    // How it is trained, how it is computed elsewhere, the decoder of words, and names of older versions.
    fields.NotRead({"decoder_bias", "deterministic_flash_attn", "layer_norm_eps", "position_embedding_type",
                    "reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction"});
  }

  Value Hidden(const EncoderInputs& inputs) const override {
    const int64_t length = inputs.ids.dim(1), features = facts_.width / attention_.heads;
    const Value counts = nn::PaddingMask(inputs.lengths, length);
    const View global = {counts, nn::MakeRotaryAngles(length, features, global_theta_)};
    const View local = {ops::And(counts, nn::WindowMask(length, length, window_)),
                        nn::MakeRotaryAngles(length, features, local_theta_)};
    Value x = Norm(nn::Embed(inputs.ids, "words", {.entries = facts_.vocabulary, .features = facts_.width}), "norm");
    for (int64_t i = 0; i < layers_; ++i) {
      const NamedScope scope(absl::StrCat("layer", i));
      const View& view = is_global_[i] ? global : local;
      x = x + RotaryAttention(i == 0 ? x : Norm(x, "norm1"), view.mask, view.angles, attention_);
      x = x + Mlp(Norm(x, "norm2"));
    }
    return Norm(x, "final_norm");
  }

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map;
    const std::string base = "(?:model\\.)?", layer = base + "layers\\.(\\d+)\\.";
    AddRule(base + "embeddings\\.tok_embeddings\\.weight", "words/embedding", map);
    AddNormRules(base + "embeddings\\.norm", "norm", norm_bias_, map);
    AddRotaryAttentionRules(layer + "attn\\.Wqkv", layer + "attn\\.Wo", "layer\\1", attention_.use_bias, map);
    if (layers_ > 1) AddNormRules(layer + "attn_norm", "layer\\1/norm1", norm_bias_, map);
    AddNormRules(layer + "mlp_norm", "layer\\1/norm2", norm_bias_, map);
    AddDenseRules(layer + "mlp\\.Wi", "layer\\1/fc1", mlp_bias_, /*split=*/false, map);
    AddDenseRules(layer + "mlp\\.Wo", "layer\\1/fc2", mlp_bias_, /*split=*/false, map);
    AddNormRules(base + "final_norm", "final_norm", norm_bias_, map);
    Ignore("decoder\\..*", map);
    return map;
  }

  HeadLayers SequenceHead() const override { return head_; }
  HeadLayers TokenHead() const override {
    HeadLayers head = head_;
    head.reads = HeadLayers::Reads::kEach;
    return head;
  }

 private:
  // What a query sees, and how it is turned.
  struct View {
    Value mask;
    nn::RotaryAngles angles;
  };

  void ReadRotary(ConfigFields& fields) {
    global_theta_ = fields.Positive("global_rope_theta", 160000);
    local_theta_ = fields.Positive("local_rope_theta", fields.IsNull("local_rope_theta") ? global_theta_ : 10000);
    if (!fields.Has("rope_parameters")) return;
    ConfigFields both = fields.Object("rope_parameters");  // of transformers 5
    global_theta_ = ReadRopeTheta(both, "full_attention", global_theta_);
    local_theta_ = ReadRopeTheta(both, "sliding_attention", local_theta_);
    fields.Add(both.Finish());
  }

  void ReadLayerTypes(ConfigFields& fields) {
    const int64_t every = fields.Count("global_attn_every_n_layers", 3);
    for (int64_t i = 0; i < layers_; ++i) is_global_.push_back(i % every == 0);
    if (!fields.Has("layer_types")) return;
    const std::vector<std::string> types = fields.Texts("layer_types");  // of transformers 5
    bool known = static_cast<int64_t>(types.size()) == layers_;
    for (size_t i = 0; known && i < types.size(); ++i) {
      is_global_[i] = types[i] == "full_attention";
      known = is_global_[i] || types[i] == "sliding_attention";
    }
    if (!known) {
      fields.Refuse("layer_types",
                    absl::StrCat("full_attention or sliding_attention for each of ", layers_, " layers"));
    }
  }

  void ReadHead(ConfigFields& fields) {
    const std::string pooling = fields.Text("classifier_pooling", "cls");
    if (pooling != "cls" && pooling != "mean") fields.Refuse("classifier_pooling", "cls or mean");
    head_ = {.reads = pooling == "cls" ? HeadLayers::Reads::kFirst : HeadLayers::Reads::kMean,
             .dense = "head\\.dense",
             .dense_bias = fields.Flag("classifier_bias", false),
             .activation = ReadActivation(fields, "classifier_activation"),
             .norm = "head\\.norm",
             .epsilon = epsilon_,
             .norm_bias = norm_bias_,
             .classifier = "classifier"};
  }

  Value Norm(const Value& x, absl::string_view name) const {
    return nn::LayerNorm(x, name, {.epsilon = epsilon_, .use_bias = norm_bias_});
  }

  // fc2(act(a) * b), where a and b are the halves of fc1(x) (Shazeer 2020).
  Value Mlp(const Value& x) const {
    const Value both = nn::Dense(x, "fc1", {.features = 2 * hidden_, .use_bias = mlp_bias_});
    const auto half = [&](int64_t begin) {
      return ops::Slice(both, {0, 0, begin}, {x.dim(0), x.dim(1), begin + hidden_});
    };
    return nn::Dense(Activate(half(0), activation_) * half(hidden_), "fc2",
                     {.features = facts_.width, .use_bias = mlp_bias_});
  }

  RotaryAttentionOptions attention_;
  HeadLayers head_;
  int64_t layers_ = 0, hidden_ = 0;
  std::vector<bool> is_global_;  // whether a layer sees all tokens
  int64_t window_ = 0;           // the others see this number of tokens on each side
  double global_theta_ = 0, local_theta_ = 0, epsilon_ = 0;
  bool mlp_bias_ = false, norm_bias_ = false;
  Activation activation_ = Activation::kGelu;
};

}  // namespace

std::unique_ptr<Encoder> MakeModernBert(ConfigFields& fields) { return std::make_unique<ModernBert>(fields); }

}  // namespace aqt::models
