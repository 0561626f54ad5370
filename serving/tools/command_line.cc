#include "serving/tools/command_line.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/io/printable.h"

namespace aqt::serving {

absl::Status CheckFlagValues(const std::vector<std::string>& args) {
  for (const absl::string_view arg : args) {
    if (arg == "--") break;
    if (!absl::StartsWith(arg, "--") || arg.find('=') != arg.size() - 1) continue;
    const std::string flag = io::Printable(arg.substr(0, arg.size() - 1));
    return absl::InvalidArgumentError(
        absl::StrCat(flag, "= has no value; expected ", flag, "=VALUE, or ", flag, " \"\" for an empty one"));
  }
  return absl::OkStatus();
}

}  // namespace aqt::serving
