#ifndef AQT_IO_MAPPED_FILES_H_
#define AQT_IO_MAPPED_FILES_H_

// Files whose bytes are used where the system has them, instead of being read into memory of their own.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::io {

// A file system for readers that map (tensors/map_tensor.h). Who makes one promises that nobody writes its files in
// place as long as something is mapped. Otherwise the memory changes with the file, and the process gets the signal
// SIGBUS when it reads what has been cut off. Files may be replaced by others, as programs do that write a new file and
// rename it, and may be removed: what is mapped stays. Everything but Map is that of `fs`, which must outlive this.
class MappedFiles final : public FileSystem {
 public:
  explicit MappedFiles(const FileSystem& fs) : fs_(fs) {}

  // `fs`, if it is one; otherwise null.
  static const MappedFiles* Of(const FileSystem& fs) { return dynamic_cast<const MappedFiles*>(&fs); }

  // The bytes [offset, offset + bytes) of a file, at least one, to read. They stay as long as they are held, and take
  // memory, which the system may take back, only where they have been read. Null if the file cannot be mapped, is not
  // the one that Stat describes, or does not have these bytes: reading then works, or says what is wrong.
  std::shared_ptr<const void> Map(absl::string_view path, int64_t offset, int64_t bytes) const;

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForReading(absl::string_view path) const override {
    return fs_.OpenForReading(path);
  }
  absl::StatusOr<std::unique_ptr<OutputFile>> CreateOutput(absl::string_view path,
                                                           const OutputOptions& options) const override {
    return fs_.CreateOutput(path, options);
  }
  absl::StatusOr<FileInfo> Stat(absl::string_view path) const override { return fs_.Stat(path); }
  absl::StatusOr<FileInfo> LStat(absl::string_view path) const override { return fs_.LStat(path); }
  absl::StatusOr<std::string> RealPath(absl::string_view path) const override { return fs_.RealPath(path); }
  absl::StatusOr<bool> IsMountPoint(absl::string_view path) const override { return fs_.IsMountPoint(path); }
  absl::StatusOr<std::optional<int64_t>> FreeBytes(absl::string_view path) const override {
    return fs_.FreeBytes(path);
  }
  absl::StatusOr<std::vector<std::string>> List(absl::string_view folder) const override { return fs_.List(folder); }
  absl::Status CreateFolder(absl::string_view path) const override { return fs_.CreateFolder(path); }
  absl::Status Remove(absl::string_view path) const override { return fs_.Remove(path); }
  absl::Status Rename(absl::string_view from, absl::string_view to) const override { return fs_.Rename(from, to); }
  absl::Status Exchange(absl::string_view a, absl::string_view b) const override { return fs_.Exchange(a, b); }
  absl::Status SyncFolder(absl::string_view path) const override { return fs_.SyncFolder(path); }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(absl::string_view path) const override { return fs_.Lock(path); }

 private:
  const FileSystem& fs_;
};

}  // namespace aqt::io

#endif  // AQT_IO_MAPPED_FILES_H_
