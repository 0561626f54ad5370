#ifndef AQT_GRAPH_SOURCE_LINE_H_
#define AQT_GRAPH_SOURCE_LINE_H_

#include <cstdint>
#include <source_location>
#include <string>

#include "absl/strings/str_cat.h"

namespace aqt {

// The line of a model's code that called an operation. `file` points to static storage.
struct SourceLine {
  const char* file = "";
  uint32_t line = 0;

  SourceLine() = default;
  SourceLine(const std::source_location& location)  // NOLINT: the default argument of every operation
      : file(location.file_name()), line(location.line()) {}
  std::string ToString() const { return absl::StrCat(file, ":", line); }  // "model.cc:42"
};

}  // namespace aqt

#endif  // AQT_GRAPH_SOURCE_LINE_H_
