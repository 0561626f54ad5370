#include "aqt/gguf/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::gguf {
namespace {

// The shortest text that gives this f32 again.
std::string FloatText(float value) {
  std::string text;
  for (int digits = 1; digits <= 9; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtof(text.c_str(), nullptr) == value) break;
  }
  // 10000 is a number with a fraction for readers that look for a type.
  return absl::StrContains(text, '.') || absl::StrContains(text, 'e') ? text : text + ".0";
}

// Lines of a JSON object.
class Lines {
 public:
  void Add(absl::string_view key, absl::string_view text) { lines_.push_back(absl::StrCat("  \"", key, "\": ", text)); }
  std::string Text() const { return absl::StrCat("{\n", absl::StrJoin(lines_, ",\n"), "\n}\n"); }

 private:
  std::vector<std::string> lines_;
};

absl::Status WrongType(const GgufFile& file, absl::string_view key) {
  return absl::DataLossError(absl::StrCat("'", io::PrintableLine(file.path()), "': the value of ",
                                          io::QuoteForMessage(key), " is not a finite number; keep the names of the ",
                                          "file instead (--gguf-names), or correct the metadata"));
}

// A number of the metadata as JSON, or an empty text if there is no such key.
absl::StatusOr<std::string> NumberText(const GgufFile& file, absl::string_view key) {
  const MetadataEntry* const entry = file.Find(key);
  if (entry == nullptr) return std::string();
  if (entry->type == ValueType::kF32 || entry->type == ValueType::kF64) {
    AQT_ASSIGN_OR_RETURN(const std::optional<double> number, file.Number(key));
    const float value = static_cast<float>(*number);
    if (!std::isfinite(value)) return WrongType(file, key);
    return FloatText(value);
  }
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> integer, file.Integer(key));
  if (!integer.has_value()) return WrongType(file, key);
  return absl::StrCat(*integer);
}

absl::Status AddKeys(const GgufFile& file, absl::string_view architecture, absl::Span<const ConfigKey> keys,
                     Lines& lines) {
  for (const ConfigKey& key : keys) {
    AQT_ASSIGN_OR_RETURN(const std::string text, NumberText(file, absl::StrCat(architecture, ".", key.file)));
    if (!text.empty()) lines.Add(key.model, text);
  }
  return absl::OkStatus();
}

absl::Status AddHeadDim(const GgufFile& file, absl::string_view architecture, Lines& lines) {
  for (const absl::string_view name : {"attention.key_length", "rope.dimension_count"}) {
    AQT_ASSIGN_OR_RETURN(const std::string text, NumberText(file, absl::StrCat(architecture, ".", name)));
    if (text.empty()) continue;
    lines.Add("head_dim", text);
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const auto hidden, file.Integer(absl::StrCat(architecture, ".embedding_length")));
  AQT_ASSIGN_OR_RETURN(const auto heads, file.Integer(absl::StrCat(architecture, ".attention.head_count")));
  if (hidden.has_value() && heads.value_or(0) > 0) lines.Add("head_dim", absl::StrCat(*hidden / *heads));
  return absl::OkStatus();
}

// The values of a small F32 tensor.
absl::StatusOr<std::vector<float>> SmallTensor(const GgufModel& model, absl::string_view name) {
  std::vector<float> values;
  for (const GgufFile& file : model.files()) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.name != name || tensor.type != ggml::Type::kF32 || tensor.num_bytes() > 1 << 16) continue;
      values.resize(static_cast<size_t>(tensor.num_bytes() / 4));
      AQT_RETURN_IF_ERROR(file.file().Read(
          tensor.begin, absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(float))));
    }
  }
  return values;
}

std::string ListText(const std::vector<float>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ", ", [](std::string* out, float v) { *out += FloatText(v); }), "]");
}

// The factors of Llama 3: slow waves are divided by `factor`, fast ones are not, and between them is a smooth passage.
bool IsLlama3(const std::vector<float>& factors, double theta, double factor) {
  const double dim = static_cast<double>(2 * factors.size());
  for (size_t i = 0; i < factors.size(); ++i) {
    const double wavelength = 2 * M_PI * std::pow(theta, static_cast<double>(2 * i) / dim);
    const double smooth = std::min(1.0, std::max(0.0, (8192 / wavelength - 1) / 3));
    const double expected = 1 / ((1 - smooth) / factor + smooth);
    if (std::abs(static_cast<double>(factors[i]) - expected) > 1e-3 * expected) return false;
  }
  return true;
}

bool AllFinite(const std::vector<float>& values) {
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

absl::Status AddRopeScaling(const GgufModel& model, absl::string_view architecture, Lines& lines,
                            std::vector<std::string>& warnings) {
  const GgufFile& file = model.first();
  AQT_ASSIGN_OR_RETURN(const std::vector<float> factors, SmallTensor(model, "rope_freqs.weight"));
  if (!factors.empty()) {
    AQT_ASSIGN_OR_RETURN(const auto theta, file.Number(absl::StrCat(architecture, ".rope.freq_base")));
    if (AllFinite(factors) && factors.back() > 1 && IsLlama3(factors, theta.value_or(10000), factors.back())) {
      lines.Add("rope_scaling", absl::StrCat(R"({"rope_type": "llama3", "factor": )", FloatText(factors.back()),
                                             R"(, "low_freq_factor": 1.0, "high_freq_factor": 4.0, )",
                                             R"("original_max_position_embeddings": 8192})"));
    } else {
      warnings.push_back(
          "the tensor rope_freqs.weight has factors of the rotary embedding that are not those of Llama "
          "3; add the model's rope_scaling to config.json");
    }
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const std::vector<float> long_factors, SmallTensor(model, "rope_factors_long.weight"));
  AQT_ASSIGN_OR_RETURN(const std::vector<float> short_factors, SmallTensor(model, "rope_factors_short.weight"));
  if (!long_factors.empty() && !short_factors.empty() && AllFinite(long_factors) && AllFinite(short_factors)) {
    lines.Add("rope_scaling", absl::StrCat(R"({"type": "longrope", "long_factor": )", ListText(long_factors),
                                           R"(, "short_factor": )", ListText(short_factors), "}"));
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const auto type, file.String(absl::StrCat(architecture, ".rope.scaling.type")));
  if (!type.has_value() || *type == "none") return absl::OkStatus();
  if (*type != "linear" && *type != "yarn") {
    warnings.push_back(absl::StrCat("the rotary embedding is scaled by the method ", io::QuoteForMessage(*type),
                                    "; add the model's rope_scaling to config.json"));
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(const std::string factor, NumberText(file, absl::StrCat(architecture, ".rope.scaling.factor")));
  AQT_ASSIGN_OR_RETURN(const std::string original,
                       NumberText(file, absl::StrCat(architecture, ".rope.scaling.original_context_length")));
  lines.Add("rope_scaling",
            absl::StrCat(R"({"rope_type": ")", *type, R"(", "factor": )", factor.empty() ? "1.0" : factor,
                         original.empty() ? "" : R"(, "original_max_position_embeddings": )", original, "}"));
  return absl::OkStatus();
}

}  // namespace

const GgufTensor* FindTensor(const GgufModel& model, absl::string_view name) {
  for (const GgufFile& file : model.files()) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.name == name) return &tensor;
    }
  }
  return nullptr;
}

absl::StatusOr<std::string> MakeModelConfig(const GgufModel& model, const Architecture& architecture,
                                            std::vector<std::string>& warnings) {
  const GgufFile& file = model.first();
  Lines lines;
  lines.Add("architectures", absl::StrCat("[\"", architecture.class_name, "\"]"));
  lines.Add("model_type", absl::StrCat("\"", architecture.model_type, "\""));
  AQT_RETURN_IF_ERROR(AddKeys(file, architecture.name, CommonKeys(), lines));
  AQT_RETURN_IF_ERROR(AddKeys(file, architecture.name, architecture.keys, lines));
  if (architecture.head_dim) AQT_RETURN_IF_ERROR(AddHeadDim(file, architecture.name, lines));
  AQT_RETURN_IF_ERROR(AddRopeScaling(model, architecture.name, lines, warnings));
  if (const GgufTensor* embedding = FindTensor(model, "token_embd.weight"); embedding != nullptr) {
    lines.Add("vocab_size", absl::StrCat(embedding->rows()));
  }
  constexpr ConfigKey kTokens[] = {
      {"bos_token_id", "bos_token_id"},
      {"eos_token_id", "eos_token_id"},
      {"padding_token_id", "pad_token_id"},
  };
  AQT_RETURN_IF_ERROR(AddKeys(file, "tokenizer.ggml", kTokens, lines));
  lines.Add("tie_word_embeddings", FindTensor(model, "output.weight") == nullptr ? "true" : "false");
  if (architecture.name == "gemma2" || architecture.name == "gemma3") {
    warnings.push_back(
        absl::StrCat("the file does not say query_pre_attn_scalar, whose default of 256 in config.json is ",
                     "wrong for the models of 27 billion parameters"));
  }
  if (architecture.name == "qwen3moe") {
    warnings.push_back("the file does not say norm_topk_prob; released models have true, and the default is false");
  }
  return lines.Text();
}

}  // namespace aqt::gguf
