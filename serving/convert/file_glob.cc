#include "serving/convert/file_glob.h"

#include <fnmatch.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/io/file.h"
#include "aqt/io/printable.h"

namespace aqt::serving {

absl::StatusOr<FileGlob> FileGlob::Parse(absl::string_view text) {
  FileGlob glob;
  glob.text_ = std::string(text);
  absl::string_view pattern = text;
  absl::ConsumePrefix(&pattern, "./");
  if (!absl::ConsumeSuffix(&pattern, "/**")) glob.only_folders_ = absl::ConsumeSuffix(&pattern, "/");
  const bool any_depth = absl::ConsumePrefix(&pattern, "**/");
  glob.pattern_ = std::string(pattern);
  glob.whole_path_ = !any_depth && pattern.find('/') != absl::string_view::npos;
  for (const absl::string_view part : absl::StrSplit(pattern, '/')) {
    if (!part.empty() && part != "." && part != "..") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--exclude ", io::Printable(text),
                     " is not a pattern of files in IN; expected one such as '*.pth', 'checkpoint-*/' or 'a/b.bin'"));
  }
  return glob;
}

bool FileGlob::MatchesOne(const std::string& path, bool is_folder) const {
  if (only_folders_ && !is_folder) return false;
  const std::string subject = whole_path_ ? path : std::string(io::BaseName(path));
  return ::fnmatch(pattern_.c_str(), subject.c_str(), FNM_PATHNAME) == 0;
}

bool FileGlob::Matches(const std::string& path) const {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    if (MatchesOne(path.substr(0, slash), /*is_folder=*/true)) return true;
  }
  return MatchesOne(path, /*is_folder=*/false);
}

}  // namespace aqt::serving
