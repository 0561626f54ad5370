#ifndef AQT_IO_TENSORS_CHECKPOINT_FILES_H_
#define AQT_IO_TENSORS_CHECKPOINT_FILES_H_

// Which files of a folder are a checkpoint, by their names and indices.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/weight_index.h"

namespace aqt::io {

// "model-00001-of-00003.safetensors", also with other separators and from 0 on.
struct ShardName {
  std::string stem;  // "model"; of "x-1-of-2.fp16.safetensors" it is "x.fp16"
  // How to write the name of another file of the set.
  std::string before, after;  // the number
  int width = 0;              // digits of the number
  int64_t number = 0;
  int64_t count = 0;
  std::string Name(int64_t n) const;
};
// Nullopt if the name is not of this form, or the number exceeds the count.
std::optional<ShardName> ParseShardName(absl::string_view file);

// The files of one set that are not in `files`, which are names of shards and others. All sets are looked at.
std::vector<std::string> MissingOfSets(const std::vector<std::string>& files);

// "model" of "model.safetensors.index.json", "model.fp16" of "model.safetensors.index.fp16.json"; nullopt if it is not
// the name of an index.
std::optional<std::string> StemOfIndex(absl::string_view file);

// Whether the name is that of an adapter's weights or of their index, as peft, diffusers and MLX write them.
bool IsAdapterWeights(absl::string_view file);
inline constexpr char kAdapterConfigFile[] = "adapter_config.json";

struct CheckpointFiles {
  std::string stem;                 // "model"
  std::string index;                // the index that is there, or empty
  WeightMap weight_map;             // of the index
  IndexExtras extras;               // of the index
  std::vector<std::string> shards;  // sorted
};
// `names` are those in the folder, sorted. `leave_out` may be the path of a file in the folder that is not part of it.
// The errors of Checkpoint::Open (checkpoint.h) that names and indices show.
absl::StatusOr<CheckpointFiles> FindCheckpointFiles(const FileSystem& fs, const std::string& folder,
                                                    const std::vector<std::string>& names,
                                                    const std::string& leave_out);

// What a single file is a part of.
struct WholeOfFile {
  std::string index;                 // that names it with others, or empty if its own name says so
  int64_t num_files = 0;             // of the whole
  std::vector<std::string> missing;  // from its folder
};
// Nullopt if neither the file's name nor an index beside it says that it is one of several.
std::optional<WholeOfFile> FindWholeOfFile(const FileSystem& fs, absl::string_view file);

// The first few names, for a message.
std::string ListSome(const std::vector<std::string>& names);

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_CHECKPOINT_FILES_H_
