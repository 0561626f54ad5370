#ifndef AQT_IO_FILE_H_
#define AQT_IO_FILE_H_

// Files: random-access reading, output that appears complete or not at all, and the few folder operations that a
// checkpoint converter needs, behind an interface so that tests can inject faults (file_testing.h).
//
// Every system error names the operation and the path, and has the system's text and the code that
// absl::ErrnoToStatusCode gives (NotFound, PermissionDenied, AlreadyExists, ResourceExhausted for a full disk, ...).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aqt::io {

// The type of a path.
enum class FileKind : uint8_t { kRegular, kFolder, kLink, kOther };

// What Stat reports about a path.
struct FileInfo {
  FileKind kind = FileKind::kRegular;
  int64_t size = 0;  // in bytes; only of regular files
  // Two paths with the same pair are the same file, whatever links lead to it.
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t modified_ns = 0;  // when the content last changed, in nanoseconds of the system's clock
  bool executable = false;  // by anyone; only of regular files
};

// A regular file to read. Nothing is mapped or cached here: the only memory is what the caller passes. Thread-safe.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual const std::string& path() const = 0;
  // The file's state when it was opened.
  virtual const FileInfo& info() const = 0;
  int64_t size() const { return info().size; }
  // Fills `dst` with the bytes from `offset` on. OutOfRange if they are not all inside [0, size()); DataLoss if the
  // file has become shorter since it was opened.
  virtual absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const = 0;
};

// A file being written under a temporary name in the folder of path(). Only Commit makes it appear under path(),
// complete; if destroyed without a successful Commit, it leaves no file. Write is thread-safe.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual const std::string& path() const = 0;
  // Reserves `bytes` of disk space, so that a full disk is noticed before the work (ResourceExhausted), and gives the
  // file that size. Does nothing on file systems that cannot reserve.
  virtual absl::Status Reserve(int64_t bytes) = 0;
  // Writes at `offset`, which may be beyond the end: the gap reads as zeros.
  virtual absl::Status Write(int64_t offset, absl::Span<const uint8_t> data) = 0;
  // Flushes to the disk, then renames; must be called only once. After an error in any step except the last (flushing
  // the folder) path() is unchanged.
  virtual absl::Status Commit() = 0;
};

// Options of CreateOutput and OutputFolder::Create.
struct OutputOptions {
  // If false, an existing path() is AlreadyExists, both at creation and at Commit. If true, a regular file is replaced.
  bool overwrite = false;
  // If true, everyone who may read the file may also run it.
  bool executable = false;
};

// An exclusive lock on a name, held until this is destroyed or the process ends in any way.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// The operations on files and folders. Implementations are thread-safe. Symbolic links are followed, except by LStat,
// Remove, Rename and Exchange.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // InvalidArgument if `path` is not a regular file.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForReading(absl::string_view path) const = 0;
  // The folder of `path` must exist. InvalidArgument if `path` exists and is not a regular file (a folder, /dev/full).
  // If `path` is a symbolic link to a file, that file is replaced and the link stays.
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> CreateOutput(absl::string_view path,
                                                                   const OutputOptions& options) const = 0;
  virtual absl::StatusOr<FileInfo> Stat(absl::string_view path) const = 0;
  // Like Stat, but a link at the end of the path is reported as such (kLink).
  virtual absl::StatusOr<FileInfo> LStat(absl::string_view path) const = 0;
  // The absolute path without links, "." and ".."; it must exist.
  virtual absl::StatusOr<std::string> RealPath(absl::string_view path) const = 0;
  // Whether something is mounted at `path`: another file system, or a folder or file of this one. A mount point can be
  // neither renamed nor replaced.
  virtual absl::StatusOr<bool> IsMountPoint(absl::string_view path) const = 0;
  // Bytes that this process can still write to the file system of `path`; nullopt if that is not reported.
  virtual absl::StatusOr<std::optional<int64_t>> FreeBytes(absl::string_view path) const = 0;
  // Names in the folder, sorted bytewise, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(absl::string_view folder) const = 0;
  // Creates one level; AlreadyExists if the name is taken.
  virtual absl::Status CreateFolder(absl::string_view path) const = 0;
  // Removes a file, a link or an empty folder.
  virtual absl::Status Remove(absl::string_view path) const = 0;
  // Renames a file or folder within one file system; an existing file or empty folder `to` is replaced. Flushes the
  // folder of `to`.
  virtual absl::Status Rename(absl::string_view from, absl::string_view to) const = 0;
  // Swaps two files or folders of one file system atomically. Unimplemented, without any change, if the file system
  // cannot. Does not flush: SyncFolder does.
  virtual absl::Status Exchange(absl::string_view a, absl::string_view b) const = 0;
  // Makes all creations, renames and removals in the folder survive a power failure.
  virtual absl::Status SyncFolder(absl::string_view path) const = 0;
  // Creates a file with this name, which is removed with the lock. Unavailable, naming the process, if the lock is
  // held; a file left by a killed process is not a lock. Always succeeds on file systems without locks.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(absl::string_view path) const = 0;
};

// The machine's files.
const FileSystem& LocalFileSystem();

// ---- on any FileSystem

// Whether the path exists; an error if that cannot be determined.
absl::StatusOr<bool> Exists(const FileSystem& fs, absl::string_view path);
// Whether both exist and are the same file or folder, also through links.
absl::StatusOr<bool> SameFile(const FileSystem& fs, absl::string_view a, absl::string_view b);
// Reads the whole file. ResourceExhausted if it has more than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const FileSystem& fs, absl::string_view path, int64_t max_bytes);
// Creates, writes, commits.
absl::Status WriteFile(const FileSystem& fs, absl::string_view path, absl::string_view content,
                       const OutputOptions& options = {});
// Copies the bytes of a regular file through a buffer of 1 MiB. The copy is executable if the original is.
absl::Status CopyFile(const FileSystem& fs, absl::string_view from, absl::string_view to,
                      const OutputOptions& options = {});

// Removes a file, a link or a folder with everything in it. Links are removed, not followed, and nothing mounted below
// is touched. Continues after an error and returns the first one.
absl::Status RemoveTree(const FileSystem& fs, absl::string_view path);

// The suffix that OutputFolder gives to a replaced folder that it could not remove, or is about to replace; followed by
// "-2", "-3", ... if the name is taken.
inline constexpr char kReplacedSuffix[] = ".aqt-old";

// A folder of files that appears complete or not at all: fill temporary_path(), then Commit. If destroyed without a
// successful Commit, it removes temporary_path() with everything in it.
class OutputFolder {
 public:
  // Without `overwrite`, AlreadyExists if `path` exists, unless it is an empty folder. With `overwrite`, `path` may be
  // any folder. The folder above must exist.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Create(const FileSystem& fs, absl::string_view path,
                                                              const OutputOptions& options = {});
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& path() const { return path_; }
  const std::string& temporary_path() const { return temporary_path_; }
  // Renames temporary_path() to path(). Must be called only once.
  //
  // An old folder is exchanged with the new one in one step, then the folder above is flushed, and only then is the old
  // folder removed. If the file system cannot exchange, path() is first renamed to path() + kReplacedSuffix and then
  // the new folder to path(). A crash in between leaves both, complete, under other names. An error says where they
  // are: nothing of the old folder is removed before the new one is safe.
  absl::Status Commit();

 private:
  OutputFolder(const FileSystem& fs, std::string path, std::string temporary_path, bool replace);
  absl::Status Replace();
  absl::Status ReplaceByRenames();
  absl::StatusOr<std::string> NameForReplaced() const;

  const FileSystem& fs_;
  std::string path_;
  std::string temporary_path_;
  bool replace_;
  bool committed_ = false;
};

// ---- paths, as text

// The path of `name` in `folder`: "a" and "b" give "a/b"; an absolute `name` is returned unchanged.
std::string JoinPath(absl::string_view folder, absl::string_view name);
// The last part of a path: "a/b" gives "b"; trailing slashes are ignored; "" for "/" and "".
absl::string_view BaseName(absl::string_view path);
// The folder of a path: "a/b" gives "a", "a" gives ".", "/a" gives "/"; trailing slashes are ignored.
absl::string_view FolderOf(absl::string_view path);

}  // namespace aqt::io

#endif  // AQT_IO_FILE_H_
