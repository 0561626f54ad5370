// Nomic BERT: BERT with rotary positions, gated networks and mostly no biases. Its config.json has the names of GPT-2,
// or since version 5 of transformers those of BERT.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "aqt/core/ceil_div.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/models/families/activation.h"
#include "aqt/models/families/encoder.h"
#include "aqt/models/families/post_norm.h"
#include "aqt/models/families/rotary_attention.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"
#include "aqt/nn/layers/embed.h"
#include "aqt/nn/layers/norm.h"
#include "aqt/nn/layers/rotary.h"
#include "aqt/ops/functions.h"

namespace aqt::models {
namespace {

constexpr int64_t kHiddenMultiple = 256;  // the code of these models rounds up the width of gated networks

class NomicBert final : public Encoder {
 public:
  explicit NomicBert(ConfigFields& fields) {
    if (fields.Has("hidden_size")) {
      ReadAsBert(fields);
    } else {
      ReadAsGpt2(fields);
    }
  }

  Value Hidden(const EncoderInputs& inputs) const override {
    const int64_t length = inputs.ids.dim(1), width = facts_.width;
    Value x = nn::Embed(inputs.ids, "words", {.entries = facts_.vocabulary, .features = width});
    if (facts_.types > 0) {
      const Value types = inputs.types.value_or(ops::Iota(DType::kS32, {1, 1}, 0));
      x = x + nn::Embed(types, "types", {.entries = facts_.types, .features = width});
    }
    std::optional<nn::RotaryAngles> angles;
    if (turned_ > 0) {
      angles = nn::MakeRotaryAngles(length, turned_, theta_);
    } else {
      x = x + PositionRows(length, positions_, width);
    }
    x = Norm(x, "norm");
    const Value mask = nn::PaddingMask(inputs.lengths, length);
    for (int64_t i = 0; i < layers_; ++i) {
      const NamedScope scope(absl::StrCat("layer", i));
      x = Norm(x + RotaryAttention(x, mask, angles, attention_), "norm1");
      x = Norm(x + Mlp(x), "norm2");
    }
    return x;
  }

  nn::WeightsMap Weights() const override {
    nn::WeightsMap map;
    const std::string base = kBase, layer = base + "encoder\\.layers\\.(\\d+)\\.";
    AddRule(base + "embeddings\\.word_embeddings\\.weight", "words/embedding", map);
    if (facts_.types > 0) AddRule(base + "embeddings\\.token_type_embeddings\\.weight", "types/embedding", map);
    if (turned_ == 0) AddRule(base + "embeddings\\.position_embeddings\\.weight", "positions/embedding", map);
    AddNormRules(base + "emb_ln", "norm", /*bias=*/true, map);
    AddRotaryAttentionRules(layer + "attn\\.Wqkv", layer + "attn\\.out_proj", "layer\\1", attention_.use_bias, map);
    AddNormRules(layer + "norm1", "layer\\1/norm1", /*bias=*/true, map);
    AddDenseRules(layer + (gate_.has_value() ? "mlp\\.fc11" : "mlp\\.fc1"), "layer\\1/fc1", fc1_bias_, false, map);
    if (gate_.has_value()) AddDenseRules(layer + "mlp\\.fc12", "layer\\1/gate", fc1_bias_, false, map);
    AddDenseRules(layer + "mlp\\.fc2", "layer\\1/fc2", fc2_bias_, false, map);
    AddNormRules(layer + "norm2", "layer\\1/norm2", /*bias=*/true, map);
    Ignore("cls\\..*", map);
    return map;
  }

  HeadLayers SequenceHead() const override {
    return {.dense = absl::StrCat(kBase, "pooler\\.dense"), .classifier = "classifier"};
  }

 private:
  static constexpr char kBase[] = "(?:(?:nomic_)?bert\\.)?";

  // As the code beside these models names the fields.
  void ReadAsGpt2(ConfigFields& fields) {
    facts_.vocabulary = RoundUp(fields.Count("vocab_size"), fields.Count("pad_vocab_size_multiple", 1));
    facts_.width = fields.Count("n_embd");
    facts_.max_length = positions_ = fields.Count("n_positions");
    facts_.types = fields.Index("type_vocab_size", 2);
    layers_ = fields.Layers("n_layer");
    epsilon_ = fields.Positive("layer_norm_epsilon", 1e-5);
    attention_.heads = fields.Count("n_head");
    if (facts_.width % attention_.heads != 0) {
      fields.Refuse("n_head", absl::StrCat("a divisor of the width ", facts_.width));
    }
    attention_.use_bias = fields.Flag("qkv_proj_bias", true);
    fc1_bias_ = fields.Flag("mlp_fc1_bias", true);
    fc2_bias_ = fields.Flag("mlp_fc2_bias", true);
    ReadRotary(fields);
    ReadNetwork(fields);
    OnlyPostNormEncoder(fields);
  }

  // As transformers names them since version 5: a part of the models.
  void ReadAsBert(ConfigFields& fields) {
    facts_.vocabulary = fields.Count("vocab_size");
    facts_.width = fields.Count("hidden_size");
    facts_.max_length = fields.Count("max_position_embeddings", 2048);
    facts_.types = fields.Count("type_vocab_size", 2);
    layers_ = fields.Layers("num_hidden_layers");
    hidden_ = fields.Count("intermediate_size");
    epsilon_ = fields.Positive("layer_norm_eps", 1e-12);
    gate_ = fields.Has("hidden_act") ? ReadActivation(fields, "hidden_act") : Activation::kSilu;
    attention_.heads = fields.Count("num_attention_heads");
    turned_ = facts_.width / attention_.heads;
    if (facts_.width % attention_.heads != 0 || turned_ % 2 != 0) {
      fields.Refuse("num_attention_heads", absl::StrCat("a divisor of the width ", facts_.width,
                                                        " that leaves an even number of features for each head"));
    }
    if (fields.Count("head_dim", turned_) != turned_) {
      fields.Refuse("head_dim", absl::StrCat("the ", turned_, " features of a head"));
    }
    theta_ = ReadRopeTheta(fields, "rope_parameters", 1000);
    attention_.use_bias = fc1_bias_ = fc2_bias_ = false;
    OnlyWholeEncoder(fields);
  }

  void ReadRotary(ConfigFields& fields) {
    const int64_t features = facts_.width / attention_.heads;
    const double fraction = fields.NotNegative("rotary_emb_fraction", 0), turned = features * fraction;
    theta_ = fields.Positive("rotary_emb_base", 1000);
    attention_.pairs =
        fields.Flag("rotary_emb_interleaved", false) ? nn::RotaryPairs::kNeighbours : nn::RotaryPairs::kHalves;
    turned_ = static_cast<int64_t>(std::min(turned, features + 1.0));
    if (static_cast<double>(turned_) != turned || turned_ % 2 != 0 || turned_ > features) {
      fields.Refuse("rotary_emb_fraction",
                    absl::StrCat("a fraction that turns an even number of the ", features, " features of a head"));
    }
    const int64_t trained = fields.Count("max_trained_positions", 2048);
    // With this factor the angles change with the length of a text once it exceeds `trained`.
    const bool scales = !fields.IsNull("rotary_scaling_factor") && fields.NotNegative("rotary_scaling_factor", 1) != 0;
    if (turned_ > 0 && scales) facts_.max_length = std::min(facts_.max_length, trained);
    fields.Only("rotary_emb_scale_base", {"null"});
    fields.Only("rotary_head_dim", {"false"});
  }

  void ReadNetwork(ConfigFields& fields) {
    const std::string activation = fields.Text("activation_function", "gelu_new");
    if (activation == "glu") gate_ = Activation::kSigmoid;
    if (activation == "swiglu") gate_ = Activation::kSilu;
    if (activation == "geglu") gate_ = Activation::kGelu;
    if (!gate_.has_value() && activation != "gelu") {
      fields.Refuse("activation_function", "swiglu, geglu, glu or gelu");
    }
    const int64_t width = facts_.width;
    hidden_ = fields.Count("n_inner", gate_.has_value() ? 8 * width / 3 : 4 * width);
    if (gate_.has_value()) hidden_ = RoundUp(hidden_, kHiddenMultiple);
  }

  static void OnlyPostNormEncoder(ConfigFields& fields) {
    OnlyWholeEncoder(fields);
    for (const char* name :
         {"prenorm", "parallel_block", "use_rms_norm", "causal", "norm_mlp", "scale_attn_by_inverse_layer_idx"}) {
      fields.Only(name, {"false"});
    }
    fields.Only("scale_attn_weights", {"true"});
    fields.Only("num_heads_kv", {"null"});
    fields.Only("num_experts", {"0"});
    // How it is computed elsewhere, how GPT-2 summarizes a text, and the code that transformers would download.
    fields.NotRead({"add_pooling_layer", "attn_pdrop", "auto_map", "dense_seq_output", "embd_pdrop", "fused_bias_fc",
                    "fused_dropout_add_ln", "parallel_block_tied_norm", "reorder_and_upcast_attn", "resid_pdrop",
                    "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj",
                    "use_flash_attn", "use_xentropy"});
  }

  Value Norm(const Value& x, absl::string_view name) const { return nn::LayerNorm(x, name, {.epsilon = epsilon_}); }

  // fc2(fc1(x) * act(gate(x))), or without a gate fc2(gelu(fc1(x))).
  Value Mlp(const Value& x) const {
    const nn::DenseOptions wide = {.features = hidden_, .use_bias = fc1_bias_};
    const Value a = nn::Dense(x, "fc1", wide);
    const Value b = gate_.has_value() ? a * Activate(nn::Dense(x, "gate", wide), *gate_) : ops::Gelu(a);
    return nn::Dense(b, "fc2", {.features = facts_.width, .use_bias = fc2_bias_});
  }

  RotaryAttentionOptions attention_;
  int64_t layers_ = 0, hidden_ = 0, positions_ = 0;
  int64_t turned_ = 0;  // features of each head that are turned; 0: positions are learned
  double theta_ = 0, epsilon_ = 0;
  bool fc1_bias_ = true, fc2_bias_ = true;
  std::optional<Activation> gate_;
};

}  // namespace

std::unique_ptr<Encoder> MakeNomicBert(ConfigFields& fields) { return std::make_unique<NomicBert>(fields); }

}  // namespace aqt::models
