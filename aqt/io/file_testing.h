#ifndef AQT_IO_FILE_TESTING_H_
#define AQT_IO_FILE_TESTING_H_

// A file system whose system calls fail on request, for testing the state after a failure.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::io {

// The system calls that can be made to fail. kSync is fsync of a file, kSyncFolder fsync of a folder.
enum class FileCall : uint8_t {
  kOpen,
  kStat,
  kRead,
  kWrite,
  kReserve,
  kSync,
  kSyncFolder,
  kClose,
  kRename,
  kRemove,
  kCreateFolder,
  kList,
  kExchange,
  kLock,
  kFreeBytes,
  kMountPoint,
};
inline constexpr int kNumFileCalls = 16;

namespace internal {
class FaultyCalls;
}

// The machine's files, with faults injected below the code that retries and cleans up. Thread-safe.
class FaultInjectingFileSystem final : public FileSystem {
 public:
  FaultInjectingFileSystem();
  ~FaultInjectingFileSystem() override;

  // The n-th call of this kind from now on (starting at 1) fails with `error` (an errno value); later ones succeed.
  void FailNth(FileCall call, int n, int error);
  // Every call of this kind fails from now on.
  void FailAll(FileCall call, int error);
  // Simulates a full disk: writes succeed for this many more bytes in total, then are partial, then fail with ENOSPC.
  // Reserving space succeeds.
  void LimitDisk(int64_t bytes);
  // Each read or write moves at most this many bytes.
  void LimitTransfer(int64_t bytes);
  // Every second call of open, read, write and sync is interrupted by a signal (EINTR).
  void Interrupt();
  // Sets what FreeBytes reports; nullopt: it reports nothing.
  void SetFreeBytes(std::optional<int64_t> bytes);
  // Makes IsMountPoint report a mount point at this path.
  void SetMountPoint(std::string path);
  // `hook` is called before every call, one at a time. If it returns a value other than 0, the call fails with that
  // errno.
  void SetHook(std::function<int(FileCall)> hook);
  // Forgets all faults.
  void Clear();
  // The number of calls of this kind since construction, including failed ones.
  int64_t NumCalls(FileCall call) const;

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
  std::unique_ptr<internal::FaultyCalls> calls_;
  std::unique_ptr<FileSystem> fs_;
};

}  // namespace aqt::io

#endif  // AQT_IO_FILE_TESTING_H_
