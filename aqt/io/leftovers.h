#ifndef AQT_IO_LEFTOVERS_H_
#define AQT_IO_LEFTOVERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::io {

// The temporary files and folders beside `path` under which OutputFile and OutputFolder write it, and what OutputFolder
// keeps of what it replaced (kReplacedSuffix): what processes that were killed have left, and what is being written
// just now. Whole paths, sorted.
absl::StatusOr<std::vector<std::string>> FindLeftovers(const FileSystem& fs, absl::string_view path);

}  // namespace aqt::io

#endif  // AQT_IO_LEFTOVERS_H_
