#ifndef AQT_IO_FILE_CACHE_H_
#define AQT_IO_FILE_CACHE_H_

// Private to this folder: any number of files to read, with only a few open at a time. A checkpoint of several hundred
// shards would otherwise need as many descriptors.

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::io {

class FileCache {
 public:
  static constexpr int kMaxOpen = 16;

  // In addition, each reading thread may hold one more file open.
  explicit FileCache(int max_open = kMaxOpen);

  // Opens the file, and again later when it is read after others. A read is Aborted if the file at `path` then has
  // another size or modification time. `fs` must outlive the result; the cache need not.
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const FileSystem& fs, absl::string_view path);

 private:
  class OpenFiles;
  class CachedFile;
  std::shared_ptr<OpenFiles> open_;
};

}  // namespace aqt::io

#endif  // AQT_IO_FILE_CACHE_H_
