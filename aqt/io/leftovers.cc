#include "aqt/io/leftovers.h"

#include "aqt/core/status_macros.h"
#include "aqt/io/posix.h"

namespace aqt::io {
namespace {

// What TemporaryName gives, without the numbers at its end: "<text>.tmp-<process>-<counter>".
absl::string_view WithoutNumbers(absl::string_view name) {
  constexpr absl::string_view kDigits = "0123456789";
  for (int i = 0; i < 2; ++i) {
    const size_t end = name.find_last_not_of(kDigits);
    if (end == absl::string_view::npos || end + 1 == name.size() || name[end] != '-') return "";
    name = name.substr(0, end);
  }
  return name;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindLeftovers(const FileSystem& fs, absl::string_view path) {
  const std::string temporary = internal::TemporaryName(path);
  const absl::string_view wanted = WithoutNumbers(BaseName(temporary));
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(FolderOf(path)));
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (WithoutNumbers(name) == wanted) found.push_back(JoinPath(FolderOf(path), name));
  }
  return found;
}

}  // namespace aqt::io
