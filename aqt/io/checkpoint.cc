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
  result.path_ = std::string(path);
  AQT_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  result.is_folder_ = info.kind == FileKind::kFolder;
  if (result.is_folder_) {
    AQT_RETURN_IF_ERROR(result.OpenFolder(fs, options));
  } else {
    AQT_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(fs, path));
    result.shards_.push_back(std::move(reader));
    result.shard_names_.emplace_back(BaseName(path));
  }
  for (size_t shard = 0; shard < result.shards_.size(); ++shard) {
    for (const TensorInfo& info : result.shards_[shard].tensors()) {
      result.by_name_.push_back(static_cast<int32_t>(result.tensors_.size()));
      result.tensors_.push_back({&info, static_cast<int>(shard)});
      result.total_bytes_ += info.num_bytes();
    }
  }
  const std::vector<Tensor>& tensors = result.tensors_;
  std::stable_sort(result.by_name_.begin(), result.by_name_.end(),
                   [&](int32_t a, int32_t b) { return tensors[a].info->name < tensors[b].info->name; });
  return result;
}

absl::Status Checkpoint::OpenFolder(const FileSystem& fs, const CheckpointOptions& options) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path_));
  const auto has = [&](absl::string_view name) { return std::binary_search(names.begin(), names.end(), name); };

  WeightMap weight_map;
  if (has(kIndexFile)) {
    has_index_ = true;
    const std::string index_path = JoinPath(path_, kIndexFile);
    AQT_ASSIGN_OR_RETURN(const std::string json, ReadFile(fs, index_path, kMaxIndexBytes));
    absl::StatusOr<WeightMap> parsed = ParseIndex(json);
    if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat("cannot read index '", index_path, "'"));
    weight_map = *std::move(parsed);
    std::set<std::string> shards;
    for (const auto& [tensor, file] : weight_map) shards.insert(file);
    shard_names_.assign(shards.begin(), shards.end());
    if (has(kModelFile) && !shards.contains(kModelFile)) {
      return absl::FailedPreconditionError(absl::StrCat("folder '", path_, "' has both ", kModelFile, " and ",
                                                        kIndexFile, ", which does not name it; remove one of the two"));
    }
  } else if (has(kModelFile)) {
    shard_names_ = {kModelFile};
  } else {
    std::copy_if(names.begin(), names.end(), std::back_inserter(shard_names_),
                 [](const std::string& name) { return name.front() != '.' && IsWeightFile(name); });
    AQT_RETURN_IF_ERROR(LeaveOut(fs, path_, options.leave_out, shard_names_));
    if (shard_names_.empty()) {
      return absl::NotFoundError(absl::StrCat("folder '", path_, "' has no ", kWeightSuffix, " file"));
    }
    if (shard_names_.size() > 1) {
      return absl::FailedPreconditionError(absl::StrCat("folder '", path_, "' has neither ", kModelFile, " nor ",
                                                        kIndexFile, ", but several ", kWeightSuffix, " files (",
                                                        ListSome(shard_names_), "); give the path of one"));
    }
  }

  std::vector<std::string> missing;
  for (const std::string& name : shard_names_) {
    absl::StatusOr<SafetensorsReader> reader = SafetensorsReader::Open(fs, JoinPath(path_, name));
    if (has_index_ && absl::IsNotFound(reader.status())) {
      missing.push_back(name);
      continue;
    }
    AQT_RETURN_IF_ERROR(reader.status());
    shards_.push_back(*std::move(reader));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("folder '", path_, "' lacks ", missing.size(), " of ", shard_names_.size(),
                                            " shards that ", kIndexFile, " names (", ListSome(missing), ")"));
  }
  if (has_index_) AQT_RETURN_IF_ERROR(CheckIndex(std::move(weight_map)));

  // Last, because there may be many folders below.
  std::set<std::string> own(shard_names_.begin(), shard_names_.end());
  if (has_index_) own.insert(kIndexFile);
  AQT_ASSIGN_OR_RETURN(FolderFiles files, FindFolderFiles(fs, path_, own, options.leave_out));
  warnings_ = std::move(files.warnings);
  for (std::string& name : files.names) {
    // Nested weights belong to a part of the model that is not ours to quantize (2_Dense/model.safetensors).
    const bool nested = name.find('/') != std::string::npos;
    const bool unused = !nested && (IsWeightFile(name) || absl::EndsWith(name, kIndexSuffix));
    (unused ? unused_weight_files_ : other_files_).push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckIndex(WeightMap weight_map) const {
  const auto fail = [&](const std::string& tensor, absl::string_view cause) {
    return absl::DataLossError(absl::StrCat("folder '", path_, "', tensor ", QuoteForMessage(tensor), ": ", cause));
  };
  std::sort(weight_map.begin(), weight_map.end());
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const TensorInfo& info : shards_[shard].tensors()) {
      const auto it = std::lower_bound(weight_map.begin(), weight_map.end(), info.name,
                                       [](const auto& entry, const std::string& name) { return entry.first < name; });
      if (it == weight_map.end() || it->first != info.name) {
        return fail(info.name, absl::StrCat("is in shard ", shard_names_[shard], ", but not in ", kIndexFile));
      }
      // This also finds tensors that are in two shards.
      if (it->second != shard_names_[shard]) {
        return fail(info.name,
                    absl::StrCat("is in shard ", shard_names_[shard], ", but ", kIndexFile, " says ", it->second));
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto shard = std::lower_bound(shard_names_.begin(), shard_names_.end(), file) - shard_names_.begin();
    if (shards_[shard].Find(tensor) == nullptr) {
      return fail(tensor, absl::StrCat(kIndexFile, " says that it is in shard ", file, ", but it is not"));
    }
  }
  return absl::OkStatus();
}

const Checkpoint::Tensor* Checkpoint::Find(absl::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name, [&](int32_t i, absl::string_view n) {
    return absl::string_view(tensors_[i].info->name) < n;
  });
  return it != by_name_.end() && tensors_[*it].info->name == name ? &tensors_[*it] : nullptr;
}

absl::Status Checkpoint::Read(const Tensor& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  return shards_[tensor.shard].Read(*tensor.info, offset, dst);
}

absl::StatusOr<Array> Checkpoint::ReadArray(absl::string_view name) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("'", path_, "' has no tensor ", QuoteForMessage(name)));
  }
  return ReadArray(*tensor);
}

absl::StatusOr<Array> Checkpoint::ReadArray(const Tensor& tensor) const {
  return shards_[tensor.shard].ReadArray(*tensor.info);
}

}  // namespace aqt::io
