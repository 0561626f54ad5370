#ifndef AQT_CONFIGS_EMBEDDED_TEXT_H_
#define AQT_CONFIGS_EMBEDDED_TEXT_H_

// A text file that embed.bzl compiled in.

#include <string>

namespace aqt::config {

struct EmbeddedText {
  std::string name;  // of the file, without folder and extension
  std::string text;
};

}  // namespace aqt::config

#endif  // AQT_CONFIGS_EMBEDDED_TEXT_H_
