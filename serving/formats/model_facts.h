#ifndef AQT_SERVING_FORMATS_MODEL_FACTS_H_
#define AQT_SERVING_FORMATS_MODEL_FACTS_H_

// What a config.json says about the architecture of a model, for telling what its modules are.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aqt::serving {

// A model with several parts (a language model behind a vision tower) has a configuration for each part, nested in its
// own: text_config, llm_config, thinker_config.text_config, decoder, ... The lists hold the values of all of them, the
// outermost first, without duplicates.
struct ModelFacts {
  std::vector<std::string> model_types;
  std::vector<std::string> architectures;
  std::vector<int64_t> vocab_sizes;
  std::vector<int64_t> hidden_sizes;
  std::vector<int64_t> num_experts;
  // A part is a vision, audio or speech encoder: the key of its configuration ("vision_config").
  std::vector<std::string> towers;
  // `architectures` names a model that ends in an output head over its vocabulary, whether or not it is stored:
  // ...ForCausalLM, ...ForConditionalGeneration, ...ForMaskedLM and others.
  bool has_output_head = false;

  bool empty() const { return model_types.empty() && architectures.empty(); }
};

// Reads the text of a config.json. Values of an unexpected type are passed over. Empty if it is not a JSON object.
ModelFacts ReadModelFacts(absl::string_view json);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_MODEL_FACTS_H_
