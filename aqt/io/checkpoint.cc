#include "aqt/io/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/folder_files.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::io {
namespace {

constexpr char kWeightSuffix[] = ".safetensors";
constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr char kMetadataKey[] = "metadata";
constexpr char kWeightMapKey[] = "weight_map";
// Only values that are skipped can nest deeper.
constexpr int kMaxDepth = 64;
// The largest index that is read; the largest published ones have some 10 MB.
constexpr int64_t kMaxIndexBytes = 100'000'000;

absl::Status CheckShardName(absl::string_view name) {
  if (!absl::EndsWith(name, kWeightSuffix) ||
      name.find_first_of(absl::string_view("/\\\0", 3)) != absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat("weight_map names the file ", QuoteForMessage(name),
                                            "; a name in the same folder that ends in ", kWeightSuffix,
                                            " is expected"));
  }
  return absl::OkStatus();
}

// Extracts `weight_map` from the events of an index's text, an object without duplicate keys; skips everything else.
class IndexHandler final : public JsonHandler {
 public:
  WeightMap weight_map;

  absl::Status StartObject() override {
    if (InMap()) return NotAName();
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status EndObject() override {
    --depth_;
    return absl::OkStatus();
  }
  absl::Status StartArray() override {
    if (root_key_ == kWeightMapKey) return NotAName();
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status EndArray() override { return EndObject(); }

  absl::Status Key(std::string& key) override {
    if (depth_ == 1) root_key_ = std::move(key);
    if (InMap()) tensor_ = std::move(key);
    return absl::OkStatus();
  }

  absl::Status Scalar(const JsonScalar& value) override {
    if (root_key_ != kWeightMapKey) return absl::OkStatus();
    if (!InMap() || value.kind != JsonScalar::kString) return NotAName();
    AQT_RETURN_IF_ERROR(CheckShardName(*value.string));
    weight_map.emplace_back(std::move(tensor_), std::move(*value.string));
    return absl::OkStatus();
  }

 private:
  bool InMap() const { return depth_ == 2 && root_key_ == kWeightMapKey; }
  absl::Status NotAName() const {
    return absl::DataLossError("weight_map is not an object of tensor names and file names");
  }

  int depth_ = 0;  // number of open objects and arrays
  std::string root_key_;
  std::string tensor_;
};

// The first few names, for a message.
std::string ListSome(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 5;
  const auto end = names.begin() + std::min(names.size(), kMaxNames);
  const auto append = [](std::string* out, const std::string& name) { absl::StrAppend(out, Printable(name)); };
  return absl::StrCat(absl::StrJoin(names.begin(), end, ", ", append), names.size() > kMaxNames ? ", ..." : "");
}

bool IsWeightFile(absl::string_view name) { return absl::EndsWith(name, kWeightSuffix); }

// Removes from `names`, files in `folder`, the file `left_out`, by whatever path it is given, unless it is the only
// one.
absl::Status LeaveOut(const FileSystem& fs, const std::string& folder, const std::string& left_out,
                      std::vector<std::string>& names) {
  if (left_out.empty() || names.size() < 2) return absl::OkStatus();
  std::vector<std::string> kept;
  for (const std::string& name : names) {
    AQT_ASSIGN_OR_RETURN(const bool same, SameFile(fs, JoinPath(folder, name), left_out));
    if (!same) kept.push_back(name);
  }
  names = std::move(kept);
  return absl::OkStatus();
}

const std::string& NameOf(const SafetensorsReader& shard) { return shard.shards()[0].name; }

// DataLoss unless the shards, sorted by name, hold the tensors that the index names, and no others.
absl::Status CheckIndex(absl::string_view path, const std::vector<SafetensorsReader>& shards, WeightMap weight_map) {
  const auto fail = [&](const std::string& tensor, absl::string_view cause) {
    return absl::DataLossError(absl::StrCat("folder '", path, "', tensor ", QuoteForMessage(tensor), ": ", cause));
  };
  std::sort(weight_map.begin(), weight_map.end());
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (const TensorInfo& info : shards[shard].tensors()) {
      const auto it = std::lower_bound(weight_map.begin(), weight_map.end(), info.name,
                                       [](const auto& entry, const std::string& name) { return entry.first < name; });
      if (it == weight_map.end() || it->first != info.name) {
        return fail(info.name, absl::StrCat("is in shard ", NameOf(shards[shard]), ", but not in ", kIndexFile));
      }
      // This also finds tensors that are in two shards.
      if (it->second != NameOf(shards[shard])) {
        return fail(info.name,
                    absl::StrCat("is in shard ", NameOf(shards[shard]), ", but ", kIndexFile, " says ", it->second));
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto shard = std::lower_bound(shards.begin(), shards.end(), file,
                                        [](const auto& reader, const std::string& f) { return NameOf(reader) < f; });
    if (shard->Find(tensor) == nullptr) {
      return fail(tensor, absl::StrCat(kIndexFile, " says that it is in shard ", file, ", but it is not"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightMap> ParseIndex(absl::string_view json) {
  AQT_ASSIGN_OR_RETURN(const JsonObjectText object, ScanJsonObject(json, kMaxDepth));
  IndexHandler handler;
  AQT_RETURN_IF_ERROR(ParseJson(object.standard, kMaxDepth, handler));
  if (handler.weight_map.empty()) return absl::DataLossError("weight_map is missing or empty");
  return std::move(handler.weight_map);
}

absl::StatusOr<std::string> MakeIndex(WeightMap weight_map, int64_t total_size) {
  std::sort(weight_map.begin(), weight_map.end());
  std::string json = absl::StrCat("{\n  \"", kMetadataKey, "\": {\n    \"total_size\": ", total_size, "\n  },\n  \"",
                                  kWeightMapKey, "\": {");
  const std::string* previous = nullptr;
  for (const auto& [tensor, file] : weight_map) {
    if (previous != nullptr && *previous == tensor) {
      return absl::InvalidArgumentError(absl::StrCat("index: tensor ", QuoteForMessage(tensor), " is given twice"));
    }
    AQT_ASSIGN_OR_RETURN(const std::string quoted_tensor, JsonQuote(tensor));
    AQT_ASSIGN_OR_RETURN(const std::string quoted_file, JsonQuote(file));
    absl::StrAppend(&json, previous == nullptr ? "\n    " : ",\n    ", quoted_tensor, ": ", quoted_file);
    previous = &tensor;
  }
  json += previous == nullptr ? "}\n}\n" : "\n  }\n}\n";
  return json;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const FileSystem& fs, absl::string_view path,
                                            const CheckpointOptions& options) {
  Checkpoint result;
  std::vector<std::string> warnings;
  AQT_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  result.is_folder_ = info.kind == FileKind::kFolder;
  if (result.is_folder_) {
    AQT_RETURN_IF_ERROR(result.OpenFolder(fs, std::string(path), options, warnings));
  } else {
    AQT_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(fs, path));
    result.readers_.push_back(std::move(reader));
  }
  std::vector<Shard> shards;
  std::vector<TensorInfo> tensors;
  for (const SafetensorsReader& reader : result.readers_) {
    for (const TensorInfo& tensor : reader.tensors()) {
      tensors.push_back(tensor);
      tensors.back().shard = static_cast<int>(shards.size());
    }
    shards.push_back(reader.shards()[0]);
  }
  result.SetContents(std::string(path), std::move(shards), std::move(tensors), std::move(warnings));
  return result;
}

absl::Status Checkpoint::OpenFolder(const FileSystem& fs, const std::string& path, const CheckpointOptions& options,
                                    std::vector<std::string>& warnings) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  const auto has = [&](absl::string_view name) { return std::binary_search(names.begin(), names.end(), name); };

  WeightMap weight_map;
  std::vector<std::string> shard_names;  // sorted
  if (has(kIndexFile)) {
    has_index_ = true;
    const std::string index_path = JoinPath(path, kIndexFile);
    AQT_ASSIGN_OR_RETURN(const std::string json, ReadFile(fs, index_path, kMaxIndexBytes));
    absl::StatusOr<WeightMap> parsed = ParseIndex(json);
    if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat("cannot read index '", index_path, "'"));
    weight_map = *std::move(parsed);
    std::set<std::string> shards;
    for (const auto& [tensor, file] : weight_map) shards.insert(file);
    shard_names.assign(shards.begin(), shards.end());
    if (has(kModelFile) && !shards.contains(kModelFile)) {
      return absl::FailedPreconditionError(absl::StrCat("folder '", path, "' has both ", kModelFile, " and ",
                                                        kIndexFile, ", which does not name it; remove one of the two"));
    }
  } else if (has(kModelFile)) {
    shard_names = {kModelFile};
  } else {
    std::copy_if(names.begin(), names.end(), std::back_inserter(shard_names),
                 [](const std::string& name) { return name.front() != '.' && IsWeightFile(name); });
    AQT_RETURN_IF_ERROR(LeaveOut(fs, path, options.leave_out, shard_names));
    if (shard_names.empty()) {
      return absl::NotFoundError(absl::StrCat("folder '", path, "' has no ", kWeightSuffix, " file"));
    }
    if (shard_names.size() > 1) {
      return absl::FailedPreconditionError(absl::StrCat("folder '", path, "' has neither ", kModelFile, " nor ",
                                                        kIndexFile, ", but several ", kWeightSuffix, " files (",
                                                        ListSome(shard_names), "); give the path of one"));
    }
  }

  std::vector<std::string> missing;
  for (const std::string& name : shard_names) {
    absl::StatusOr<SafetensorsReader> reader = SafetensorsReader::Open(fs, JoinPath(path, name));
    if (has_index_ && absl::IsNotFound(reader.status())) {
      missing.push_back(name);
      continue;
    }
    AQT_RETURN_IF_ERROR(reader.status());
    readers_.push_back(*std::move(reader));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("folder '", path, "' lacks ", missing.size(), " of ", shard_names.size(),
                                            " shards that ", kIndexFile, " names (", ListSome(missing), ")"));
  }
  if (has_index_) AQT_RETURN_IF_ERROR(CheckIndex(path, readers_, std::move(weight_map)));

  // Last, because there may be many folders below.
  std::set<std::string> own(shard_names.begin(), shard_names.end());
  if (has_index_) own.insert(kIndexFile);
  AQT_ASSIGN_OR_RETURN(FolderFiles files, FindFolderFiles(fs, path, own, options.leave_out));
  warnings = std::move(files.warnings);
  for (std::string& name : files.names) {
    // Nested weights belong to a part of the model that is not ours to quantize (2_Dense/model.safetensors).
    const bool nested = name.find('/') != std::string::npos;
    const bool unused = !nested && (IsWeightFile(name) || absl::EndsWith(name, kIndexSuffix));
    (unused ? unused_weight_files_ : other_files_).push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  return readers_[tensor.shard].Read(tensor, offset, dst);
}

}  // namespace aqt::io
