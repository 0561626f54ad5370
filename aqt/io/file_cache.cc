#include "aqt/io/file_cache.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"

namespace aqt::io {

// The open files, most recently used first. A reader shares the file that it reads, because another thread may remove
// it from the list meanwhile.
class FileCache::OpenFiles {
 public:
  explicit OpenFiles(int max_open) : max_open_(static_cast<size_t>(max_open)) {}

  // `owner` identifies the caller, which opens the file by `open` if it is not in the list.
  template <class Open>
  absl::StatusOr<std::shared_ptr<RandomAccessFile>> Get(const void* owner, const Open& open) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto it = std::find_if(files_.begin(), files_.end(), [&](const Entry& entry) { return entry.owner == owner; });
    if (it == files_.end()) {
      AQT_ASSIGN_OR_RETURN(std::shared_ptr<RandomAccessFile> file, open());
      if (files_.size() == max_open_) files_.pop_back();
      it = files_.insert(files_.end(), {owner, std::move(file)});
    }
    std::rotate(files_.begin(), it, it + 1);
    return files_.front().file;
  }

  void Close(const void* owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(files_, [&](const Entry& entry) { return entry.owner == owner; });
  }

 private:
  struct Entry {
    const void* owner;
    std::shared_ptr<RandomAccessFile> file;
  };
  const size_t max_open_;
  std::mutex mutex_;
  std::vector<Entry> files_;
};

class FileCache::CachedFile final : public RandomAccessFile {
 public:
  CachedFile(std::shared_ptr<OpenFiles> open, const FileSystem& fs, std::string path)
      : open_(std::move(open)), fs_(fs), path_(std::move(path)) {}
  ~CachedFile() override { open_->Close(this); }

  absl::Status OpenFirst() {
    return open_
        ->Get(this,
              [&]() -> absl::StatusOr<std::shared_ptr<RandomAccessFile>> {
                AQT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs_.OpenForReading(path_));
                info_ = file->info();
                return std::shared_ptr<RandomAccessFile>(std::move(file));
              })
        .status();
  }

  const std::string& path() const override { return path_; }
  const FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    AQT_ASSIGN_OR_RETURN(const std::shared_ptr<RandomAccessFile> file, open_->Get(this, [&] { return OpenAgain(); }));
    return file->Read(offset, dst);
  }

 private:
  absl::StatusOr<std::shared_ptr<RandomAccessFile>> OpenAgain() const {
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs_.OpenForReading(path_));
    // Some network file systems number their files differently each time.
    if (file->size() != info_.size || file->info().modified_ns != info_.modified_ns) {
      return absl::AbortedError(
          absl::StrCat("'", path_, "' changed while it was being read; start again when nothing is writing it"));
    }
    return std::shared_ptr<RandomAccessFile>(std::move(file));
  }

  const std::shared_ptr<OpenFiles> open_;
  const FileSystem& fs_;
  const std::string path_;
  FileInfo info_;
};

FileCache::FileCache(int max_open) : open_(std::make_shared<OpenFiles>(max_open)) {}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FileCache::Open(const FileSystem& fs, absl::string_view path) {
  auto file = std::make_unique<CachedFile>(open_, fs, std::string(path));
  AQT_RETURN_IF_ERROR(file->OpenFirst());
  return file;
}

}  // namespace aqt::io
