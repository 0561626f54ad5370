#include "serving/output.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "serving/exit_code.h"

namespace aqt::serving {
namespace {

constexpr char kNewSuffix[] = ".aqt-new";
constexpr char kOldSuffix[] = ".aqt-old";

// A folder that --force may replace: an earlier conversion, or another model.
absl::StatusOr<bool> HoldsCheckpoint(const io::FileSystem& fs, absl::string_view folder) {
  for (absl::string_view name : {absl::string_view(io::kModelFile), absl::string_view(io::kIndexFile)}) {
    AQT_ASSIGN_OR_RETURN(const bool exists, io::Exists(fs, io::JoinPath(folder, name)));
    if (exists) return true;
  }
  return false;
}

// True when `folder` is the folder `inner` or one above it, whatever links lead there.
absl::StatusOr<bool> IsAbove(const io::FileSystem& fs, absl::string_view folder, absl::string_view inner) {
  std::string at(inner);
  for (int depth = 0; depth < 256; ++depth) {
    AQT_ASSIGN_OR_RETURN(const bool same, io::SameFile(fs, folder, at));
    if (same) return true;
    std::string up = io::JoinPath(at, "..");
    AQT_ASSIGN_OR_RETURN(const bool root, io::SameFile(fs, at, up));
    if (root) return false;
    at = std::move(up);
  }
  return false;
}

absl::Status CheckNotInput(const io::FileSystem& fs, const io::Checkpoint& input, const std::string& path) {
  std::vector<std::string> files = {input.path()};
  for (const io::SafetensorsReader& shard : input.shards()) files.push_back(shard.path());
  for (const std::string& file : files) {
    AQT_ASSIGN_OR_RETURN(const bool same, io::SameFile(fs, file, path));
    if (same) {
      return absl::InvalidArgumentError(absl::StrCat("the output ", path, " is the input",
                                                     file == input.path() ? "" : "'s file ",
                                                     file == input.path() ? "" : file, "; choose another place"));
    }
  }
  const std::string folder = input.is_folder() ? input.path() : std::string(io::FolderOf(input.path()));
  AQT_ASSIGN_OR_RETURN(const bool above, IsAbove(fs, path, folder));
  if (above) return absl::InvalidArgumentError(absl::StrCat("the output ", path, " contains the input ", input.path()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OutputPlace> CheckOutput(const io::FileSystem& fs, const io::Checkpoint& input, absl::string_view path,
                                        bool force) {
  OutputPlace place;
  place.path = std::string(path);
  while (place.path.size() > 1 && absl::EndsWith(place.path, "/")) place.path.pop_back();
  if (place.path.empty()) return absl::InvalidArgumentError("the output has no name");
  place.is_file = absl::EndsWith(place.path, ".safetensors");

  AQT_ASSIGN_OR_RETURN(const bool exists, io::Exists(fs, place.path));
  if (!exists) {
    const absl::string_view folder = io::FolderOf(place.path);
    AQT_ASSIGN_OR_RETURN(const bool has_folder, io::Exists(fs, folder));
    if (!has_folder) return absl::NotFoundError(absl::StrCat("the folder of the output, ", folder, ", does not exist"));
    return place;
  }
  AQT_RETURN_IF_ERROR(CheckNotInput(fs, input, place.path));
  AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(place.path));
  if (info.kind == io::FileKind::kOther) {
    return absl::FailedPreconditionError(
        absl::StrCat("the output ", place.path, " is a device or the like; it must be a file or a folder"));
  }
  place.is_file = info.kind == io::FileKind::kRegular;
  if (!place.is_file) {
    AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(place.path));
    if (names.empty()) return place;  // as good as nothing
  }
  if (!force) return absl::AlreadyExistsError(absl::StrCat("the output ", place.path, " exists; --force replaces it"));
  if (!place.is_file) {
    AQT_ASSIGN_OR_RETURN(const bool replaceable, HoldsCheckpoint(fs, place.path));
    if (!replaceable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the output ", place.path, " is a folder without ", io::kModelFile, " or ", io::kIndexFile,
          ": --force replaces only folders that hold a checkpoint; remove it yourself or choose another place"));
    }
    const std::string old = absl::StrCat(place.path, kOldSuffix);
    AQT_ASSIGN_OR_RETURN(const bool in_the_way, io::Exists(fs, old));
    if (in_the_way) {
      return absl::AlreadyExistsError(absl::StrCat(old, " exists, left by an interrupted run; move it or remove it"));
    }
  }
  place.replace = true;
  return place;
}

absl::StatusOr<Output> Output::Create(const io::FileSystem& fs, OutputPlace place) {
  Output output(fs, std::move(place));
  if (!output.place_.is_file) {
    const std::string path = absl::StrCat(output.place_.path, output.place_.replace ? kNewSuffix : "");
    absl::StatusOr<std::unique_ptr<io::OutputFolder>> folder = io::OutputFolder::Create(fs, path);
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
    if (!*exists) AQT_RETURN_IF_ERROR(OutputError(fs_->CreateFolder(folder)));
  }
  return io::JoinPath(folder_->temporary_path(), name);
}

absl::Status Output::Commit() {
  if (place_.is_file) return absl::OkStatus();
  return OutputError(place_.replace ? Replace() : folder_->Commit());
}

absl::Status Output::Replace() {
  const std::string& path = place_.path;
  const std::string old = absl::StrCat(path, kOldSuffix);
  absl::Status status = fs_->Rename(path, old);
  if (status.ok()) status = fs_->Rename(folder_->temporary_path(), path);
  if (status.ok()) return io::RemoveTree(*fs_, old);
  // A rename can fail before it happens, or after, when the disk cannot be flushed.
  const absl::StatusOr<bool> in_place = io::Exists(*fs_, path);
  if (in_place.ok() && *in_place) {
    if (const absl::StatusOr<bool> moved = io::Exists(*fs_, old); moved.ok() && *moved)
      io::RemoveTree(*fs_, old).IgnoreError();
    return status;
  }
  const absl::Status back = fs_->Rename(old, path);
  return back.ok() ? status : Annotate(status, absl::StrCat("what was at ", path, " is now at ", old));
}

}  // namespace aqt::serving
