#include "examples/minilm/encoder.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/io/json.h"

namespace minilm {

using aqt::Value;
namespace nn = aqt::nn;
namespace ops = aqt::ops;

namespace {

// Reads the members of a JSON object and collects their errors.
class Fields {
 public:
  static absl::StatusOr<Fields> Read(absl::string_view json, absl::string_view source) {
    const absl::StatusOr<aqt::io::JsonObjectText> object = aqt::io::ScanJsonObject(json, /*max_depth=*/16);
    if (!object.ok()) return aqt::Annotate(object.status(), source);
    Fields fields(source);
    for (const auto& member : object->members) {
      fields.text_[member.key] = std::string(json.substr(member.begin, member.end - member.begin));
    }
    return fields;
  }

  void Get(const std::string& name, int64_t& value) {
    if (!absl::SimpleAtoi(text_[name], &value) || value < 1) Wrong(name, "a number from 1 on");
  }
  void Get(const std::string& name, double& value) {
    if (!absl::SimpleAtod(text_[name], &value)) Wrong(name, "a number");
  }
  void Expect(const std::string& name, absl::string_view want) {
    if (text_[name] != want) Wrong(name, want);
  }
  bool Has(const std::string& name) const { return text_.contains(name); }
  const absl::Status& status() const { return status_; }

 private:
  explicit Fields(absl::string_view source) : source_(source) {}
  void Wrong(const std::string& name, absl::string_view want) {
    status_.Update(absl::InvalidArgumentError(
        absl::StrCat(source_, ": ", name, " is ", text_[name].empty() ? "missing" : text_[name], ", expected ", want)));
  }

  std::string source_;
  std::map<std::string, std::string> text_;
  absl::Status status_;
};

// One layer: attention, then a network for each token, each with a residual around it and a norm after it.
Value Block(const Value& x, const Value& mask, const EncoderOptions& options) {
  const nn::LayerNormOptions norm = {.epsilon = options.epsilon};
  const Value attended = nn::MultiHeadAttention(x, x, mask, "attention", {.heads = options.heads});
  const Value mixed = nn::LayerNorm(x + attended, "norm1", norm);
  const Value hidden = ops::Gelu(nn::Dense(mixed, "fc1", {.features = options.hidden}));
  return nn::LayerNorm(mixed + nn::Dense(hidden, "fc2", {.features = options.width}), "norm2", norm);
}

// x [sentences, length, width] -> [sentences, width]
Value MeanOfTokens(const Value& x, const Value& mask) {
  const Value counts = ops::Cast(ops::Reshape(mask, {x.dim(0), x.dim(1), 1}), x.dtype());
  return ops::ReduceSum(x * counts, {1}) / ops::Max(ops::ReduceSum(counts, {1}), 1e-9);
}

}  // namespace

absl::StatusOr<EncoderOptions> ReadOptions(absl::string_view json, absl::string_view source) {
  AQT_ASSIGN_OR_RETURN(Fields fields, Fields::Read(json, source));
  fields.Expect("model_type", R"("bert")");
  fields.Expect("hidden_act", R"("gelu")");
  if (fields.Has("position_embedding_type")) fields.Expect("position_embedding_type", R"("absolute")");
  EncoderOptions options;
  fields.Get("vocab_size", options.vocabulary);
  fields.Get("max_position_embeddings", options.positions);
  fields.Get("hidden_size", options.width);
  fields.Get("num_hidden_layers", options.layers);
  fields.Get("num_attention_heads", options.heads);
  fields.Get("intermediate_size", options.hidden);
  fields.Get("layer_norm_eps", options.epsilon);
  AQT_RETURN_IF_ERROR(fields.status());
  return options;
}

Value Encode(const Value& ids, const Value& lengths, const EncoderOptions& options) {
  const int64_t length = ids.dim(1);
  const Value words = nn::Embed(ids, "words", {.entries = options.vocabulary, .features = options.width});
  const Value positions = nn::Embed(ops::Iota(aqt::DType::kS32, {length}, 0), "positions",
                                    {.entries = options.positions, .features = options.width});
  const Value segment = nn::Parameter("segment", {aqt::DType::kF32, {1, options.width}}, nn::Normal(0.02));
  Value x = nn::LayerNorm(words + positions + segment, "norm", {.epsilon = options.epsilon});
  const Value mask = nn::PaddingMask(lengths, length);
  for (int64_t i = 0; i < options.layers; ++i) {
    const aqt::NamedScope scope(absl::StrCat("layer", i));
    x = Block(x, mask, options);
  }
  const Value mean = MeanOfTokens(x, mask);
  return mean / ops::Max(ops::Sqrt(ops::ReduceSum(mean * mean, {1}, /*keepdims=*/true)), 1e-12);
}

absl::StatusOr<aqt::Program> EncoderProgram(const EncoderOptions& options, int64_t sentences, int64_t length) {
  if (length > options.positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("sentences of ", length, " tokens, expected at most the ", options.positions, " of the model"));
  }
  return aqt::Trace([&](absl::Span<const Value> in) { return std::vector<Value>{Encode(in[0], in[1], options)}; },
                    {{kIds, {aqt::DType::kS32, {sentences, length}}}, {kLengths, {aqt::DType::kS32, {sentences}}}},
                    std::vector<aqt::Slot>{kEmbeddings});
}

}  // namespace minilm
