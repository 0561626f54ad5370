#ifndef AQT_MODELS_FAMILIES_ROTARY_ATTENTION_H_
#define AQT_MODELS_FAMILIES_ROTARY_ATTENTION_H_

// Self-attention with rotary positions and one projection for queries, keys and values.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "aqt/graph/value.h"
#include "aqt/models/families/config_fields.h"
#include "aqt/nn/layers/rotary.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

struct RotaryAttentionOptions {
  int64_t heads = 1;  // a divisor of the width
  bool use_bias = false;
  nn::RotaryPairs pairs = nn::RotaryPairs::kHalves;
};

// x [batch, length, width] -> the same. `angles` unset: no positions. In the scope "attention".
Value RotaryAttention(const Value& x, const Value& mask, const std::optional<nn::RotaryAngles>& angles,
                      const RotaryAttentionOptions& options);

// The base of the angles in an object of transformers 5, {"rope_type": "default", "rope_theta": ...}. Refuses other
// types. A missing object is `otherwise`.
double ReadRopeTheta(ConfigFields& fields, const std::string& name, double otherwise);

// The rules for its parameters: modules `qkv` and `out`, regular expressions; the layer has the scope `scope`.
void AddRotaryAttentionRules(absl::string_view qkv, absl::string_view out, absl::string_view scope, bool bias,
                             nn::WeightsMap& map);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_ROTARY_ATTENTION_H_
