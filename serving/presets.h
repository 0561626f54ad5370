#ifndef AQT_SERVING_PRESETS_H_
#define AQT_SERVING_PRESETS_H_

// The files of configs/presets/convert, compiled in.

#include <string>
#include <vector>

namespace aqt::serving {

struct EmbeddedText {
  std::string name;  // of the file, without folder and extension
  std::string text;  // a textproto of aqt.config.Convert
};

// Sorted by name.
std::vector<EmbeddedText> ConvertPresets();

}  // namespace aqt::serving

#endif  // AQT_SERVING_PRESETS_H_
