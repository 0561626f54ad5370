#include "serving/formats/model_facts.h"

#include <algorithm>
#include <array>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "aqt/io/json.h"
#include "nlohmann/json.hpp"

namespace aqt::serving {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;   // of the text
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

}  // namespace

ModelFacts ReadModelFacts(absl::string_view text) {
  ModelFacts facts;
  const absl::StatusOr<io::JsonObjectText> object = io::ScanJsonObject(text, kMaxDepth);
  if (!object.ok()) return facts;
  const Json config = Json::parse(object->standard, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return facts;
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

}  // namespace aqt::serving
