#include "serving/convert/carried_files.h"

#include <algorithm>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/foreign_file.h"
#include "aqt/io/printable.h"
#include "aqt/io/tensors/checkpoint_files.h"
#include "aqt/io/tensors/safetensors.h"
#include "serving/convert/file_glob.h"
#include "serving/formats/quantization_config.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

constexpr int64_t kCompareBytes = 1 << 20;

// Whether this is a framework's usual name for a model's weights, as used by copies in other formats. Other files, such
// as a vocoder.pth, may be a part of the model.
bool IsForeignWeightFile(absl::string_view name) {
  const absl::string_view format = io::WeightFormatOfName(absl::StripSuffix(name, ".index.json"));
  if (format.empty()) return false;
  if (format == "GGUF") return true;
  for (const absl::string_view begin :
       {"pytorch_model", "diffusion_pytorch_model", "consolidated", "tf_model", "flax_model", "rust_model", "model."}) {
    if (absl::StartsWith(name, begin)) return true;
  }
  return absl::StartsWith(name, "model-") || absl::StartsWith(name, "model_");
}

bool HoldsWeights(absl::string_view name) {
  return absl::EndsWith(name, io::kSafetensorsSuffix) || !io::WeightFormatOfName(name).empty();
}

// Removes the weights of an adapter without its configuration, and a configuration without its weights.
void PairAdapters(CarriedFiles& files) {
  const auto is_config = [](const std::string& name) { return name == io::kAdapterConfigFile; };
  const auto is_weights = [](const std::string& name) { return io::IsAdapterWeights(name); };
  const bool has_config = absl::c_any_of(files.copied, is_config);
  const bool has_weights = absl::c_any_of(files.copied, is_weights);
  if (has_config == has_weights) return;
  std::erase_if(files.copied, [&](const std::string& name) {
    if (!is_config(name) && !is_weights(name)) return false;
    files.warnings.push_back(absl::StrCat(io::Printable(name), " was not copied: it belongs to an adapter, and ",
                                          has_config ? "the adapter's weights are" : "adapter_config.json is",
                                          " not copied with it"));
    return true;
  });
}

// InvalidArgument if the pattern matches a file that a conversion rewrites.
absl::Status CheckExcludable(const FileGlob& glob, const io::Checkpoint& input) {
  std::vector<std::string> needed = input.shard_names();
  if (input.has_index()) needed.push_back(input.index_file());
  needed.push_back(kConfigFile);
  for (const std::string& name : needed) {
    if (!glob.Matches(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--exclude ", io::Printable(glob.text()), " matches ", io::Printable(name),
                     ", which a conversion rewrites; give a pattern that matches only files that are copied"));
  }
  return absl::OkStatus();
}

absl::Status Exclude(const std::vector<std::string>& exclude, const io::Checkpoint& input, CarriedFiles& files) {
  for (const std::string& text : exclude) {
    AQT_ASSIGN_OR_RETURN(const FileGlob glob, FileGlob::Parse(text));
    if (input.is_folder()) AQT_RETURN_IF_ERROR(CheckExcludable(glob, input));
    const auto matches = [&](const std::string& name) { return glob.Matches(name); };
    if (absl::c_none_of(input.other_files(), matches)) {
      files.warnings.push_back(
          absl::StrCat("--exclude ", io::Printable(text), " matches no file that would be copied"));
    }
    std::erase_if(files.copied, matches);
  }
  return absl::OkStatus();
}

// The files beside the tensors, and the folders ("1_Pooling/"), each once with its size; the largest first.
std::vector<CopiedFile> ByFolder(const std::vector<CopiedFile>& copied) {
  std::vector<CopiedFile> sizes;
  for (const auto& [name, bytes] : copied) {
    const std::string top = name.substr(0, name.find('/') == std::string::npos ? name.size() : name.find('/') + 1);
    const auto same = absl::c_find_if(sizes, [&](const CopiedFile& size) { return size.name == top; });
    if (same == sizes.end()) {
      sizes.push_back({top, bytes});
    } else {
      same->bytes += bytes;
    }
  }
  absl::c_stable_sort(sizes, [](const CopiedFile& a, const CopiedFile& b) { return a.bytes > b.bytes; });
  return sizes;
}

}  // namespace

absl::StatusOr<CarriedFiles> FilesToCarry(const io::Checkpoint& input, const std::vector<std::string>& exclude) {
  CarriedFiles files;
  if (input.is_folder()) files.folder = input.path();
  files.index_name = input.index_name();
  files.index_extras = input.index_extras();
  files.copied = input.other_files();
  if (absl::c_binary_search(files.copied, kConfigFile)) files.config_file = io::JoinPath(files.folder, kConfigFile);
  std::erase(files.copied, kConfigFile);
  AQT_RETURN_IF_ERROR(Exclude(exclude, input, files));
  std::erase_if(files.copied, [&](const std::string& name) {
    if (io::IsAdapterWeights(name) || !IsForeignWeightFile(name)) return false;
    files.warnings.push_back(
        absl::StrCat(io::Printable(name), " was not copied: it holds the weights in another format"));
    return true;
  });
  PairAdapters(files);
  return files;
}

absl::StatusOr<std::vector<std::string>> FindPointers(const io::FileSystem& fs, const CarriedFiles& files) {
  constexpr int64_t kMaxPointerBytes = 1024;
  std::vector<std::string> warnings;
  for (const std::string& name : files.copied) {
    const std::string path = io::JoinPath(files.folder, name);
    AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(path));
    if (info.size > kMaxPointerBytes) continue;
    AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxPointerBytes));
    if (!absl::StartsWith(text, "version https://git-lfs")) continue;
    warnings.push_back(absl::StrCat(io::Printable(name), " is a Git LFS pointer and was copied as one: fetch the file ",
                                    "with `git lfs pull`, then copy it or convert again"));
  }
  return warnings;
}

absl::StatusOr<std::vector<CopiedFile>> CopiedFiles(const io::FileSystem& fs, const CarriedFiles& files) {
  std::vector<CopiedFile> copied;
  for (const std::string& name : files.copied) {
    AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(io::JoinPath(files.folder, name)));
    copied.push_back({name, info.size});
  }
  return copied;
}

std::string DescribeCarried(const std::vector<CopiedFile>& copied) {
  constexpr size_t kMaxShown = 8;
  if (copied.empty()) return "";
  const std::vector<CopiedFile> sizes = ByFolder(copied);
  int64_t bytes = 0;
  std::vector<std::string> shown;
  for (const CopiedFile& size : sizes) {
    bytes += size.bytes;
    if (shown.size() == kMaxShown) continue;
    shown.push_back(absl::StrCat(io::Printable(size.name), " ", HumanBytes(size.bytes)));
  }
  return absl::StrCat(copied.size(), copied.size() == 1 ? " other file, " : " other files, ", HumanBytes(bytes), ": ",
                      absl::StrJoin(shown, ", "), sizes.size() > kMaxShown ? ", ..." : "");
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
