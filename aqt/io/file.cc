#include "aqt/io/file.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/posix.h"

namespace aqt::io {
namespace {

absl::Span<const uint8_t> AsBytes(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

absl::string_view WithoutTrailingSlashes(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

const FileSystem& LocalFileSystem() {
  static const internal::PosixCalls* const calls = new internal::PosixCalls;  // never destroyed
  static const FileSystem* const fs = new internal::PosixFileSystem(*calls);
  return *fs;
}

absl::StatusOr<bool> Exists(const FileSystem& fs, absl::string_view path) {
  const absl::StatusOr<FileInfo> info = fs.Stat(path);
  if (info.ok()) return true;
  if (absl::IsNotFound(info.status())) return false;
  return info.status();
}

absl::StatusOr<bool> SameFile(const FileSystem& fs, absl::string_view a, absl::string_view b) {
  const absl::StatusOr<FileInfo> info_a = fs.Stat(a);
  const absl::StatusOr<FileInfo> info_b = fs.Stat(b);
  for (const auto* info : {&info_a, &info_b}) {
    if (info->ok()) continue;
    if (absl::IsNotFound(info->status())) return false;
    return info->status();
  }
  return info_a->device == info_b->device && info_a->inode == info_b->inode;
}

absl::StatusOr<std::string> ReadFile(const FileSystem& fs, absl::string_view path, int64_t max_bytes) {
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, fs.OpenForReading(path));
  if (file->size() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("'", path, "' has ", file->size(), " bytes, more than the ", max_bytes, " allowed here"));
  }
  std::string content(file->size(), '\0');
  AQT_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(content.data()), content.size())));
  return content;
}

absl::Status WriteFile(const FileSystem& fs, absl::string_view path, absl::string_view content,
                       const OutputOptions& options) {
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, fs.CreateOutput(path, options));
  AQT_RETURN_IF_ERROR(file->Write(0, AsBytes(content)));
  return file->Commit();
}

absl::Status CopyFile(const FileSystem& fs, absl::string_view from, absl::string_view to,
                      const OutputOptions& options) {
  constexpr int64_t kBufferBytes = int64_t{1} << 20;
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> in, fs.OpenForReading(from));
  OutputOptions out_options = options;
  out_options.executable = options.executable || in->info().executable;
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> out, fs.CreateOutput(to, out_options));
  std::vector<uint8_t> buffer(std::min(kBufferBytes, in->size()));
  for (int64_t offset = 0; offset < in->size(); offset += kBufferBytes) {
    const absl::Span<uint8_t> piece = absl::MakeSpan(buffer).subspan(0, std::min(kBufferBytes, in->size() - offset));
    AQT_RETURN_IF_ERROR(in->Read(offset, piece));
    AQT_RETURN_IF_ERROR(out->Write(offset, piece));
  }
  return out->Commit();
}

absl::Status RemoveTree(const FileSystem& fs, absl::string_view path) {
  absl::Status status = fs.Remove(path);  // a file, a link (whatever it points to) or an empty folder
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  // A folder that is not empty, or a mount point, whose contents must stay.
  AQT_ASSIGN_OR_RETURN(const bool mounted, fs.IsMountPoint(path));
  if (mounted) return status;
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  status = absl::OkStatus();
  for (const std::string& name : names) status.Update(RemoveTree(fs, JoinPath(path, name)));
  status.Update(fs.Remove(path));
  return status;
}

OutputFolder::OutputFolder(const FileSystem& fs, std::string path, std::string temporary_path, bool replace)
    : fs_(fs), path_(std::move(path)), temporary_path_(std::move(temporary_path)), replace_(replace) {}

OutputFolder::~OutputFolder() {
  if (!committed_) RemoveTree(fs_, temporary_path_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<OutputFolder>> OutputFolder::Create(const FileSystem& fs, absl::string_view path,
                                                                   const OutputOptions& options) {
  path = WithoutTrailingSlashes(path);
  if (BaseName(path) == "." || BaseName(path) == "..") {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot create folder '", path, "': name it from its parent folder"));
  }
  bool replace = false;
  const absl::StatusOr<FileInfo> info = fs.Stat(path);
  if (info.ok()) {
    if (info->kind != FileKind::kFolder) {
      return absl::AlreadyExistsError(absl::StrCat("cannot create folder '", path, "': it exists and is not a folder"));
    }
    AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
    if (!names.empty() && !options.overwrite) {
      return absl::AlreadyExistsError(absl::StrCat("cannot create folder '", path,
                                                   "': it exists and is not empty (it has '", names.front(),
                                                   "'); remove it or name another"));
    }
    replace = !names.empty();
  } else if (!absl::IsNotFound(info.status())) {
    return info.status();
  }
  while (true) {
    std::string temporary = internal::TemporaryName(path);
    const absl::Status created = fs.CreateFolder(temporary);
    if (created.ok()) return absl::WrapUnique(new OutputFolder(fs, std::string(path), std::move(temporary), replace));
    // Left by a killed process with the same process id.
    if (!absl::IsAlreadyExists(created)) return created;
  }
}

absl::Status OutputFolder::Commit() {
  if (replace_) return Replace();
  AQT_RETURN_IF_ERROR(fs_.Rename(temporary_path_, path_));
  committed_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::string> OutputFolder::NameForReplaced() const {
  for (int n = 1;; ++n) {
    std::string name = absl::StrCat(path_, kReplacedSuffix, n == 1 ? "" : absl::StrCat("-", n));
    const absl::StatusOr<FileInfo> there = fs_.LStat(name);
    if (absl::IsNotFound(there.status())) return name;
    AQT_RETURN_IF_ERROR(there.status());
  }
}

absl::Status OutputFolder::Replace() {
  const absl::Status exchanged = fs_.Exchange(temporary_path_, path_);
  if (absl::IsUnimplemented(exchanged)) return ReplaceByRenames();
  if (absl::IsNotFound(exchanged)) {  // path_ was removed while the new folder was written
    replace_ = false;
    return Commit();
  }
  AQT_RETURN_IF_ERROR(exchanged);
  committed_ = true;  // the old folder now has the temporary name
  if (const absl::Status flushed = fs_.SyncFolder(FolderOf(path_)); !flushed.ok()) {
    std::string old = temporary_path_;
    if (absl::StatusOr<std::string> name = NameForReplaced(); name.ok()) {
      const absl::Status renamed = fs_.Rename(old, *name);  // may fail to flush, but not to rename
      if (renamed.ok() || absl::IsNotFound(fs_.LStat(old).status())) old = *std::move(name);
    }
    return Annotate(flushed, absl::StrCat("'", path_, "' is complete, but may not survive a power failure; what was ",
                                          "there before is kept as '", old, "'"));
  }
  const absl::Status removed = RemoveTree(fs_, temporary_path_);
  if (removed.ok()) return removed;
  return Annotate(removed, absl::StrCat("'", path_, "' is complete, but what was there before could not be removed: '",
                                        temporary_path_, "'"));
}

absl::Status OutputFolder::ReplaceByRenames() {
  AQT_ASSIGN_OR_RETURN(const std::string old, NameForReplaced());
  const auto is_gone = [&](absl::string_view path) { return absl::IsNotFound(fs_.LStat(path).status()); };
  const auto undo = [&](const absl::Status& status) {
    const absl::Status back = fs_.Rename(old, path_);
    return back.ok() || is_gone(old)
               ? status
               : Annotate(status, absl::StrCat("what was at '", path_, "' is now at '", old, "'"));
  };
  // A rename can fail before it happens or, if the disk cannot be flushed, afterwards.
  if (const absl::Status moved = fs_.Rename(path_, old); !moved.ok()) return is_gone(path_) ? undo(moved) : moved;
  if (const absl::Status placed = fs_.Rename(temporary_path_, path_); !placed.ok()) {
    if (!is_gone(temporary_path_)) return undo(placed);
    committed_ = true;
    return Annotate(placed, absl::StrCat("'", path_, "' is complete, but may not survive a power failure; what was ",
                                         "there before is kept as '", old, "'"));
  }
  committed_ = true;
  const absl::Status removed = RemoveTree(fs_, old);
  if (removed.ok()) return removed;
  return Annotate(
      removed, absl::StrCat("'", path_, "' is complete, but what was there before could not be removed: '", old, "'"));
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty() || absl::StartsWith(name, "/")) return std::string(name);
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", name);
}

absl::string_view BaseName(absl::string_view path) {
  path = WithoutTrailingSlashes(path);
  return path.substr(path.rfind('/') + 1);  // npos + 1 = 0
}

absl::string_view FolderOf(absl::string_view path) {
  path = WithoutTrailingSlashes(path);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return WithoutTrailingSlashes(path.substr(0, std::max<size_t>(slash, 1)));
}

}  // namespace aqt::io
