#ifndef AQT_SERVING_FAMILIES_MODEL_FAMILIES_TEXT_H_
#define AQT_SERVING_FAMILIES_MODEL_FAMILIES_TEXT_H_

// The file configs/model_families.textproto, compiled in: a textproto of aqt.config.ModelFamilies.

#include <vector>

#include "configs/embedded_text.h"

namespace aqt::serving {

using config::EmbeddedText;

// One element.
std::vector<EmbeddedText> ModelFamiliesText();

}  // namespace aqt::serving

#endif  // AQT_SERVING_FAMILIES_MODEL_FAMILIES_TEXT_H_
