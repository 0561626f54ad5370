#ifndef AQT_IO_FORWARDING_FILES_H_
#define AQT_IO_FORWARDING_FILES_H_

// A base for file systems that change one thing about another one.

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

// Passes every call on to `fs`, which must outlive this.
class ForwardingFiles : public FileSystem {
 public:
  explicit ForwardingFiles(const FileSystem& fs) : fs_(fs) {}

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

 protected:
  const FileSystem& fs() const { return fs_; }

 private:
  const FileSystem& fs_;
};

}  // namespace aqt::io

#endif  // AQT_IO_FORWARDING_FILES_H_
