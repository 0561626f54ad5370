#include "serving/convert/output.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/tensors/safetensors.h"
#include "serving/formats/quantization_config.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

// Whether a conversion wrote the file, according to its metadata.
bool IsConversion(const io::FileSystem& fs, absl::string_view path) {
  const absl::StatusOr<io::Checkpoint> checkpoint = io::Checkpoint::Open(fs, path);
  if (!checkpoint.ok()) return false;
  for (const auto& [key, value] : checkpoint->shards()[0].metadata) {
    if (key == kVersionKey) return true;
  }
  return false;
}

// Whether --force may replace the folder: an earlier conversion, or another model with the usual names.
absl::StatusOr<bool> HoldsCheckpoint(const io::FileSystem& fs, absl::string_view folder) {
  for (absl::string_view name : {absl::string_view(io::kModelFile), absl::string_view(io::kIndexFile)}) {
    AQT_ASSIGN_OR_RETURN(const bool exists, io::Exists(fs, io::JoinPath(folder, name)));
    if (exists) return true;
  }
  return IsConversion(fs, folder);
}

// Compares files that must survive the run with the output's place.
class Collision {
 public:
  // `out` describes the existing file or folder.
  Collision(const io::FileSystem& fs, absl::string_view path, const io::FileInfo& out)
      : fs_(fs), path_(path), out_(out) {}

  // InvalidArgument if the output is `file`, or a folder that contains it. `what` describes it: "the input's file".
  absl::Status Check(const std::string& file, absl::string_view what) {
    const absl::StatusOr<io::FileInfo> info = fs_.Stat(file);
    if (absl::IsNotFound(info.status())) return absl::OkStatus();
    AQT_RETURN_IF_ERROR(info.status());
    const std::string name = what == kInput ? std::string(kInput) : absl::StrCat(what, " ", file);
    if (IsOut(*info)) {
      return absl::InvalidArgumentError(absl::StrCat("the output ", path_, " is ", name, "; choose another place"));
    }
    AQT_ASSIGN_OR_RETURN(const std::string real, fs_.RealPath(file));
    for (std::string folder(io::FolderOf(real)); seen_.insert(folder).second;
         folder = std::string(io::FolderOf(folder))) {
      AQT_ASSIGN_OR_RETURN(const io::FileInfo above, fs_.Stat(folder));
      if (!IsOut(above)) continue;
      return absl::InvalidArgumentError(absl::StrCat("the output ", path_, " contains ", what, " ", file));
    }
    return absl::OkStatus();
  }

  static constexpr absl::string_view kInput = "the input";

 private:
  bool IsOut(const io::FileInfo& info) const { return info.device == out_.device && info.inode == out_.inode; }

  const io::FileSystem& fs_;
  const absl::string_view path_;
  const io::FileInfo out_;
  std::set<std::string> seen_;  // folders compared so far
};

absl::Status CheckNotInput(const io::FileSystem& fs, const io::Checkpoint& input, const std::string& path,
                           const io::FileInfo& out, const std::vector<std::string>& also_read) {
  Collision collision(fs, path, out);
  AQT_RETURN_IF_ERROR(collision.Check(input.path(), Collision::kInput));
  std::vector<std::string> files;
  for (const io::TensorSource::Shard& shard : input.shards()) files.push_back(shard.path);
  if (input.is_folder()) {
    for (const std::string& name : {std::string(kConfigFile), input.index_name(), input.index_file()}) {
      files.push_back(io::JoinPath(input.path(), name));
    }
    for (const auto* names : {&input.other_files(), &input.unused_weight_files()}) {
      for (const std::string& name : *names) files.push_back(io::JoinPath(input.path(), name));
    }
  }
  for (const std::string& file : files) AQT_RETURN_IF_ERROR(collision.Check(file, "the input's file"));
  for (const std::string& file : also_read) {
    if (!file.empty()) AQT_RETURN_IF_ERROR(collision.Check(file, "a file that this run reads,"));
  }
  return absl::OkStatus();
}

// Whether `inner`, a path without links, is below `folder`.
absl::StatusOr<bool> IsInside(const io::FileSystem& fs, const std::string& inner, const std::string& folder) {
  AQT_ASSIGN_OR_RETURN(const std::string real, fs.RealPath(folder));
  return absl::StartsWith(inner, real == "/" ? real : absl::StrCat(real, "/"));
}

// OK if --force may replace the existing file or folder.
absl::Status CheckReplaceable(const io::FileSystem& fs, const io::Checkpoint& input, const OutputPlace& place,
                              bool is_link) {
  if (input.is_folder()) {
    AQT_ASSIGN_OR_RETURN(const bool inside, IsInside(fs, place.target, input.path()));
    if (inside && !IsConversion(fs, place.target)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the output ", place.path, " is in the input ", input.path(),
                       " and was not written by a conversion: it may be a part of the model, which --force does not ",
                       "replace; choose another place"));
    }
  }
  if (is_link && place.is_file) {
    return absl::FailedPreconditionError(
        absl::StrCat("the output ", place.path, " is a link to the file ", place.target,
                     ", which --force does not replace: remove the link, ", "or name the file itself"));
  }
  if (place.is_file && !absl::EndsWith(place.path, io::kSafetensorsSuffix)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the output ", place.path, " is a file whose name does not end in ", io::kSafetensorsSuffix,
                     ": --force does not replace it; remove it yourself or choose another place"));
  }
  if (!place.is_file) {
    AQT_ASSIGN_OR_RETURN(const bool replaceable, HoldsCheckpoint(fs, place.target));
    if (!replaceable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the output ", place.path, " is a folder without ", io::kModelFile, " or ", io::kIndexFile,
          ": --force replaces only folders that hold a checkpoint; remove it yourself or choose another place"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OutputPlace> CheckOutput(const io::FileSystem& fs, const io::Checkpoint& input, absl::string_view path,
                                        bool force, const std::vector<std::string>& also_read) {
  OutputPlace place;
  place.path = std::string(path);
  while (place.path.size() > 1 && absl::EndsWith(place.path, "/")) place.path.pop_back();
  if (place.path.empty()) return absl::InvalidArgumentError("the output has no name");
  place.is_file = absl::EndsWith(place.path, io::kSafetensorsSuffix);
  place.target = place.path;

  const absl::StatusOr<io::FileInfo> link = fs.LStat(place.path);
  if (absl::IsNotFound(link.status())) {
    const absl::string_view folder = io::FolderOf(place.path);
    AQT_ASSIGN_OR_RETURN(const bool has_folder, io::Exists(fs, folder));
    if (!has_folder) return absl::NotFoundError(absl::StrCat("the folder of the output, ", folder, ", does not exist"));
    return place;
  }
  AQT_RETURN_IF_ERROR(link.status());
  const absl::StatusOr<io::FileInfo> info = fs.Stat(place.path);
  if (absl::IsNotFound(info.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the output ", place.path, " is a link to something that does not exist; remove it or create its target"));
  }
  AQT_RETURN_IF_ERROR(info.status());
  AQT_RETURN_IF_ERROR(CheckNotInput(fs, input, place.path, *info, also_read));
  if (info->kind == io::FileKind::kOther) {
    return absl::FailedPreconditionError(
        absl::StrCat("the output ", place.path, " is not a file or a folder (a device, for example)"));
  }
  if (const absl::string_view base = io::BaseName(place.path); base == "." || base == "..") {
    return absl::InvalidArgumentError(
        absl::StrCat("the output ", place.path, " has no name of its own; name it from its parent folder"));
  }
  AQT_ASSIGN_OR_RETURN(place.target, fs.RealPath(place.path));
  place.is_file = info->kind == io::FileKind::kRegular;
  AQT_ASSIGN_OR_RETURN(const bool mounted, fs.IsMountPoint(place.target));
  if (mounted) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the output ", place.path, " is a mount point, which cannot be replaced by a finished output; ",
        place.is_file ? "choose another place"
                      : absl::StrCat("name something inside it, such as ", io::JoinPath(place.path, "model"))));
  }
  if (!place.is_file) {
    AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(place.target));
    if (names.empty()) return place;  // an empty folder counts as absent
  }
  if (!force) return absl::AlreadyExistsError(absl::StrCat("the output ", place.path, " exists; --force replaces it"));
  AQT_RETURN_IF_ERROR(CheckReplaceable(fs, input, place, link->kind == io::FileKind::kLink));
  place.replace = true;
  return place;
}

absl::StatusOr<std::unique_ptr<io::FileLock>> LockOutput(const io::FileSystem& fs, const OutputPlace& place) {
  const absl::string_view folder = io::FolderOf(place.target);
  // Truncated for file systems that allow 255 bytes.
  const absl::string_view base = io::BaseName(place.target).substr(0, 200);
  absl::StatusOr<std::unique_ptr<io::FileLock>> lock =
      fs.Lock(io::JoinPath(folder, absl::StrCat(".", base, ".aqt-lock")));
  if (lock.ok()) return lock;
  if (absl::IsUnavailable(lock.status())) {
    return Annotate(lock.status(), absl::StrCat("another run is writing the output ", place.path,
                                                "; wait until it ends, or choose another place"));
  }
  return Annotate(lock.status(), absl::StrCat("nothing can be created in ", folder, ", the folder of the output"));
}

absl::Status CheckSpace(const io::FileSystem& fs, const OutputPlace& place, int64_t bytes) {
  const absl::string_view folder = io::FolderOf(place.target);
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> free, fs.FreeBytes(folder));
  if (!free.has_value() || *free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the output ", place.path, " takes at least ", HumanBytes(bytes), " (", bytes,
                   " bytes), and the file system of ", folder, " has ", HumanBytes(*free), " (", *free, " bytes) left",
                   place.replace ? "; what is there now is removed only after the new output is in place" : "",
                   "; make room or choose another place"));
}

absl::StatusOr<Output> Output::Create(const io::FileSystem& fs, OutputPlace place) {
  Output output(fs, std::move(place));
  if (!output.place_.is_file) {
    absl::StatusOr<std::unique_ptr<io::OutputFolder>> folder =
        io::OutputFolder::Create(fs, output.place_.target, {.overwrite = output.place_.replace});
    if (!folder.ok()) return OutputError(folder.status());
    output.folder_ = *std::move(folder);
  }
  return output;
}

absl::StatusOr<std::string> Output::PathOf(absl::string_view name) {
  if (place_.is_file) return place_.path;
  for (size_t slash = name.find('/'); slash != absl::string_view::npos; slash = name.find('/', slash + 1)) {
    const std::string folder = io::JoinPath(folder_->temporary_path(), name.substr(0, slash));
    const absl::StatusOr<bool> exists = io::Exists(*fs_, folder);
    if (!exists.ok()) return OutputError(exists.status());
    if (*exists) continue;
    AQT_RETURN_IF_ERROR(OutputError(fs_->CreateFolder(folder)));
    AQT_RETURN_IF_ERROR(OutputError(fs_->SyncFolder(io::FolderOf(folder))));
  }
  return io::JoinPath(folder_->temporary_path(), name);
}

absl::Status Output::Commit() { return place_.is_file ? absl::OkStatus() : OutputError(folder_->Commit()); }

}  // namespace aqt::serving
