#ifndef AQT_SERVING_FORMATS_MODEL_CONFIG_H_
#define AQT_SERVING_FORMATS_MODEL_CONFIG_H_

// The parts of a Hugging Face config.json that the converter needs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::serving {

inline constexpr char kConfigFile[] = "config.json";
// The longest config.json, preset or configuration that is read.
inline constexpr int64_t kMaxConfigBytes = 64 << 20;
// Metadata key under which a conversion to a single safetensors file keeps the quantization_config.
inline constexpr char kQuantizationConfigKey[] = "quantization_config";

// The facts about a model's architecture, for determining the roles of its modules. A model with several parts (a
// language model with a vision tower) has a configuration for each part, nested in its own: text_config, llm_config,
// thinker_config.text_config, decoder, ... The lists hold the values of all parts, outermost first, without duplicates.
// Values of an unexpected type are ignored.
struct ModelFacts {
  std::vector<std::string> model_types;
  std::vector<std::string> architectures;
  std::vector<int64_t> vocab_sizes;
  std::vector<int64_t> hidden_sizes;
  std::vector<int64_t> num_experts;
  // Vision, audio or speech encoders among the parts: the keys of their configurations ("vision_config").
  std::vector<std::string> towers;
  // `architectures` names a model that ends in an output head over its vocabulary, whether or not it is stored:
  // ...ForCausalLM, ...ForConditionalGeneration, ...ForMaskedLM and others.
  bool has_output_head = false;
  // Modules that are embeddings whatever they are called, because the file says so (flax). Not part of a config.json.
  std::vector<std::string> embeddings;

  bool empty() const { return model_types.empty() && architectures.empty(); }
};

struct ModelConfig {
  std::optional<bool> tie_word_embeddings;  // as written
  ModelFacts facts;
  // The text of `quantization_config` or `compression_config`, if present, also within the configuration of a part of
  // the model (`text_config`, `llm_config`).
  std::optional<std::string> quantization_config;
  std::string quant_method;  // its method; empty if not given
  // A file beside config.json that describes a quantization: see quantized_already.h. Empty if there is none.
  std::string quantization_file;
};

// Reads the text of a config.json. DataLoss with line and column as in io::ScanJsonObject. NaN, Infinity and numbers of
// any size are accepted.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_MODEL_CONFIG_H_
