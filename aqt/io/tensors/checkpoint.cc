#include "aqt/io/tensors/checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file_cache.h"
#include "aqt/io/json.h"
#include "aqt/io/tensors/checkpoint_files.h"
#include "aqt/io/tensors/folder_files.h"

namespace aqt::io {
namespace {

constexpr absl::string_view kIndexSuffix = ".safetensors.index.json";

const std::string& NameOf(const SafetensorsReader& shard) { return shard.shards()[0].name; }

// DataLoss unless the shards, sorted by name, hold exactly the tensors that the index names.
absl::Status CheckIndex(absl::string_view path, const std::vector<SafetensorsReader>& shards, CheckpointFiles files) {
  WeightMap& weight_map = files.weight_map;
  const auto fail = [&](const std::string& tensor, absl::string_view cause) {
    return absl::DataLossError(absl::StrCat("folder '", path, "', tensor ", QuoteForMessage(tensor), ": ", cause));
  };
  std::sort(weight_map.begin(), weight_map.end());
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (const TensorInfo& info : shards[shard].tensors()) {
      const auto it = std::lower_bound(weight_map.begin(), weight_map.end(), info.name,
                                       [](const auto& entry, const std::string& name) { return entry.first < name; });
      if (it == weight_map.end() || it->first != info.name) {
        return fail(info.name, absl::StrCat("is in shard ", NameOf(shards[shard]), ", but not in ", files.index));
      }
      // This also finds tensors that occur in two shards.
      if (it->second != NameOf(shards[shard])) {
        return fail(info.name,
                    absl::StrCat("is in shard ", NameOf(shards[shard]), ", but ", files.index, " says ", it->second));
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto shard = std::lower_bound(shards.begin(), shards.end(), file,
                                        [](const auto& reader, const std::string& f) { return NameOf(reader) < f; });
    if (shard->Find(tensor) == nullptr) {
      return fail(tensor, absl::StrCat(files.index, " says that it is in shard ", file, ", but it is not"));
    }
  }
  return absl::OkStatus();
}

// DataLoss if two shards hold a tensor of the same name.
absl::Status CheckDistinct(absl::string_view path, const std::vector<SafetensorsReader>& shards) {
  std::map<absl::string_view, const SafetensorsReader*> seen;
  for (const SafetensorsReader& shard : shards) {
    for (const TensorInfo& info : shard.tensors()) {
      const auto [it, inserted] = seen.try_emplace(info.name, &shard);
      if (inserted) continue;
      return absl::DataLossError(absl::StrCat("folder '", path, "', tensor ", QuoteForMessage(info.name),
                                              ": is in both ", NameOf(*it->second), " and ", NameOf(shard),
                                              ", and there is no index; download the model again, with its index"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

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
    result.stem_ = std::string(absl::StripSuffix(BaseName(path), kSafetensorsSuffix));
    result.index_name_ = absl::StrCat(result.stem_, kIndexSuffix);
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
  AQT_ASSIGN_OR_RETURN(CheckpointFiles chosen, FindCheckpointFiles(fs, path, names, options.leave_out));
  const std::vector<std::string> shard_names = chosen.shards;
  has_index_ = !chosen.index.empty();
  is_sharded_ = has_index_ || ParseShardName(shard_names[0]).has_value();
  stem_ = chosen.stem;
  index_name_ = has_index_ ? chosen.index : absl::StrCat(stem_, kIndexSuffix);
  index_extras_ = std::move(chosen.extras);

  FileCache cache;
  std::vector<std::string> missing;
  for (const std::string& name : shard_names) {
    absl::StatusOr<std::unique_ptr<RandomAccessFile>> file = cache.Open(fs, JoinPath(path, name));
    if (has_index_ && absl::IsNotFound(file.status())) {
      missing.push_back(name);
      continue;
    }
    AQT_RETURN_IF_ERROR(file.status());
    AQT_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(*std::move(file)));
    readers_.push_back(std::move(reader));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("folder '", path, "' lacks ", missing.size(), " of ", shard_names.size(),
                                            " shards that ", index_name_, " names (", ListSome(missing), ")"));
  }
  AQT_RETURN_IF_ERROR(has_index_ ? CheckIndex(path, readers_, std::move(chosen)) : CheckDistinct(path, readers_));

  // Last, because there may be many nested folders.
  std::set<std::string> own(shard_names.begin(), shard_names.end());
  if (has_index_) own.insert(index_name_);
  AQT_ASSIGN_OR_RETURN(FolderFiles files, FindFolderFiles(fs, path, own, options.leave_out));
  warnings = std::move(files.warnings);
  for (std::string& name : files.names) {
    // Nested weights are part of the model that is not ours to quantize (2_Dense/model.safetensors).
    const bool nested = name.find('/') != std::string::npos;
    const bool weights = absl::EndsWith(name, kSafetensorsSuffix) || StemOfIndex(name).has_value();
    const bool unused = !nested && weights && !IsAdapterWeights(name);
    (unused ? unused_weight_files_ : other_files_).push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  return readers_[tensor.shard].Read(tensor, offset, dst);
}

}  // namespace aqt::io
