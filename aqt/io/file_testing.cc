#include "aqt/io/file_testing.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "aqt/io/posix.h"

namespace aqt::io {
namespace internal {

class FaultyCalls final : public PosixCalls {
 public:
  void FailFrom(FileCall call, int64_t first, int64_t last, int error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Plan& plan = plans_[static_cast<int>(call)];
    plan.first = plan.calls + first;
    plan.last = last == kForever ? kForever : plan.calls + last;
    plan.error = error;
  }
  void LimitDisk(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    disk_left_ = bytes;
  }
  void LimitTransfer(int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    transfer_ = bytes;
  }
  void Interrupt() {
    const std::lock_guard<std::mutex> lock(mutex_);
    interrupt_ = true;
  }
  void SetFreeBytes(std::optional<int64_t> bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sets_free_bytes_ = true;
    free_bytes_ = bytes;
  }
  void SetMountPoint(std::string path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    mount_point_ = std::move(path);
  }
  void SetHook(std::function<int(FileCall)> hook) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hook_ = std::move(hook);
  }
  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Plan& plan : plans_) plan = Plan{.calls = plan.calls};
    disk_left_.reset();
    transfer_ = kForever;
    interrupt_ = false;
    sets_free_bytes_ = false;
    mount_point_.clear();
    hook_ = nullptr;
  }
  int64_t NumCalls(FileCall call) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return plans_[static_cast<int>(call)].calls;
  }

  int Open(const char* path, int flags, mode_t mode) const override {
    return Fails(FileCall::kOpen) ? -1 : PosixCalls::Open(path, flags, mode);
  }
  int Stat(const char* path, struct stat* info) const override {
    return Fails(FileCall::kStat) ? -1 : PosixCalls::Stat(path, info);
  }
  int LStat(const char* path, struct stat* info) const override {
    return Fails(FileCall::kStat) ? -1 : PosixCalls::LStat(path, info);
  }
  int FStat(int fd, struct stat* info) const override {
    return Fails(FileCall::kStat) ? -1 : PosixCalls::FStat(fd, info);
  }
  ssize_t PRead(int fd, void* dst, size_t bytes, off_t offset) const override {
    return Fails(FileCall::kRead) ? -1 : PosixCalls::PRead(fd, dst, std::min<size_t>(bytes, Transfer()), offset);
  }
  ssize_t PWrite(int fd, const void* src, size_t bytes, off_t offset) const override {
    if (Fails(FileCall::kWrite)) return -1;
    bytes = std::min<size_t>(bytes, Transfer());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (disk_left_.has_value()) {
        if (*disk_left_ == 0) {
          errno = ENOSPC;
          return -1;
        }
        bytes = std::min<size_t>(bytes, *disk_left_);
        *disk_left_ -= bytes;
      }
    }
    return PosixCalls::PWrite(fd, src, bytes, offset);
  }
  int FAllocate(int fd, off_t bytes) const override {
    return Fails(FileCall::kReserve) ? -1 : PosixCalls::FAllocate(fd, bytes);
  }
  int FSync(int fd) const override { return Fails(FileCall::kSync) ? -1 : PosixCalls::FSync(fd); }
  int FSyncFolder(int fd) const override { return Fails(FileCall::kSyncFolder) ? -1 : PosixCalls::FSyncFolder(fd); }
  int Close(int fd) const override {
    // The descriptor is closed even on failure, as on Linux.
    const bool fails = Fails(FileCall::kClose);
    const int error = errno;
    const int result = PosixCalls::Close(fd);
    if (!fails) return result;
    errno = error;
    return -1;
  }
  int Rename(const char* from, const char* to, bool replace) const override {
    return Fails(FileCall::kRename) ? -1 : PosixCalls::Rename(from, to, replace);
  }
  int Exchange(const char* a, const char* b) const override {
    return Fails(FileCall::kExchange) ? -1 : PosixCalls::Exchange(a, b);
  }
  int FLock(int fd, int operation) const override {
    return Fails(FileCall::kLock) ? -1 : PosixCalls::FLock(fd, operation);
  }
  int StatVfs(const char* path, struct statvfs* info) const override {
    if (Fails(FileCall::kFreeBytes)) return -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!sets_free_bytes_) return PosixCalls::StatVfs(path, info);
    *info = {};
    info->f_frsize = 1;
    info->f_blocks = free_bytes_.has_value() ? *free_bytes_ + 1 : 0;
    info->f_bfree = info->f_bavail = free_bytes_.value_or(0);
    return 0;
  }
  int IsMountPoint(const char* path) const override {
    if (Fails(FileCall::kMountPoint)) return -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    return path == mount_point_ ? 1 : PosixCalls::IsMountPoint(path);
  }
  int Remove(const char* path) const override { return Fails(FileCall::kRemove) ? -1 : PosixCalls::Remove(path); }
  int MkDir(const char* path, mode_t mode) const override {
    return Fails(FileCall::kCreateFolder) ? -1 : PosixCalls::MkDir(path, mode);
  }
  int List(const char* folder, std::vector<std::string>* names) const override {
    return Fails(FileCall::kList) ? -1 : PosixCalls::List(folder, names);
  }

  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

 private:
  struct Plan {
    int64_t calls = 0;
    int64_t first = 0, last = 0;  // calls first .. last fail; none if first is 0
    int error = 0;
  };

  // Counts a call; returns true, with errno set, if it must fail.
  bool Fails(FileCall call) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    Plan& plan = plans_[static_cast<int>(call)];
    ++plan.calls;
    if (const int error = hook_ ? hook_(call) : 0; error != 0) {
      errno = error;
      return true;
    }
    if (plan.first > 0 && plan.first <= plan.calls && plan.calls <= plan.last) {
      errno = plan.error;
      return true;
    }
    const bool interruptible = call == FileCall::kOpen || call == FileCall::kRead || call == FileCall::kWrite ||
                               call == FileCall::kSync || call == FileCall::kSyncFolder;
    if (interrupt_ && interruptible && plan.calls % 2 == 1) {
      errno = EINTR;
      return true;
    }
    return false;
  }
  int64_t Transfer() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return transfer_;
  }

  mutable std::mutex mutex_;
  mutable std::array<Plan, kNumFileCalls> plans_;
  mutable std::optional<int64_t> disk_left_;
  int64_t transfer_ = kForever;
  bool interrupt_ = false;
  bool sets_free_bytes_ = false;
  std::optional<int64_t> free_bytes_;
  std::string mount_point_;
  std::function<int(FileCall)> hook_;
};

}  // namespace internal

FaultInjectingFileSystem::FaultInjectingFileSystem()
    : calls_(std::make_unique<internal::FaultyCalls>()), fs_(std::make_unique<internal::PosixFileSystem>(*calls_)) {}
FaultInjectingFileSystem::~FaultInjectingFileSystem() = default;

void FaultInjectingFileSystem::FailNth(FileCall call, int n, int error) { calls_->FailFrom(call, n, n, error); }
void FaultInjectingFileSystem::FailAll(FileCall call, int error) {
  calls_->FailFrom(call, 1, internal::FaultyCalls::kForever, error);
}
void FaultInjectingFileSystem::LimitDisk(int64_t bytes) { calls_->LimitDisk(bytes); }
void FaultInjectingFileSystem::LimitTransfer(int64_t bytes) { calls_->LimitTransfer(bytes); }
void FaultInjectingFileSystem::Interrupt() { calls_->Interrupt(); }
void FaultInjectingFileSystem::SetFreeBytes(std::optional<int64_t> bytes) { calls_->SetFreeBytes(bytes); }
void FaultInjectingFileSystem::SetMountPoint(std::string path) { calls_->SetMountPoint(std::move(path)); }
void FaultInjectingFileSystem::SetHook(std::function<int(FileCall)> hook) { calls_->SetHook(std::move(hook)); }
void FaultInjectingFileSystem::Clear() { calls_->Clear(); }
int64_t FaultInjectingFileSystem::NumCalls(FileCall call) const { return calls_->NumCalls(call); }

absl::StatusOr<std::unique_ptr<RandomAccessFile>> FaultInjectingFileSystem::OpenForReading(
    absl::string_view path) const {
  return fs_->OpenForReading(path);
}
absl::StatusOr<std::unique_ptr<OutputFile>> FaultInjectingFileSystem::CreateOutput(absl::string_view path,
                                                                                   const OutputOptions& options) const {
  return fs_->CreateOutput(path, options);
}
absl::StatusOr<FileInfo> FaultInjectingFileSystem::Stat(absl::string_view path) const { return fs_->Stat(path); }
absl::StatusOr<FileInfo> FaultInjectingFileSystem::LStat(absl::string_view path) const { return fs_->LStat(path); }
absl::StatusOr<std::string> FaultInjectingFileSystem::RealPath(absl::string_view path) const {
  return fs_->RealPath(path);
}
absl::StatusOr<bool> FaultInjectingFileSystem::IsMountPoint(absl::string_view path) const {
  return fs_->IsMountPoint(path);
}
absl::StatusOr<std::optional<int64_t>> FaultInjectingFileSystem::FreeBytes(absl::string_view path) const {
  return fs_->FreeBytes(path);
}
absl::StatusOr<std::vector<std::string>> FaultInjectingFileSystem::List(absl::string_view folder) const {
  return fs_->List(folder);
}
absl::Status FaultInjectingFileSystem::CreateFolder(absl::string_view path) const { return fs_->CreateFolder(path); }
absl::Status FaultInjectingFileSystem::Remove(absl::string_view path) const { return fs_->Remove(path); }
absl::Status FaultInjectingFileSystem::Rename(absl::string_view from, absl::string_view to) const {
  return fs_->Rename(from, to);
}
absl::Status FaultInjectingFileSystem::Exchange(absl::string_view a, absl::string_view b) const {
  return fs_->Exchange(a, b);
}
absl::Status FaultInjectingFileSystem::SyncFolder(absl::string_view path) const { return fs_->SyncFolder(path); }
absl::StatusOr<std::unique_ptr<FileLock>> FaultInjectingFileSystem::Lock(absl::string_view path) const {
  return fs_->Lock(path);
}

}  // namespace aqt::io
