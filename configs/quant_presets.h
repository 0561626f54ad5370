#ifndef AQT_CONFIGS_QUANT_PRESETS_H_
#define AQT_CONFIGS_QUANT_PRESETS_H_

// The files of configs/presets/quant, compiled in: textprotos of aqt.config.DotGeneral.

#include <vector>

#include "configs/embedded_text.h"

namespace aqt::config {

// Sorted by name.
std::vector<EmbeddedText> QuantPresets();

}  // namespace aqt::config

#endif  // AQT_CONFIGS_QUANT_PRESETS_H_
