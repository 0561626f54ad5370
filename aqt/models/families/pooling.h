#ifndef AQT_MODELS_FAMILIES_POOLING_H_
#define AQT_MODELS_FAMILIES_POOLING_H_

// From one vector for each token to one for each text, in the steps of sentence-transformers (Reimers and Gurevych
// 2019). read_pooling.h reads them from a model's folder.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "aqt/graph/value.h"
#include "aqt/models/families/activation.h"

namespace aqt::models {

// A vector for a text from those of its tokens that count.
enum class PoolMode : uint8_t {
  kFirst,
  kMax,           // for each element
  kMean,          // sum / count
  kRoot,          // sum / sqrt(count)
  kWeightedMean,  // token i has the weight i + 1
  kLast,
};
// The vectors of these modes, one after the other.
struct PoolTokens {
  std::vector<PoolMode> modes;
};
// activation(x kernel + bias). The parameters are <scope>/kernel [in, out] and <scope>/bias [out].
struct DenseStep {
  std::string folder;  // of its weights, relative to the model's
  std::string scope;   // "dense2" for 2_Dense
  int64_t in = 0, out = 0;
  bool bias = true;
  std::optional<Activation> activation = {};
};
// x / max(|x|, 1e-12) with the Euclidean length |x|.
struct Normalize {};
using PoolingStep = std::variant<PoolTokens, DenseStep, Normalize>;

struct Pooling {
  std::vector<PoolingStep> steps;
  bool given = false;        // whether the folder says how; else the mean is taken
  int64_t width = 0;         // of the result
  int64_t max_length = 0;    // of a text in tokens, by the folder; 0: not given
  bool lower_case = false;   // texts are changed to lower case before they become tokens
  std::string prompt = {};   // put before each text, or the first of a pair
  bool pools_prompt = true;  // with false, a prompt is refused
};

// hidden f32 [batch, length, width], of which the first lengths s32 [batch] count -> f32 [batch, pooling.width].
Value Pool(const Value& hidden, const Value& lengths, const Pooling& pooling);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_POOLING_H_
