#ifndef AQT_IO_FILE_H_
#define AQT_IO_FILE_H_

// Files: random-access reading, output that appears complete or not at all, and the few folder operations that a
// checkpoint converter needs, behind an interface so that tests can inject faults (file_testing.h).
//
// Every error of the system names the operation and the path, has the system's text, and the code that
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

// An open regular file. Nothing is mapped or cached here: memory is what the caller passes. Thread-safe.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual const std::string& path() const = 0;
  // Bytes in the file when it was opened.
  virtual int64_t size() const = 0;
  // Fills `dst` with the bytes from `offset` on. OutOfRange when they are not inside [0, size()); DataLoss when the
  // file has become shorter since it was opened.
  virtual absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const = 0;
};

// A file being written under a temporary name in the folder of path(). It appears under path() by Commit and only then,
// complete; destroyed without a successful Commit it leaves nothing behind. Write is thread-safe.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual const std::string& path() const = 0;
  // Asks for `bytes` of disk space now, so that a full disk is known before the work (ResourceExhausted), and makes the
  // file that long. On file systems that cannot reserve it does nothing.
  virtual absl::Status Reserve(int64_t bytes) = 0;
  // Writes at `offset`, which may lie beyond the end: the gap reads as zeros.
  virtual absl::Status Write(int64_t offset, absl::Span<const uint8_t> data) = 0;
  // Flushes to the disk, then renames; to be called once. After an error in any step but the last (flushing the folder)
  // path() is as it was.
  virtual absl::Status Commit() = 0;
};

struct OutputOptions {
  // false: an existing path() is AlreadyExists, both at creation and at Commit. true: a regular file there is replaced.
  bool overwrite = false;
};

enum class FileKind : uint8_t { kRegular, kFolder, kLink, kOther };

struct FileInfo {
  FileKind kind = FileKind::kRegular;
  int64_t size = 0;  // bytes; regular files
  // Two paths with the same pair are one file, whatever links lead to it.
  uint64_t device = 0;
  uint64_t inode = 0;
};

// A claim to a name, held until it is destroyed or the process ends, however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// Implementations are thread-safe. Symbolic links are followed, except by LStat, Remove, Rename and Exchange.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // InvalidArgument when `path` is not a regular file.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenForReading(absl::string_view path) const = 0;
  // The folder of `path` must exist. InvalidArgument when `path` exists and is not a regular file (a folder,
  // /dev/full). Where `path` is a symbolic link to a file, that file is replaced and the link stays.
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> CreateOutput(absl::string_view path,
                                                                   const OutputOptions& options) const = 0;
  virtual absl::StatusOr<FileInfo> Stat(absl::string_view path) const = 0;
  // As Stat, but a link at the end of the path is told as such (kLink).
  virtual absl::StatusOr<FileInfo> LStat(absl::string_view path) const = 0;
  // The absolute path without links, "." and ".."; it must exist.
  virtual absl::StatusOr<std::string> RealPath(absl::string_view path) const = 0;
  // True when another file system, or a folder or file of this one, is mounted there: it can be neither renamed nor
  // replaced.
  virtual absl::StatusOr<bool> IsMountPoint(absl::string_view path) const = 0;
  // Bytes that this process can still write to the file system of `path`; nothing where that is not reported.
  virtual absl::StatusOr<std::optional<int64_t>> FreeBytes(absl::string_view path) const = 0;
  // Names in the folder, sorted bytewise, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(absl::string_view folder) const = 0;
  // One level; AlreadyExists when there is something of that name.
  virtual absl::Status CreateFolder(absl::string_view path) const = 0;
  // A file, a link or an empty folder.
  virtual absl::Status Remove(absl::string_view path) const = 0;
  // Files or folders within one file system; an existing file or empty folder `to` is replaced. Flushes the folder of
  // `to`.
  virtual absl::Status Rename(absl::string_view from, absl::string_view to) const = 0;
  // Swaps two files or folders of one file system at one moment. Unimplemented, and nothing is changed, where the file
  // system cannot. Does not flush: SyncFolder does.
  virtual absl::Status Exchange(absl::string_view a, absl::string_view b) const = 0;
  // Makes what was created, renamed and removed in the folder survive a power failure.
  virtual absl::Status SyncFolder(absl::string_view path) const = 0;
  // Creates a file of that name, which goes when the lock does. Unavailable, with the number of the process, when
  // somebody has the lock; a file left behind by a killed process does not count. On file systems without locks it is
  // always given.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(absl::string_view path) const = 0;
};

// The machine's files.
const FileSystem& LocalFileSystem();

// ---- on any FileSystem

// False when nothing is there; an error when that cannot be found out.
absl::StatusOr<bool> Exists(const FileSystem& fs, absl::string_view path);
// True when both exist and are one file or folder, also through links.
absl::StatusOr<bool> SameFile(const FileSystem& fs, absl::string_view a, absl::string_view b);
// The whole file. ResourceExhausted when it has more than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const FileSystem& fs, absl::string_view path, int64_t max_bytes);
// Creates, writes, commits.
absl::Status WriteFile(const FileSystem& fs, absl::string_view path, absl::string_view content,
                       const OutputOptions& options = {});
// Copies the bytes of a regular file with a buffer of 1 MiB.
absl::Status CopyFile(const FileSystem& fs, absl::string_view from, absl::string_view to,
                      const OutputOptions& options = {});

// Removes a file, a link or a folder with everything in it. Links are removed, not followed, and nothing that is
// mounted below is touched. Goes on after an error and returns the first.
absl::Status RemoveTree(const FileSystem& fs, absl::string_view path);

// Where OutputFolder keeps a replaced folder that it could not remove, or is about to replace: the name with this, and
// "-2", "-3", ... if that is taken.
inline constexpr char kReplacedSuffix[] = ".aqt-old";

// A folder of files that appears complete or not at all: fill temporary_path(), then Commit. Destroyed without a
// successful Commit it removes temporary_path() with everything in it.
class OutputFolder {
 public:
  // Without `overwrite`, AlreadyExists when `path` exists, unless it is an empty folder. With it, `path` may be a
  // folder. The folder above must exist.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Create(const FileSystem& fs, absl::string_view path,
                                                              const OutputOptions& options = {});
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& path() const { return path_; }
  const std::string& temporary_path() const { return temporary_path_; }
  // Renames temporary_path() to path(). To be called once.
  //
  // What is replaced is exchanged with the new folder in one step, then the folder above is flushed, and only then is
  // it removed. Where the file system cannot exchange, path() is renamed to path() + kReplacedSuffix first and the new
  // folder to path() second: a crash in between leaves both, complete, under other names. An error tells where things
  // are: nothing of the old is removed before the new is safe.
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

// "a" + "b" = "a/b"; an absolute second part is returned as it is.
std::string JoinPath(absl::string_view folder, absl::string_view name);
// "a/b" = "b"; trailing slashes do not count; "" for "/" and "".
absl::string_view BaseName(absl::string_view path);
// "a/b" = "a", "a" = ".", "/a" = "/"; trailing slashes do not count.
absl::string_view FolderOf(absl::string_view path);

}  // namespace aqt::io

#endif  // AQT_IO_FILE_H_
