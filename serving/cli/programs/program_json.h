#ifndef AQT_SERVING_CLI_PROGRAMS_PROGRAM_JSON_H_
#define AQT_SERVING_CLI_PROGRAMS_PROGRAM_JSON_H_

#include <string>

#include "absl/strings/string_view.h"
#include "aqt/graph/program.h"

namespace aqt::serving {

// The report of `aqt program FILE --json` (docs/formats/json.md). Variables have the numbers of ToText.
std::string ProgramToJson(const Program& program, absl::string_view source);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_PROGRAMS_PROGRAM_JSON_H_
