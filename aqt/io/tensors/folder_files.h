#ifndef AQT_IO_TENSORS_FOLDER_FILES_H_
#define AQT_IO_TENSORS_FOLDER_FILES_H_

// Private to this folder: the files of a model's folder that are copied unchanged.

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/file.h"

namespace aqt::io {

// What is included:
//   regular files that can be opened      yes, up to 32 folders deep, except names that begin with '.'
//   links to files                        yes, with their target's content. Links out of the folder, such as all
//                                         those in a snapshot of the Hugging Face cache, are named in a warning
//   links to folders inside the folder    followed, except from inside another link
//   links to folders outside              not followed, with a warning: they may lead to anything, also to "/"
//   what is unreadable, broken, looping,  left out with a warning
//   too deep, a pipe, socket or device
struct FolderFiles {
  std::vector<std::string> names;  // relative to the folder, sorted
  std::vector<std::string> warnings;
};

// `own`: names in the folder that the caller reads itself. They are not listed, but warnings mention their links.
// `left_out`: a path inside the folder that is silently skipped, with the old folders that OutputFolder keeps next to
// it; may be empty.
absl::StatusOr<FolderFiles> FindFolderFiles(const FileSystem& fs, const std::string& folder,
                                            const std::set<std::string>& own, const std::string& left_out);

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_FOLDER_FILES_H_
