#include "aqt/io/posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"

namespace aqt::io::internal {

int PosixCalls::Open(const char* path, int flags, mode_t mode) const { return ::open(path, flags, mode); }
int PosixCalls::Stat(const char* path, struct stat* info) const { return ::stat(path, info); }
int PosixCalls::LStat(const char* path, struct stat* info) const { return ::lstat(path, info); }
int PosixCalls::FStat(int fd, struct stat* info) const { return ::fstat(fd, info); }
ssize_t PosixCalls::PRead(int fd, void* dst, size_t bytes, off_t offset) const {
  return ::pread(fd, dst, bytes, offset);
}
ssize_t PosixCalls::PWrite(int fd, const void* src, size_t bytes, off_t offset) const {
  return ::pwrite(fd, src, bytes, offset);
}
int PosixCalls::FAllocate(int fd, off_t bytes) const { return ::fallocate(fd, 0, 0, bytes); }
int PosixCalls::FSync(int fd) const { return ::fsync(fd); }
int PosixCalls::FSyncFolder(int fd) const { return ::fsync(fd); }
int PosixCalls::Close(int fd) const { return ::close(fd); }
int PosixCalls::Remove(const char* path) const { return ::remove(path); }
int PosixCalls::MkDir(const char* path, mode_t mode) const { return ::mkdir(path, mode); }
int PosixCalls::FLock(int fd, int operation) const { return ::flock(fd, operation); }
int PosixCalls::StatVfs(const char* path, struct statvfs* info) const { return ::statvfs(path, info); }

int PosixCalls::Exchange(const char* a, const char* b) const {
  return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

int PosixCalls::IsMountPoint(const char* path) const {
  struct statx info;
  if (::statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_INO, &info) == 0 &&
      (info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0 ? 1 : 0;
  }
  // Linux before 5.8: compare the device with the parent folder's. This misses a mounted folder of the same device.
  struct stat at, above;
  const std::string folder(FolderOf(path));
  if (::lstat(path, &at) < 0 || ::stat(folder.c_str(), &above) < 0) return -1;
  return at.st_dev != above.st_dev ? 1 : 0;
}

int PosixCalls::Rename(const char* from, const char* to, bool replace) const {
  if (replace) return ::rename(from, to);
  const int result = ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
  if (result == 0 || (errno != EINVAL && errno != ENOSYS)) return result;
  // The file system or kernel does not support the flag: a file that appears between the two calls is replaced.
  struct stat info;
  if (::lstat(to, &info) == 0) {
    errno = EEXIST;
    return -1;
  }
  return ::rename(from, to);
}

int PosixCalls::List(const char* folder, std::vector<std::string>* names) const {
  DIR* const dir = ::opendir(folder);
  if (dir == nullptr) return -1;
  errno = 0;
  while (const dirent* entry = ::readdir(dir)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names->emplace_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(dir);
  errno = error;
  return error == 0 ? 0 : -1;
}

namespace {

absl::Status Error(int error, absl::string_view operation, absl::string_view path) {
  const absl::Status status = absl::ErrnoToStatus(error, absl::StrCat("cannot ", operation, " '", path, "'"));
  // A loop of links is a state of the file system, not an unknown failure.
  if (error == ELOOP) return absl::FailedPreconditionError(status.message());
  if (error == EMFILE) {
    return absl::Status(status.code(), absl::StrCat(status.message(), "; raise the limit of open files (ulimit -n)"));
  }
  return status;
}

absl::Status CheckPath(absl::string_view path) {
  if (path.empty()) return absl::InvalidArgumentError("the path is empty");
  if (path.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("path '", path.substr(0, path.find('\0')), "...' contains a NUL"));
  }
  return absl::OkStatus();
}

absl::string_view DescribeMode(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a socket";
}

// Calls f again as long as a signal interrupts it.
template <class F>
auto Retry(F&& f) {
  while (true) {
    const auto result = f();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// On Linux close(2) closes the descriptor even if a signal interrupts it, so EINTR is not an error.
int CloseFd(const PosixCalls& calls, int fd) {
  const int result = calls.Close(fd);
  return result < 0 && errno == EINTR ? 0 : result;
}

absl::Status Sync(const PosixCalls& calls, absl::string_view path) {
  const std::string folder(path);
  const int fd = Retry([&] { return calls.Open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0 && errno == EACCES) return absl::OkStatus();  // a folder that may be written but not read
  if (fd < 0) return Error(errno, "open folder", folder);
  const int sync = Retry([&] { return calls.FSyncFolder(fd); });
  const int error = errno;
  CloseFd(calls, fd);
  // Some file systems cannot flush a folder.
  if (sync < 0 && error != EINVAL && error != EROFS && error != EOPNOTSUPP) {
    return Error(error, "flush to disk the folder", folder);
  }
  return absl::OkStatus();
}

// Makes a rename to `path` survive a power failure.
absl::Status SyncFolderOf(const PosixCalls& calls, absl::string_view path) { return Sync(calls, FolderOf(path)); }

FileInfo ToFileInfo(const struct stat& info) {
  FileInfo result;
  result.kind = S_ISREG(info.st_mode)   ? FileKind::kRegular
                : S_ISDIR(info.st_mode) ? FileKind::kFolder
                : S_ISLNK(info.st_mode) ? FileKind::kLink
                                        : FileKind::kOther;
  result.size = result.kind == FileKind::kRegular ? info.st_size : 0;
  result.device = info.st_dev;
  result.inode = info.st_ino;
  result.modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  result.executable = S_ISREG(info.st_mode) && (info.st_mode & 0111) != 0;
  return result;
}

// The limit per call: Linux has one, and a size must fit ssize_t.
constexpr size_t kMaxTransfer = size_t{1} << 30;

class PosixReader final : public RandomAccessFile {
 public:
  PosixReader(const PosixCalls& calls, int fd, std::string path, const FileInfo& info)
      : calls_(calls), fd_(fd), path_(std::move(path)), info_(info) {}
  ~PosixReader() override { CloseFd(calls_, fd_); }

  const std::string& path() const override { return path_; }
  const FileInfo& info() const override { return info_; }

  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    const int64_t bytes = static_cast<int64_t>(dst.size());
    if (offset < 0 || offset > size() || bytes > size() - offset) {
      return absl::OutOfRangeError(absl::StrCat("cannot read '", path_, "': ", bytes, " bytes at ", offset,
                                                " are not inside its ", size(), " bytes"));
    }
    while (!dst.empty()) {
      const ssize_t n =
          Retry([&] { return calls_.PRead(fd_, dst.data(), std::min(dst.size(), kMaxTransfer), offset); });
      if (n < 0) return Error(errno, "read", path_);
      if (n == 0) {
        return absl::DataLossError(absl::StrCat("cannot read '", path_, "': it ends at byte ", offset, " but had ",
                                                size(), " bytes when it was opened"));
      }
      offset += n;
      dst.remove_prefix(n);
    }
    return absl::OkStatus();
  }

 private:
  const PosixCalls& calls_;
  const int fd_;
  const std::string path_;
  const FileInfo info_;
};

class PosixOutput final : public OutputFile {
 public:
  // `target` is `path` with any symbolic link at its end resolved.
  PosixOutput(const PosixCalls& calls, int fd, std::string path, std::string target, std::string temporary,
              bool replace)
      : calls_(calls),
        path_(std::move(path)),
        target_(std::move(target)),
        temporary_(std::move(temporary)),
        replace_(replace),
        fd_(fd) {}

  ~PosixOutput() override {
    if (fd_ >= 0) CloseFd(calls_, fd_);
    if (!renamed_) calls_.Remove(temporary_.c_str());
  }

  const std::string& path() const override { return path_; }

  absl::Status Reserve(int64_t bytes) override {
    if (bytes <= 0) return absl::OkStatus();
    if (Retry([&] { return calls_.FAllocate(fd_, bytes); }) == 0) return absl::OkStatus();
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return absl::OkStatus();
    return Error(errno, absl::StrCat("reserve ", bytes, " bytes for"), path_);
  }

  absl::Status Write(int64_t offset, absl::Span<const uint8_t> data) override {
    if (offset < 0) return absl::OutOfRangeError(absl::StrCat("cannot write '", path_, "' at byte ", offset));
    while (!data.empty()) {
      const ssize_t n =
          Retry([&] { return calls_.PWrite(fd_, data.data(), std::min(data.size(), kMaxTransfer), offset); });
      if (n < 0) return Error(errno, "write", path_);
      if (n == 0) return Error(ENOSPC, "write", path_);  // POSIX allows it, but the loop would not end
      offset += n;
      data.remove_prefix(n);
    }
    return absl::OkStatus();
  }

  absl::Status Commit() override {
    if (fd_ < 0) return absl::FailedPreconditionError(absl::StrCat("Commit was already called for '", path_, "'"));
    const int sync = Retry([&] { return calls_.FSync(fd_); });
    const int sync_error = errno;
    const int close = CloseFd(calls_, std::exchange(fd_, -1));
    if (sync < 0) return Error(sync_error, "flush to disk", path_);
    if (close < 0) return Error(errno, "close", path_);
    if (calls_.Rename(temporary_.c_str(), target_.c_str(), replace_) < 0) {
      return Error(errno, absl::StrCat("rename '", temporary_, "' to"), path_);
    }
    renamed_ = true;
    return SyncFolderOf(calls_, target_);
  }

 private:
  const PosixCalls& calls_;
  const std::string path_;
  const std::string target_;
  const std::string temporary_;
  const bool replace_;
  int fd_;
  bool renamed_ = false;
};

// Held by flock, which ends with the process. The process id in the file is only for messages.
class PosixLock final : public FileLock {
 public:
  PosixLock(const PosixCalls& calls, int fd, std::string path) : calls_(calls), fd_(fd), path_(std::move(path)) {}
  ~PosixLock() override {
    calls_.Remove(path_.c_str());  // while the lock is held, so that it is not another process's file
    CloseFd(calls_, fd_);
  }

 private:
  const PosixCalls& calls_;
  const int fd_;
  const std::string path_;
};

// "process 123", from the file of a lock that another process holds.
std::string Holder(const PosixCalls& calls, int fd) {
  char text[16] = {};
  int pid = 0;
  const ssize_t n = Retry([&] { return calls.PRead(fd, text, sizeof(text), 0); });
  if (n <= 0 || !absl::SimpleAtoi(absl::string_view(text, n), &pid)) return "another process";
  return absl::StrCat("process ", pid);
}

// The file that a path leads to, so that replacing it keeps the links. `path` must exist.
absl::StatusOr<std::string> ResolveLinks(const std::string& path) {
  char* const resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return Error(errno, "resolve", path);
  std::string result = resolved;
  ::free(resolved);
  return result;
}

}  // namespace

std::string TemporaryName(absl::string_view target) {
  static std::atomic<uint64_t> counter{0};
  // Truncated, because file systems allow 255 bytes.
  const absl::string_view base = BaseName(target).substr(0, 128);
  return JoinPath(FolderOf(target), absl::StrCat(".", base, ".tmp-", ::getpid(), "-", ++counter));
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> PosixFileSystem::OpenForReading(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  std::string name(path);
  // Without O_NONBLOCK, opening a pipe would wait for its other end.
  const int fd = Retry([&] { return calls_.Open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); });
  struct stat info;
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT && calls_.LStat(name.c_str(), &info) == 0) {
      return absl::NotFoundError(
          absl::StrCat("cannot open '", name, "': it is a link to something that does not exist"));
    }
    return Error(error, "open", name);
  }
  if (calls_.FStat(fd, &info) < 0) {
    const int error = errno;
    CloseFd(calls_, fd);
    return Error(error, "stat", name);
  }
  if (!S_ISREG(info.st_mode)) {
    CloseFd(calls_, fd);
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read '", name, "': it is ", DescribeMode(info.st_mode), ", not a regular file"));
  }
  return std::make_unique<PosixReader>(calls_, fd, std::move(name), ToFileInfo(info));
}

absl::StatusOr<std::unique_ptr<OutputFile>> PosixFileSystem::CreateOutput(absl::string_view path,
                                                                          const OutputOptions& options) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  std::string name(path);
  if (path.back() == '/') {
    return absl::InvalidArgumentError(absl::StrCat("cannot create '", name, "': it names a folder, not a file"));
  }
  std::string target = name;
  struct stat info;
  if (calls_.Stat(name.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot create '", name, "': it exists and is ",
                                                     DescribeMode(info.st_mode), ", not a regular file"));
    }
    if (!options.overwrite) {
      return absl::AlreadyExistsError(
          absl::StrCat("cannot create '", name, "': it exists; remove it or allow overwriting"));
    }
    AQT_ASSIGN_OR_RETURN(target, ResolveLinks(name));
  } else if (errno != ENOENT) {
    return Error(errno, "create", name);
  } else if (struct stat link; ::lstat(name.c_str(), &link) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot create '", name, "': it is a symbolic link to a file that does not exist; remove the link"));
  }
  while (true) {
    std::string temporary = TemporaryName(target);
    const mode_t mode = options.executable ? 0777 : 0666;  // before the umask is applied
    const int fd = Retry([&] { return calls_.Open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode); });
    if (fd >= 0) {
      return std::make_unique<PosixOutput>(calls_, fd, std::move(name), std::move(target), std::move(temporary),
                                           options.overwrite);
    }
    // Left by a killed process with the same process id.
    if (errno != EEXIST) return Error(errno, absl::StrCat("create temporary file '", temporary, "' for"), name);
  }
}

absl::StatusOr<FileInfo> PosixFileSystem::Stat(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  struct stat info;
  if (calls_.Stat(std::string(path).c_str(), &info) < 0) return Error(errno, "stat", path);
  return ToFileInfo(info);
}

absl::StatusOr<FileInfo> PosixFileSystem::LStat(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  struct stat info;
  if (calls_.LStat(std::string(path).c_str(), &info) < 0) return Error(errno, "stat", path);
  return ToFileInfo(info);
}

absl::StatusOr<std::string> PosixFileSystem::RealPath(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  return ResolveLinks(std::string(path));
}

absl::StatusOr<bool> PosixFileSystem::IsMountPoint(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  const int result = calls_.IsMountPoint(std::string(path).c_str());
  if (result < 0) return Error(errno, "stat", path);
  return result == 1;
}

absl::StatusOr<std::optional<int64_t>> PosixFileSystem::FreeBytes(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  struct statvfs info;
  if (Retry([&] { return calls_.StatVfs(std::string(path).c_str(), &info); }) < 0) {
    if (errno == ENOSYS || errno == EOPNOTSUPP) return std::optional<int64_t>();
    return Error(errno, "find the free space of", path);
  }
  if (info.f_blocks == 0) return std::optional<int64_t>();  // not reported, as by some network file systems
  const uint64_t blocks = ::geteuid() == 0 ? info.f_bfree : info.f_bavail;  // the rest is reserved for root
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const uint64_t block = std::max<uint64_t>(info.f_frsize, 1);
  return std::optional<int64_t>(static_cast<int64_t>(blocks > kMax / block ? kMax : blocks * block));
}

absl::StatusOr<std::vector<std::string>> PosixFileSystem::List(absl::string_view folder) const {
  AQT_RETURN_IF_ERROR(CheckPath(folder));
  std::vector<std::string> names;
  if (calls_.List(std::string(folder).c_str(), &names) < 0) return Error(errno, "list folder", folder);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status PosixFileSystem::CreateFolder(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  if (calls_.MkDir(std::string(path).c_str(), 0777) < 0) return Error(errno, "create folder", path);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Remove(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  if (calls_.Remove(std::string(path).c_str()) < 0) return Error(errno, "remove", path);
  return absl::OkStatus();
}

absl::Status PosixFileSystem::Rename(absl::string_view from, absl::string_view to) const {
  AQT_RETURN_IF_ERROR(CheckPath(from));
  AQT_RETURN_IF_ERROR(CheckPath(to));
  if (calls_.Rename(std::string(from).c_str(), std::string(to).c_str(), /*replace=*/true) < 0) {
    return Error(errno, absl::StrCat("rename '", from, "' to"), to);
  }
  return SyncFolderOf(calls_, to);
}

absl::Status PosixFileSystem::Exchange(absl::string_view a, absl::string_view b) const {
  AQT_RETURN_IF_ERROR(CheckPath(a));
  AQT_RETURN_IF_ERROR(CheckPath(b));
  if (calls_.Exchange(std::string(a).c_str(), std::string(b).c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  const absl::Status status = Error(error, absl::StrCat("exchange '", a, "' and"), b);
  // File systems (EINVAL) and kernels (ENOSYS) that cannot exchange.
  return error == EINVAL || error == ENOSYS ? absl::UnimplementedError(status.message()) : status;
}

absl::Status PosixFileSystem::SyncFolder(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  return Sync(calls_, path);
}

absl::StatusOr<std::unique_ptr<FileLock>> PosixFileSystem::Lock(absl::string_view path) const {
  AQT_RETURN_IF_ERROR(CheckPath(path));
  std::string name(path);
  const auto open = [&](int flags) {
    return Retry([&] { return calls_.Open(name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); });
  };
  while (true) {
    int fd = open(O_RDWR | O_CREAT | O_EXCL);
    const bool created = fd >= 0;
    if (fd < 0 && errno == EEXIST) {
      fd = open(O_RDWR);
      if (fd < 0 && errno == EACCES) fd = open(O_RDONLY);  // another user's file
      if (fd < 0 && errno == ENOENT) continue;             // its owner has just removed it
    }
    if (fd < 0) return Error(errno, "create", name);
    const auto fail = [&](const absl::Status& status, bool remove) {
      if (remove) calls_.Remove(name.c_str());
      CloseFd(calls_, fd);
      return status;
    };
    if (Retry([&] { return calls_.FLock(fd, LOCK_EX | LOCK_NB); }) < 0) {
      if (errno == EWOULDBLOCK) {
        return fail(absl::UnavailableError(absl::StrCat("'", name, "' is locked by ", Holder(calls_, fd))), false);
      }
      // If the file system has no locks, concurrent writers go unnoticed.
      if (errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP && errno != EINVAL) {
        return fail(Error(errno, "lock", name), created);
      }
    }
    // The previous owner may have removed the file between our open and flock. Our lock is then on a removed file.
    struct stat locked, there;
    if (calls_.FStat(fd, &locked) < 0) return fail(Error(errno, "stat", name), created);
    if (calls_.LStat(name.c_str(), &there) < 0) {
      if (errno != ENOENT) return fail(Error(errno, "stat", name), created);
      there = {};
    }
    if (locked.st_ino == there.st_ino && locked.st_dev == there.st_dev) {
      const std::string pid = absl::StrCat(::getpid(), "\n");
      if (::ftruncate(fd, 0) == 0) calls_.PWrite(fd, pid.data(), pid.size(), 0);  // only for messages
      return std::make_unique<PosixLock>(calls_, fd, std::move(name));
    }
    CloseFd(calls_, fd);
  }
}

}  // namespace aqt::io::internal
