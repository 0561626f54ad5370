#ifndef AQT_SERVING_FORMATS_MODEL_FACTS_H_
#define AQT_SERVING_FORMATS_MODEL_FACTS_H_

// The facts in a config.json about a model's architecture, for determining the roles of its modules.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aqt::serving {

// A model with several parts (a language model with a vision tower) has a configuration for each part, nested in its
// own: text_config, llm_config, thinker_config.text_config, decoder, ... The lists hold the values of all parts,
// outermost first, without duplicates.
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

  bool empty() const { return model_types.empty() && architectures.empty(); }
};

// Reads the text of a config.json. Values of an unexpected type are ignored. Empty if it is not a JSON object.
ModelFacts ReadModelFacts(absl::string_view json);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_MODEL_FACTS_H_
