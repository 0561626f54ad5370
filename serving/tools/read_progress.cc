#include "serving/tools/read_progress.h"

#include <utility>

#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

class CountedFile final : public io::RandomAccessFile {
 public:
  CountedFile(std::unique_ptr<io::RandomAccessFile> file, Progress& progress, const std::atomic<bool>* interrupted)
      : file_(std::move(file)), progress_(progress), interrupted_(interrupted) {}
  const std::string& path() const override { return file_->path(); }
  const io::FileInfo& info() const override { return file_->info(); }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    AQT_RETURN_IF_ERROR(CheckCancelled(interrupted_));
    AQT_RETURN_IF_ERROR(file_->Read(offset, dst));
    progress_.Add(static_cast<int64_t>(dst.size()), path());
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<io::RandomAccessFile> file_;
  Progress& progress_;
  const std::atomic<bool>* const interrupted_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<io::RandomAccessFile>> ReadProgress::OpenForReading(absl::string_view path) const {
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<io::RandomAccessFile> file, fs().OpenForReading(path));
  return std::make_unique<CountedFile>(std::move(file), progress_, interrupted_);
}

int64_t BytesToRead(const io::FileSystem& fs, absl::string_view path) {
  const absl::StatusOr<io::FileInfo> info = fs.Stat(path);
  if (!info.ok()) return 0;
  if (info->kind == io::FileKind::kRegular) return info->size;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(path);
  if (!names.ok()) return 0;
  int64_t bytes = 0;
  for (const std::string& name : *names) {
    const absl::StatusOr<io::FileInfo> file = fs.Stat(io::JoinPath(path, name));
    if (file.ok() && file->kind == io::FileKind::kRegular) bytes += file->size;
  }
  return bytes;
}

}  // namespace aqt::serving
