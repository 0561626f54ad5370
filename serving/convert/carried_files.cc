#include "serving/convert/carried_files.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/formats/quantization_config.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

constexpr int64_t kCompareBytes = 1 << 20;

bool IsForeignWeightFile(absl::string_view name) {
  return (absl::StartsWith(name, "pytorch_model") &&
          (absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".bin.index.json"))) ||
         name == "tf_model.h5" || name == "flax_model.msgpack" || name == "rust_model.ot";
}

bool HoldsWeights(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") || IsForeignWeightFile(io::BaseName(name));
}

absl::StatusOr<bool> SameBytes(const io::FileSystem& fs, const std::string& path_a, const std::string& path_b,
                               const std::atomic<bool>* cancelled) {
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<io::RandomAccessFile> a, fs.OpenForReading(path_a));
  AQT_ASSIGN_OR_RETURN(const std::unique_ptr<io::RandomAccessFile> b, fs.OpenForReading(path_b));
  if (a->size() != b->size()) return false;
  std::vector<uint8_t> x, y;
  for (int64_t at = 0; at < a->size(); at += kCompareBytes) {
    AQT_RETURN_IF_ERROR(CheckCancelled(cancelled));
    x.resize(std::min(kCompareBytes, a->size() - at));
    y.resize(x.size());
    AQT_RETURN_IF_ERROR(a->Read(at, absl::MakeSpan(x)));
    AQT_RETURN_IF_ERROR(b->Read(at, absl::MakeSpan(y)));
    if (x != y) return false;
  }
  return true;
}

}  // namespace

CarriedFiles FilesToCarry(const io::Checkpoint& input) {
  CarriedFiles files;
  if (!input.is_folder()) return files;
  files.folder = input.path();
  for (const std::string& name : input.other_files()) {
    if (name == kConfigFile) files.has_config = true;
    else (IsForeignWeightFile(name) ? files.foreign_weights : files.copied).push_back(name);
  }
  return files;
}

absl::StatusOr<int64_t> CarriedBytes(const io::FileSystem& fs, const CarriedFiles& files) {
  int64_t bytes = 0;
  for (const std::string& name : files.copied) {
    AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(io::JoinPath(files.folder, name)));
    bytes += info.size;
  }
  return bytes;
}

absl::StatusOr<std::vector<std::string>> CompareCarriedFiles(const io::FileSystem& fs, const CarriedFiles& files,
                                                             absl::string_view output,
                                                             const std::atomic<bool>* cancelled) {
  std::vector<std::string> problems;
  for (const std::string& name : files.copied) {
    AQT_RETURN_IF_ERROR(CheckCancelled(cancelled));
    const std::string copy = io::JoinPath(output, name);
    const absl::StatusOr<io::FileInfo> info = fs.Stat(copy);
    if (!info.ok() && !absl::IsNotFound(info.status()) && !absl::IsFailedPrecondition(info.status())) {
      return info.status();
    }
    if (!info.ok() || info->kind != io::FileKind::kRegular) {
      problems.push_back(absl::StrCat("the file ", io::Printable(name), " of the input is missing from the output"));
    } else if (HoldsWeights(name)) {
      AQT_ASSIGN_OR_RETURN(const bool same, SameBytes(fs, io::JoinPath(files.folder, name), copy, cancelled));
      if (!same) problems.push_back(absl::StrCat("the file ", io::Printable(name), " differs from the input's"));
    }
  }
  return problems;
}

}  // namespace aqt::serving
