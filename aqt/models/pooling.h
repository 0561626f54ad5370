#ifndef AQT_MODELS_POOLING_H_
#define AQT_MODELS_POOLING_H_

// From one vector for each token to one for each text, as sentence-transformers describes it in a model's folder:
// modules.json lists the steps, and each step has a folder (Reimers and Gurevych 2019).

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/graph/value.h"
#include "aqt/io/file.h"

namespace aqt::models {

// A vector for a text from those of its tokens that count.
enum class PoolMode : uint8_t {
  kFirst,
  kMax,   // for each element
  kMean,  // sum / count
  kRoot,  // sum / sqrt(count)
};
// The vectors of these modes, one after the other.
struct PoolTokens {
  std::vector<PoolMode> modes;
};
// act(x kernel + bias). The parameters are <scope>/kernel [in, out] and <scope>/bias [out].
struct DenseStep {
  std::string folder;  // of its weights, relative to the model's
  std::string scope;   // "dense2" for 2_Dense
  int64_t in = 0, out = 0;
  bool bias = true, tanh = false;
};
// x / max(|x|, 1e-12) with the Euclidean length |x|.
struct Normalize {};
using PoolingStep = std::variant<PoolTokens, DenseStep, Normalize>;

struct Pooling {
  std::vector<PoolingStep> steps;
  bool given = false;       // whether the folder says how; else the mean is taken
  int64_t width = 0;        // of the result
  int64_t max_length = 0;   // of a text in tokens, by the folder; 0: not given
  bool lower_case = false;  // texts are changed to lower case before they become tokens
  std::string prompt = {};  // put before each text, or the first of a pair
};

// Reads modules.json and the steps' folders. A folder without modules.json has the steps that sentence-transformers
// adds itself: the mean. The longest text is max_seq_length of sentence_bert_config.json, else model_max_length of
// tokenizer_config.json; the prompt is the one that default_prompt_name of config_sentence_transformers.json names.
// `width` is that of the tokens' vectors. Unimplemented, naming file and field, for a step, a
// mode or an activation that is not computed; InvalidArgument for widths that do not fit.
absl::StatusOr<Pooling> ReadPooling(const io::FileSystem& fs, absl::string_view folder, int64_t width);

// hidden f32 [batch, length, width], of which the first lengths s32 [batch] count -> f32 [batch, pooling.width].
Value Pool(const Value& hidden, const Value& lengths, const Pooling& pooling);

}  // namespace aqt::models

#endif  // AQT_MODELS_POOLING_H_
