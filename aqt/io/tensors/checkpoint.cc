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
#include "aqt/io/tensors/safetensors.h"

namespace aqt::io {
namespace {

constexpr absl::string_view kIndexSuffix = ".safetensors.index.json";

using Readers = std::vector<std::unique_ptr<TensorSource>>;

const std::string& NameOf(const std::unique_ptr<TensorSource>& shard) { return shard->shards()[0].name; }

// Whether the file begins as safetensors: with the length of a header, and a header in JSON.
bool BeginsAsSafetensors(const RandomAccessFile& file) {
  uint8_t begin[9];
  if (file.size() < static_cast<int64_t>(sizeof(begin)) || !file.Read(0, absl::MakeSpan(begin)).ok()) return false;
  return begin[4] == 0 && begin[5] == 0 && begin[6] == 0 && begin[7] == 0 && begin[8] == '{';
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenShard(std::unique_ptr<RandomAccessFile> file,
                                                        const OpenOther& open_other) {
  if (open_other && !absl::EndsWith(file->path(), kSafetensorsSuffix) && !BeginsAsSafetensors(*file)) {
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> other, open_other(file));
    if (other != nullptr) return other;
  }
  AQT_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(std::move(file)));
  return std::make_unique<SafetensorsReader>(std::move(reader));
}

// The stem of what a single file becomes: its own, or that of any model in another format.
std::string StemOf(absl::string_view name) {
  return std::string(OtherNamesOf(name) == nullptr ? absl::StripSuffix(name, kSafetensorsSuffix)
                                                   : kSafetensorsNames.model);
}

// DataLoss unless the shards, sorted by name, hold exactly the tensors that the index names.
absl::Status CheckIndex(absl::string_view path, const Readers& shards, CheckpointFiles files) {
  WeightMap& weight_map = files.weight_map;
  const auto fail = [&](const std::string& tensor, absl::string_view cause) {
    return absl::DataLossError(absl::StrCat("folder '", path, "', tensor ", QuoteForMessage(tensor), ": ", cause));
  };
  std::sort(weight_map.begin(), weight_map.end());
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (const TensorInfo& info : shards[shard]->tensors()) {
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
    if ((*shard)->Find(tensor) == nullptr) {
      return fail(tensor, absl::StrCat(files.index, " says that it is in shard ", file, ", but it is not"));
    }
  }
  return absl::OkStatus();
}

// DataLoss if two shards hold a tensor of the same name.
absl::Status CheckDistinct(absl::string_view path, const Readers& shards) {
  std::map<absl::string_view, const std::unique_ptr<TensorSource>*> seen;
  for (const std::unique_ptr<TensorSource>& shard : shards) {
    for (const TensorInfo& info : shard->tensors()) {
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
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs.OpenForReading(path));
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> reader, OpenShard(std::move(file), options.open_other));
    result.readers_.push_back(std::move(reader));
    result.stem_ = StemOf(BaseName(path));
    result.index_name_ = absl::StrCat(result.stem_, kIndexSuffix);
    result.is_sharded_ = result.readers_[0]->shards().size() > 1;
  }
  std::vector<Shard> shards;
  std::vector<TensorInfo> tensors;
  for (const std::unique_ptr<TensorSource>& reader : result.readers_) {
    const auto first = static_cast<int>(shards.size());
    for (const TensorInfo& tensor : reader->tensors()) {
      tensors.push_back(tensor);
      tensors.back().shard += first;
    }
    shards.insert(shards.end(), reader->shards().begin(), reader->shards().end());
    result.reader_of_.resize(shards.size(), reader.get());
    warnings.insert(warnings.end(), reader->warnings().begin(), reader->warnings().end());
  }
  result.SetContents(std::string(path), std::move(shards), std::move(tensors), std::move(warnings));
  return result;
}

absl::Status Checkpoint::OpenFolder(const FileSystem& fs, const std::string& path, const CheckpointOptions& options,
                                    std::vector<std::string>& warnings) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  AQT_ASSIGN_OR_RETURN(CheckpointFiles chosen,
                       FindCheckpointFiles(fs, path, names, options.leave_out, options.open_other != nullptr));
  const std::vector<std::string> shard_names = chosen.shards;
  has_index_ = !chosen.index.empty();
  const bool is_safetensors = chosen.names.suffix == kSafetensorsSuffix;
  is_sharded_ = has_index_ || ParseShardName(shard_names[0], chosen.names.suffix).has_value();
  stem_ = chosen.stem;
  index_file_ = chosen.index;
  index_name_ = has_index_ && is_safetensors ? chosen.index : absl::StrCat(stem_, kIndexSuffix);
  index_extras_ = std::move(chosen.extras);

  FileCache cache;
  std::vector<std::string> missing;
  std::set<std::string> opened;  // some formats open all files of a set with the first one
  for (const std::string& name : shard_names) {
    if (opened.contains(name)) continue;
    absl::StatusOr<std::unique_ptr<RandomAccessFile>> file = cache.Open(fs, JoinPath(path, name));
    if (has_index_ && absl::IsNotFound(file.status())) {
      missing.push_back(name);
      continue;
    }
    AQT_RETURN_IF_ERROR(file.status());
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> reader, OpenShard(*std::move(file), options.open_other));
    const std::vector<std::string> of_reader = reader->shard_names();
    opened.insert(of_reader.begin(), of_reader.end());
    readers_.push_back(std::move(reader));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("folder '", path, "' lacks ", missing.size(), " of ", shard_names.size(),
                                            " shards that ", index_file_, " names (", ListSome(missing), ")"));
  }
  AQT_RETURN_IF_ERROR(has_index_ ? CheckIndex(path, readers_, std::move(chosen)) : CheckDistinct(path, readers_));

  // Last, because there may be many nested folders.
  std::set<std::string> own(shard_names.begin(), shard_names.end());
  if (has_index_) own.insert(index_file_);
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
  return reader_of_[tensor.shard]->Read(tensor, offset, dst);
}

}  // namespace aqt::io
