#ifndef AQT_SERVING_FORMATS_WEIGHT_RULES_H_
#define AQT_SERVING_FORMATS_WEIGHT_RULES_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace aqt::serving {

// The arithmetic of quantizing a weight.
enum class WeightRules : uint8_t {
  kCompressedTensors,  // aqt/quant/weights/compressed_tensors.h
  kAqt,                // aqt/quant/weights/aqt_weight.h
};
// "compressed_tensors" or "aqt", as on the command line.
absl::string_view ToString(WeightRules rules);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_WEIGHT_RULES_H_
