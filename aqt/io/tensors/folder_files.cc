#include "aqt/io/tensors/folder_files.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::io {
namespace {

constexpr int kMaxDepth = 32;

using FileId = std::pair<uint64_t, uint64_t>;
FileId IdOf(const FileInfo& info) { return {info.device, info.inode}; }

class Finder {
 public:
  Finder(const FileSystem& fs, const std::string& folder, const std::set<std::string>& own)
      : fs_(fs), folder_(folder), own_(own) {}

  absl::Status LeaveOut(const std::string& path) {
    const absl::StatusOr<FileInfo> info = fs_.Stat(path);
    if (absl::IsNotFound(info.status())) return absl::OkStatus();
    AQT_RETURN_IF_ERROR(info.status());
    AQT_ASSIGN_OR_RETURN(const std::string real, fs_.RealPath(path));
    if (IsInside(real)) left_out_.insert(IdOf(*info));  // if outside, a link of the model may lead to it
    return absl::OkStatus();
  }

  absl::Status Start() {
    AQT_ASSIGN_OR_RETURN(real_folder_, fs_.RealPath(folder_));
    return absl::OkStatus();
  }

  absl::StatusOr<FolderFiles> Find() {
    AQT_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(folder_));
    AQT_RETURN_IF_ERROR(Walk("", {IdOf(info)}, /*in_link=*/false));
    std::sort(result_.names.begin(), result_.names.end());
    if (!followed_.empty()) {
      constexpr size_t kShown = 3;
      const size_t shown = std::min(kShown, followed_.size());
      result_.warnings.insert(
          result_.warnings.begin(),
          absl::StrCat(followed_.size(), followed_.size() == 1 ? " file of " : " files of ", folder_,
                       followed_.size() == 1 ? " is a link" : " are links", " out of it; their targets are read: ",
                       absl::StrJoin(followed_.begin(), followed_.begin() + shown, ", "),
                       shown < followed_.size() ? ", ..." : ""));
    }
    return std::move(result_);
  }

 private:
  // `path` contains no links.
  bool IsInside(absl::string_view path) const {
    return path == real_folder_ ||
           (absl::StartsWith(path, real_folder_) && (real_folder_ == "/" || path[real_folder_.size()] == '/'));
  }

  // `prefix` is empty or ends with '/'; `above`: the folder itself and the folders that contain it.
  absl::Status Walk(const std::string& prefix, const std::vector<FileId>& above, bool in_link) {
    const absl::StatusOr<std::vector<std::string>> names = fs_.List(JoinPath(folder_, prefix));
    if (absl::IsPermissionDenied(names.status()) && !prefix.empty()) {
      return Skip(prefix, "it cannot be read");
    }
    AQT_RETURN_IF_ERROR(names.status());
    for (const std::string& name : *names) {
      if (name.front() != '.') AQT_RETURN_IF_ERROR(Look(prefix + name, above, in_link));
    }
    return absl::OkStatus();
  }

  absl::Status Look(const std::string& name, const std::vector<FileId>& above, bool in_link) {
    const std::string path = JoinPath(folder_, name);
    const bool own = own_.contains(name);
    absl::StatusOr<FileInfo> info = fs_.LStat(path);
    if (!own && absl::IsNotFound(info.status())) return absl::OkStatus();  // removed just now
    const bool link = info.ok() && info->kind == FileKind::kLink;
    if (link) info = fs_.Stat(path);
    if (!info.ok()) {
      if (own) return info.status();
      if (link && absl::IsNotFound(info.status())) return Skip(name, "the link's target does not exist");
      if (link && absl::IsFailedPrecondition(info.status())) return Skip(name, "the link is part of a loop");
      if (absl::IsPermissionDenied(info.status())) return Skip(name, "it cannot be read");
      return info.status();
    }
    if (left_out_.contains(IdOf(*info))) return absl::OkStatus();
    std::string target;  // of a link that leads out
    if (link) {
      AQT_ASSIGN_OR_RETURN(target, fs_.RealPath(path));
      if (IsInside(target)) target.clear();
    }
    switch (info->kind) {
      case FileKind::kRegular: return File(name, path, target, own);
      case FileKind::kFolder: break;
      default: return Skip(name, "it is a pipe, a socket or a device");
    }
    if (!target.empty()) {
      return Skip(name, absl::StrCat("it is a link to the folder '", PrintableLine(target), "' outside of ", folder_,
                                     "; copy that folder here if the model needs it"));
    }
    if (std::find(above.begin(), above.end(), IdOf(*info)) != above.end()) {
      return Skip(name, "it leads back to a folder that contains it");
    }
    if (link && in_link) return Skip(name, "it is a link to a folder inside another one");
    if (above.size() > kMaxDepth) return Skip(name, absl::StrCat("it is more than ", kMaxDepth, " folders deep"));
    std::vector<FileId> chain = above;
    chain.push_back(IdOf(*info));
    return Walk(name + "/", chain, in_link || link);
  }

  absl::Status File(const std::string& name, const std::string& path, const std::string& target, bool own) {
    if (!own) {
      const absl::Status opened = fs_.OpenForReading(path).status();  // fail now, not after the work
      if (absl::IsPermissionDenied(opened)) return Skip(name, "it cannot be read");
      AQT_RETURN_IF_ERROR(opened);
      result_.names.push_back(name);
    }
    if (!target.empty()) followed_.push_back(absl::StrCat(QuoteForMessage(name), " -> '", PrintableLine(target), "'"));
    return absl::OkStatus();
  }

  absl::Status Skip(const std::string& name, absl::string_view cause) {
    result_.warnings.push_back(absl::StrCat(QuoteForMessage(name), " is left out: ", cause));
    return absl::OkStatus();
  }

  const FileSystem& fs_;
  const std::string& folder_;
  const std::set<std::string>& own_;
  std::set<FileId> left_out_;
  std::string real_folder_;
  std::vector<std::string> followed_;
  FolderFiles result_;
};

}  // namespace

absl::StatusOr<FolderFiles> FindFolderFiles(const FileSystem& fs, const std::string& folder,
                                            const std::set<std::string>& own, const std::string& left_out) {
  Finder finder(fs, folder, own);
  AQT_RETURN_IF_ERROR(finder.Start());
  if (!left_out.empty()) {
    std::string path = left_out;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    AQT_RETURN_IF_ERROR(finder.LeaveOut(path));
    for (int n = 1;; ++n) {  // as OutputFolder names what it replaces
      const std::string old = absl::StrCat(path, kReplacedSuffix, n == 1 ? "" : absl::StrCat("-", n));
      if (!fs.LStat(old).ok()) break;  // there is none, or its name is too long
      AQT_RETURN_IF_ERROR(finder.LeaveOut(old));
    }
  }
  return finder.Find();
}

}  // namespace aqt::io
