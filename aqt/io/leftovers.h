#ifndef AQT_IO_LEFTOVERS_H_
#define AQT_IO_LEFTOVERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::io {

// The temporary files and folders next to `path` that OutputFile and OutputFolder use to write it, and the replaced
// folders that OutputFolder keeps (kReplacedSuffix). They are leftovers of killed processes or output that is being
// written now. Full paths, sorted.
absl::StatusOr<std::vector<std::string>> FindLeftovers(const FileSystem& fs, absl::string_view path);

}  // namespace aqt::io

#endif  // AQT_IO_LEFTOVERS_H_
