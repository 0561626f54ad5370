#include "serving/formats/model_config.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json_object-inl.h"
#include "aqt/stored/stored_config.h"

namespace aqt::serving {
namespace {

using io::At;
using io::Json;
using io::ParseJsonObject;

constexpr int kMaxNesting = 4;  // of parts

template <class T>
void AddOnce(const T& value, std::vector<T>& values) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

bool IsTowerKey(absl::string_view key) {
  for (const char* word : {"vision", "visual", "audio", "speech", "image"}) {
    if (absl::StrContains(key, word)) return true;
  }
  return false;
}

template <size_t N>
void AddNumbers(const Json& config, const std::array<const char*, N>& keys, std::vector<int64_t>& values) {
  for (const char* key : keys) {
    const auto it = config.find(key);
    if (it != config.end() && it->is_number_unsigned() && *it > 1u) AddOnce(it->template get<int64_t>(), values);
  }
}

void Add(const Json& config, int nesting, ModelFacts& facts) {
  if (const auto it = config.find("model_type"); it != config.end() && it->is_string() && !it->empty()) {
    if (std::string type = it->get<std::string>(); !type.empty()) AddOnce(type, facts.model_types);
  }
  if (const auto it = config.find("architectures"); it != config.end() && it->is_array()) {
    for (const Json& name : *it) {
      if (name.is_string()) AddOnce(name.get<std::string>(), facts.architectures);
    }
  }
  AddNumbers(config, std::array{"vocab_size", "padded_vocab_size"}, facts.vocab_sizes);
  AddNumbers(config, std::array{"hidden_size", "d_model", "n_embd", "dim", "n_embed"}, facts.hidden_sizes);
  AddNumbers(config,
             std::array{"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts",
                        "moe_num_primary_experts"},
             facts.num_experts);
  if (nesting == kMaxNesting) return;
  for (const auto& [key, value] : config.items()) {
    if (!value.is_object()) continue;
    const bool part = absl::EndsWith(key, "_config") || value.contains("model_type");
    if (!part || key == "quantization_config" || key == "compression_config") continue;
    if (IsTowerKey(key)) AddOnce(std::string(key), facts.towers);
    Add(value, nesting + 1, facts);
  }
}

ModelFacts FactsOf(const Json& config) {
  ModelFacts facts;
  Add(config, 0, facts);
  for (const std::string& name : facts.architectures) {
    for (const char* suffix :
         {"ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "DoubleHeadsModel", "MTModel", "ForSpeechToText",
          "ForTextToText", "EncoderDecoderModel", "ForMaskedLM", "ForPreTraining"}) {
      facts.has_output_head = facts.has_output_head || absl::EndsWith(name, suffix);
    }
  }
  return facts;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  ModelConfig config;
  // Models with a vision or audio part keep the language model's configuration one level down.
  const Json& inner = At(json, "text_config").is_object() ? At(json, "text_config") : json;
  for (const Json* part : {&json, &inner}) {
    const Json& tied = At(*part, "tie_word_embeddings");
    if (!config.tie_word_embeddings.has_value() && tied.is_boolean()) config.tie_word_embeddings = tied.get<bool>();
  }
  AQT_ASSIGN_OR_RETURN(const std::string quantization, stored::FindQuantizationConfig(text));
  if (!quantization.empty()) {
    config.quantization_config = quantization;
    const Json parsed = Json::parse(quantization, nullptr, /*allow_exceptions=*/false);
    if (const Json& method = At(parsed, "quant_method"); method.is_string())
      config.quant_method = method.get<std::string>();
  }
  config.facts = FactsOf(json);
  return config;
}

}  // namespace aqt::serving
