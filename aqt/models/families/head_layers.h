#ifndef AQT_MODELS_FAMILIES_HEAD_LAYERS_H_
#define AQT_MODELS_FAMILIES_HEAD_LAYERS_H_

// The layers between the vectors of the tokens and the logits of classes. Every family has its own order of them.

#include <cstdint>
#include <string>

#include "aqt/graph/value.h"
#include "aqt/models/families/activation.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

//   logits = classifier(norm(act(dense(v))))
// for one vector v of each text, or for that of each token. Modules are regular expressions for names in a checkpoint.
struct HeadLayers {
  enum class Reads : uint8_t {
    kFirst,  // the vector of the first token
    kMean,   // the mean of the vectors of a text
    kEach,   // each token for itself
  };
  Reads reads = Reads::kFirst;
  std::string dense = {};  // a square Linear; empty: neither this layer nor the activation
  bool dense_bias = true;
  Activation activation = Activation::kTanh;
  std::string norm = {};  // a LayerNorm; empty: none
  double epsilon = 0;
  bool norm_bias = true;
  std::string classifier = {};  // a Linear with a bias, [classes, width]
};

// Traces the layers, in the scopes head/dense, head/norm and head/logits. hidden f32 [batch, length, width], of which
// the first lengths s32 [batch] count -> f32 [batch, classes], or f32 [batch, length, classes] for kEach.
Value Logits(const Value& hidden, const Value& lengths, const HeadLayers& layers, int64_t classes);

// The rules for their parameters.
void AddHeadRules(const HeadLayers& layers, nn::WeightsMap& map);
// Ignores the tensors of the layers that `used` does not have.
void IgnoreHead(const HeadLayers& layers, const HeadLayers& used, nn::WeightsMap& map);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_HEAD_LAYERS_H_
