#ifndef AQT_SERVING_PLAN_PRESETS_H_
#define AQT_SERVING_PLAN_PRESETS_H_

// The files of configs/presets/convert, compiled in: textprotos of aqt.config.Convert.

#include <vector>

#include "configs/embedded_text.h"

namespace aqt::serving {

using config::EmbeddedText;

// Sorted by name.
std::vector<EmbeddedText> ConvertPresets();

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_PRESETS_H_
