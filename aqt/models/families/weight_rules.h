#ifndef AQT_MODELS_FAMILIES_WEIGHT_RULES_H_
#define AQT_MODELS_FAMILIES_WEIGHT_RULES_H_

// Rules from the tensors of torch's modules to the parameters of our layers. `module` is a regular expression for the
// module's name; `scope` may have \1 .. \9 for its groups.

#include "absl/strings/string_view.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::models {

void AddRule(absl::string_view tensor, absl::string_view param, nn::WeightsMap& map);
void Ignore(absl::string_view tensor, nn::WeightsMap& map);

// The kernel and the bias of a Linear, which torch stores as [out, in]. With `split`, the parameters have the same
// elements with more axes, such as heads.
void AddDenseRules(absl::string_view module, absl::string_view scope, bool bias, bool split, nn::WeightsMap& map);
// The scale and the bias of a LayerNorm.
void AddNormRules(absl::string_view module, absl::string_view scope, bool bias, nn::WeightsMap& map);

}  // namespace aqt::models

#endif  // AQT_MODELS_FAMILIES_WEIGHT_RULES_H_
