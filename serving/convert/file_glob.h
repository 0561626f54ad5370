#ifndef AQT_SERVING_CONVERT_FILE_GLOB_H_
#define AQT_SERVING_CONVERT_FILE_GLOB_H_

// The patterns of `--exclude`, for files and folders in a model's folder.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::serving {

// `*` stands for any text without '/', `?` for a character, `[ab]` for one of these. A pattern without '/' matches
// names at any depth ("*.pth"), one with '/' a path from the model's folder ("original/*.pth"). A pattern that ends in
// '/' matches only folders ("checkpoint-*/"). Everything in a matching folder matches.
class FileGlob {
 public:
  // InvalidArgument if it is empty, absolute, or has a part "." or "..".
  static absl::StatusOr<FileGlob> Parse(absl::string_view text);

  const std::string& text() const { return text_; }
  // `path` is relative to the model's folder.
  bool Matches(const std::string& path) const;

 private:
  FileGlob() = default;
  bool MatchesOne(const std::string& path, bool is_folder) const;

  std::string text_;
  std::string pattern_;  // without a trailing '/'
  bool only_folders_ = false;
  bool whole_path_ = false;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_CONVERT_FILE_GLOB_H_
