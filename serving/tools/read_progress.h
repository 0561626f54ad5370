#ifndef AQT_SERVING_TOOLS_READ_PROGRESS_H_
#define AQT_SERVING_TOOLS_READ_PROGRESS_H_

// A file system whose reads move a progress bar, and that stops reading when the user interrupts.

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/forwarding_files.h"
#include "serving/tools/progress.h"

namespace aqt::serving {

// Reads of `fs`, with the bytes added to `progress`. After `interrupted` (may be null) is set, a read is Cancelled.
// Thread-safe. Everything but reading is that of `fs`. All arguments must outlive it and its files.
class ReadProgress final : public io::ForwardingFiles {
 public:
  ReadProgress(const io::FileSystem& fs, Progress& progress, const std::atomic<bool>* interrupted)
      : ForwardingFiles(fs), progress_(progress), interrupted_(interrupted) {}

  absl::StatusOr<std::unique_ptr<io::RandomAccessFile>> OpenForReading(absl::string_view path) const override;

 private:
  Progress& progress_;
  const std::atomic<bool>* const interrupted_;
};

// The size of the regular files in a folder, or of a file; 0 if it cannot be read.
int64_t BytesToRead(const io::FileSystem& fs, absl::string_view path);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_READ_PROGRESS_H_
