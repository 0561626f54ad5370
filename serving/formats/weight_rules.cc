#include "serving/formats/weight_rules.h"

namespace aqt::serving {

absl::string_view ToString(WeightRules rules) {
  switch (rules) {
    case WeightRules::kCompressedTensors: return "compressed_tensors";
    case WeightRules::kAqt: return "aqt";
  }
  return "?";
}

}  // namespace aqt::serving
