#ifndef AQT_IO_POSIX_H_
#define AQT_IO_POSIX_H_

// Private to this folder: the FileSystem on POSIX and its system calls, which tests can replace.

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::io::internal {

// Each function is the system call of that name. It fails with -1 and errno, and may be interrupted or partial.
class PosixCalls {
 public:
  virtual ~PosixCalls() = default;
  virtual int Open(const char* path, int flags, mode_t mode) const;
  virtual int Stat(const char* path, struct stat* info) const;
  virtual int LStat(const char* path, struct stat* info) const;
  virtual int FStat(int fd, struct stat* info) const;
  virtual ssize_t PRead(int fd, void* dst, size_t bytes, off_t offset) const;
  virtual ssize_t PWrite(int fd, const void* src, size_t bytes, off_t offset) const;
  virtual int FAllocate(int fd, off_t bytes) const;
  virtual int FSync(int fd) const;
  virtual int FSyncFolder(int fd) const;  // fsync; separate so that tests can tell it from FSync
  virtual int Close(int fd) const;
  // rename, or renameat2 with RENAME_NOREPLACE.
  virtual int Rename(const char* from, const char* to, bool replace) const;
  virtual int Exchange(const char* a, const char* b) const;  // renameat2 with RENAME_EXCHANGE
  virtual int Remove(const char* path) const;
  virtual int MkDir(const char* path, mode_t mode) const;
  virtual int FLock(int fd, int operation) const;
  virtual int StatVfs(const char* path, struct statvfs* info) const;
  // 1 if something is mounted at `path`, otherwise 0. A link in the last part of `path` is not followed.
  virtual int IsMountPoint(const char* path) const;
  // Appends the names in a folder (opendir, readdir, closedir).
  virtual int List(const char* folder, std::vector<std::string>* names) const;
};

// A name in the folder of `target` that begins with '.' and differs between processes and between calls.
std::string TemporaryName(absl::string_view target);

class PosixFileSystem final : public FileSystem {
 public:
  // Borrows `calls`.
  explicit PosixFileSystem(const PosixCalls& calls) : calls_(calls) {}

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForReading(absl::string_view path) const override;
  absl::StatusOr<std::unique_ptr<OutputFile>> CreateOutput(absl::string_view path,
                                                           const OutputOptions& options) const override;
  absl::StatusOr<FileInfo> Stat(absl::string_view path) const override;
  absl::StatusOr<FileInfo> LStat(absl::string_view path) const override;
  absl::StatusOr<std::string> RealPath(absl::string_view path) const override;
  absl::StatusOr<bool> IsMountPoint(absl::string_view path) const override;
  absl::StatusOr<std::optional<int64_t>> FreeBytes(absl::string_view path) const override;
  absl::StatusOr<std::vector<std::string>> List(absl::string_view folder) const override;
  absl::Status CreateFolder(absl::string_view path) const override;
  absl::Status Remove(absl::string_view path) const override;
  absl::Status Rename(absl::string_view from, absl::string_view to) const override;
  absl::Status Exchange(absl::string_view a, absl::string_view b) const override;
  absl::Status SyncFolder(absl::string_view path) const override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(absl::string_view path) const override;

 private:
  const PosixCalls& calls_;
};

}  // namespace aqt::io::internal

#endif  // AQT_IO_POSIX_H_
