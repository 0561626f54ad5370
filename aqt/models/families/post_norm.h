#ifndef AQT_MODELS_FAMILIES_POST_NORM_H_
#define AQT_MODELS_FAMILIES_POST_NORM_H_

// The layers that BERT and its relatives share: attention, then a network for each token, each with a residual around
// it and a norm after it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aqt/graph/value.h"
#include "aqt/models/families/activation.h"
#include "aqt/models/families/config_fields.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

struct PostNormOptions {
  int64_t layers = 0, heads = 0, width = 0, hidden = 0;
  double epsilon = 1e-12;                     // of the norms
  Activation activation = Activation::kGelu;  // between the two layers of the network for each token
};
// Refuses a number of heads that does not divide the width.
void CheckHeads(const PostNormOptions& options, const std::string& heads_field, ConfigFields& fields);

// Refuses decoders, and heads that were taken out.
void OnlyWholeEncoder(ConfigFields& fields);

// x [batch, length, width]. `bias`, if set, broadcasts to [batch, heads, length, length] and is added to the scores of
// every attention. The layers have the scopes layer0, layer1, ...
Value PostNormLayers(Value x, const Value& mask, const std::optional<Value>& bias, const PostNormOptions& options);

// The first rows of a table of positions [positions, width]: f32 [length, width].
Value PositionRows(int64_t length, int64_t positions, int64_t width);

// Rows for tables whose row `padding` belongs to the tokens of that id, wherever they stand in a text: the other
// tokens have the numbers padding + 1, padding + 2, ... f32 [batch, length, width] for ids s32 [batch, length].
Value PositionRowsAfterPadding(const Value& ids, int64_t padding, int64_t positions, int64_t width);

// The names of a layer's modules, after `prefix`, as regular expressions.
struct PostNormNames {
  std::string prefix;  // matches the text before a module's name; its first group is the number of the layer
  std::string query, key, value, out, norm1, fc1, fc2, norm2;
};
// The rules for the parameters of PostNormLayers. torch stores [out, in], with the heads in one axis.
void AddRules(const PostNormNames& names, nn::WeightsMap& map);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_POST_NORM_H_
