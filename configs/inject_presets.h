#ifndef AQT_CONFIGS_INJECT_PRESETS_H_
#define AQT_CONFIGS_INJECT_PRESETS_H_

// The files of configs/presets/inject, compiled in: textprotos of aqt.config.Inject.

#include <vector>

#include "configs/embedded_text.h"

namespace aqt::config {

// Sorted by name.
std::vector<EmbeddedText> InjectPresets();

}  // namespace aqt::config

#endif  // AQT_CONFIGS_INJECT_PRESETS_H_
