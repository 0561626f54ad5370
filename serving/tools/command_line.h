#ifndef AQT_SERVING_TOOLS_COMMAND_LINE_H_
#define AQT_SERVING_TOOLS_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace aqt::serving {

// InvalidArgument, naming the flag, for an argument `--flag=` without a value: the parser would take the next argument
// as its value. Arguments after `--` are not flags.
absl::Status CheckFlagValues(const std::vector<std::string>& args);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_COMMAND_LINE_H_
