#include "aqt/models/families/weight_rules.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace aqt::models {

void AddRule(absl::string_view tensor, absl::string_view param, nn::WeightsMap& map) {
  map.rules.push_back({.tensor = std::string(tensor), .slot = Slot{SlotKind::kParam, std::string(param)}});
}

void Ignore(absl::string_view tensor, nn::WeightsMap& map) { map.rules.push_back({.tensor = std::string(tensor)}); }

void AddDenseRules(absl::string_view module, absl::string_view scope, bool bias, bool split, nn::WeightsMap& map) {
  map.rules.push_back({.tensor = absl::StrCat(module, "\\.weight"),
                       .slot = Slot{SlotKind::kParam, absl::StrCat(scope, "/kernel")},
                       .transpose = {1, 0},
                       .reshape = split});
  if (!bias) return;
  map.rules.push_back({.tensor = absl::StrCat(module, "\\.bias"),
                       .slot = Slot{SlotKind::kParam, absl::StrCat(scope, "/bias")},
                       .reshape = split});
}

void AddNormRules(absl::string_view module, absl::string_view scope, bool bias, nn::WeightsMap& map) {
  AddRule(absl::StrCat(module, "\\.weight"), absl::StrCat(scope, "/scale"), map);
  if (bias) AddRule(absl::StrCat(module, "\\.bias"), absl::StrCat(scope, "/bias"), map);
}

}  // namespace aqt::models
