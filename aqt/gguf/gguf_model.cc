// The files of a model.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::gguf {
namespace {

// Each file stays open.
constexpr int kMaxFiles = 512;

// "NAME-00002-of-00005.gguf".
struct SetName {
  std::string stem;  // "NAME"
  int number = 0;    // from 1 on
  int count = 0;
  std::string FileOf(int n) const { return absl::StrFormat("%s-%05d-of-%05d%s", stem, n, count, kGgufSuffix); }
};

std::optional<SetName> ParseSetName(absl::string_view name) {
  constexpr absl::string_view kForm = "-00001-of-00001.gguf";
  if (name.size() <= kForm.size() || !absl::EndsWith(name, kGgufSuffix)) return std::nullopt;
  const absl::string_view end = name.substr(name.size() - kForm.size());
  SetName result;
  if (end[0] != '-' || end.substr(6, 4) != "-of-" || !absl::SimpleAtoi(end.substr(1, 5), &result.number) ||
      !absl::SimpleAtoi(end.substr(10, 5), &result.count) || result.number < 1 || result.count < result.number) {
    return std::nullopt;
  }
  result.stem = std::string(name.substr(0, name.size() - kForm.size()));
  return result.FileOf(result.number) == name ? std::optional(result) : std::nullopt;
}

// The model of a folder, as the path of a file.
absl::StatusOr<std::string> FindInFolder(const io::FileSystem& fs, absl::string_view folder) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(folder));
  std::string found;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kGgufSuffix)) continue;
    if (const std::optional<SetName> set = ParseSetName(name); set.has_value() && set->number != 1) continue;
    if (!found.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("the folder '", io::PrintableLine(folder),
                                                        "' has several GGUF ", "models, such as ", io::Printable(found),
                                                        " and ", io::Printable(name), "; name one of the files"));
    }
    found = name;
  }
  if (found.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder '", io::PrintableLine(folder), "' has no GGUF model (*.gguf, or the first of a set)"));
  }
  return io::JoinPath(folder, found);
}

absl::Status CheckPart(const GgufFile& file, int number, int count) {
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> no, file.Integer(kSplitNoKey));
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> parts, file.Integer(kSplitCountKey));
  if (no == number - 1 && parts == count) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", io::PrintableLine(file.path()), "' is part ", number, " of ", count,
                                          " by its name, but its metadata has ", kSplitNoKey, " ", no.value_or(-1),
                                          " and ", kSplitCountKey, " ", parts.value_or(-1), "; expected ", number - 1,
                                          " and ", count));
}

absl::Status CheckTogether(const std::vector<GgufFile>& files) {
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> expected, files[0].Integer(kSplitTensorsKey));
  std::vector<const std::string*> names;
  for (const GgufFile& file : files) {
    for (const GgufTensor& tensor : file.tensors()) names.push_back(&tensor.name);
  }
  const int64_t found = static_cast<int64_t>(names.size());
  if (expected.has_value() && *expected != found) {
    return absl::DataLossError(absl::StrCat("the set of '", io::PrintableLine(files[0].path()), "' has ", found,
                                            " tensors, and its metadata says ", *expected,
                                            "; download all its files again"));
  }
  if (const std::string* twice = io::FindDuplicate(std::move(names)); twice != nullptr) {
    return absl::DataLossError(absl::StrCat("the set of '", io::PrintableLine(files[0].path()), "' has the tensor ",
                                            io::QuoteForMessage(*twice), " in two files"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufModel> GgufModel::Open(const io::FileSystem& fs, absl::string_view path) {
  GgufModel model;
  model.path_ = std::string(path);
  std::string file = model.path_;
  AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(path));
  if (info.kind == io::FileKind::kFolder) {
    AQT_ASSIGN_OR_RETURN(file, FindInFolder(fs, path));
  }
  const std::optional<SetName> set = ParseSetName(io::BaseName(file));
  if (!set.has_value() || set->count == 1) {
    AQT_ASSIGN_OR_RETURN(GgufFile only, GgufFile::Open(fs, file));
    AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> parts, only.Integer(kSplitCountKey));
    if (parts.value_or(1) > 1) {
      AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> no, only.Integer(kSplitNoKey));
      return absl::FailedPreconditionError(absl::StrCat("'", io::PrintableLine(file), "' is part ", no.value_or(0) + 1,
                                                        " of a set of ", *parts,
                                                        ", and not named like one; name the files NAME-00001-of-",
                                                        absl::StrFormat("%05d", *parts), kGgufSuffix, ", ..."));
    }
    model.files_.push_back(std::move(only));
    return model;
  }
  if (set->count > kMaxFiles) {
    return absl::UnimplementedError(absl::StrCat("'", io::PrintableLine(file), "' is one of ", set->count,
                                                 " files; at most ", kMaxFiles, " are read: merge some"));
  }
  for (int n = 1; n <= set->count; ++n) {
    const std::string part = io::JoinPath(io::FolderOf(file), set->FileOf(n));
    absl::StatusOr<GgufFile> opened = GgufFile::Open(fs, part);
    if (absl::IsNotFound(opened.status())) {
      return absl::NotFoundError(absl::StrCat("'", io::PrintableLine(file), "' is part ", set->number, " of ",
                                              set->count, ", and part ", n,
                                              " is missing: ", opened.status().message()));
    }
    AQT_RETURN_IF_ERROR(opened.status());
    AQT_RETURN_IF_ERROR(CheckPart(*opened, n, set->count));
    model.files_.push_back(*std::move(opened));
  }
  AQT_RETURN_IF_ERROR(CheckTogether(model.files_));
  return model;
}

}  // namespace aqt::gguf
