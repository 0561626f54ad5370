#include "aqt/io/leftovers.h"

#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/posix.h"

namespace aqt::io {
namespace {

// The result of TemporaryName, "<text>.tmp-<process>-<counter>", without the numbers.
absl::string_view WithoutNumbers(absl::string_view name) {
  constexpr absl::string_view kDigits = "0123456789";
  for (int i = 0; i < 2; ++i) {
    const size_t end = name.find_last_not_of(kDigits);
    if (end == absl::string_view::npos || end + 1 == name.size() || name[end] != '-') return "";
    name = name.substr(0, end);
  }
  return name;
}

// Whether this is a name that OutputFolder gives a replaced folder: "<base>.aqt-old", "<base>.aqt-old-2", ...
bool IsReplaced(absl::string_view name, absl::string_view base) {
  if (!absl::ConsumePrefix(&name, base) || !absl::ConsumePrefix(&name, kReplacedSuffix)) return false;
  return name.empty() || (absl::ConsumePrefix(&name, "-") && !name.empty() &&
                          name.find_first_not_of("0123456789") == absl::string_view::npos);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindLeftovers(const FileSystem& fs, absl::string_view path) {
  const std::string temporary = internal::TemporaryName(path);
  const absl::string_view wanted = WithoutNumbers(BaseName(temporary));
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(FolderOf(path)));
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (WithoutNumbers(name) == wanted || IsReplaced(name, BaseName(path))) {
      found.push_back(JoinPath(FolderOf(path), name));
    }
  }
  return found;
}

}  // namespace aqt::io
