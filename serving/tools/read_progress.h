#ifndef AQT_SERVING_TOOLS_READ_PROGRESS_H_
#define AQT_SERVING_TOOLS_READ_PROGRESS_H_

// A file system whose reads move a progress bar, and that stops reading when the user interrupts.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

// Reads of `fs`, with the bytes added to `progress`. After `interrupted` (may be null) is set, a read is Cancelled.
// Thread-safe. Everything but reading is that of `fs`. All arguments must outlive it and its files.
class ReadProgress final : public io::FileSystem {
 public:
  ReadProgress(const io::FileSystem& fs, Progress& progress, const std::atomic<bool>* interrupted)
      : fs_(fs), progress_(progress), interrupted_(interrupted) {}

  absl::StatusOr<std::unique_ptr<io::RandomAccessFile>> OpenForReading(absl::string_view path) const override;

  absl::StatusOr<std::unique_ptr<io::OutputFile>> CreateOutput(absl::string_view path,
                                                               const io::OutputOptions& options) const override {
    return fs_.CreateOutput(path, options);
  }
  absl::StatusOr<io::FileInfo> Stat(absl::string_view path) const override { return fs_.Stat(path); }
  absl::StatusOr<io::FileInfo> LStat(absl::string_view path) const override { return fs_.LStat(path); }
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
  absl::StatusOr<std::unique_ptr<io::FileLock>> Lock(absl::string_view path) const override { return fs_.Lock(path); }

 private:
  const io::FileSystem& fs_;
  Progress& progress_;
  const std::atomic<bool>* const interrupted_;
};

// The size of the regular files in a folder, or of a file; 0 if it cannot be read.
int64_t BytesToRead(const io::FileSystem& fs, absl::string_view path);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_READ_PROGRESS_H_
