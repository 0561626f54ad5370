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

// How the files of a format are named.
struct FileNames {
  absl::string_view suffix;  // ".safetensors"
  absl::string_view model;   // the stem of a model's file, which no other one is mistaken for: "model"; may be empty
};
inline constexpr FileNames kSafetensorsNames = {".safetensors", "model"};
// The names of another format that `file` could be of, by its ending; null if there are none.
const FileNames* OtherNamesOf(absl::string_view file);

// "model-00001-of-00003.safetensors", also with other separators and from 0 on.
struct ShardName {
  std::string stem;  // "model"; of "x-1-of-2.fp16.safetensors" it is "x.fp16"
  // The parts of a name from which that of another file of the set is made.
  std::string before, after;  // around the number
  int width = 0;              // digits of the number
  int64_t number = 0;
  int64_t count = 0;
  std::string Name(int64_t n) const;
};
// Nullopt if the name is not of this form, or the number exceeds the count.
std::optional<ShardName> ParseShardName(absl::string_view file, absl::string_view suffix = kSafetensorsNames.suffix);

// The missing files of all sets that have a shard in `files`. `files` may hold other names, too.
std::vector<std::string> MissingOfSets(const std::vector<std::string>& files,
                                       absl::string_view suffix = kSafetensorsNames.suffix);

// "model" of "model.safetensors.index.json", "model.fp16" of "model.safetensors.index.fp16.json"; nullopt if it is not
// the name of an index.
std::optional<std::string> StemOfIndex(absl::string_view file, absl::string_view suffix = kSafetensorsNames.suffix);

// Whether `file` is the name of an adapter's weights or of their index, as written by peft, diffusers and MLX.
bool IsAdapterWeights(absl::string_view file);
inline constexpr char kAdapterConfigFile[] = "adapter_config.json";

struct CheckpointFiles {
  FileNames names = kSafetensorsNames;
  std::string stem;                 // "model"
  std::string index;                // the existing index, or empty
  WeightMap weight_map;             // from the index
  IndexExtras extras;               // from the index
  std::vector<std::string> shards;  // sorted
};
// `names`: the sorted names in the folder. `leave_out`: may be the path of a file in the folder that is not part of it.
// `others`: in a folder without a model in safetensors, files of other formats are looked for. Returns those errors of
// Checkpoint::Open (checkpoint.h) that names and indices show.
absl::StatusOr<CheckpointFiles> FindCheckpointFiles(const FileSystem& fs, const std::string& folder,
                                                    const std::vector<std::string>& names, const std::string& leave_out,
                                                    bool others = false);

// The set of files that a single file is part of.
struct WholeOfFile {
  std::string index;                 // lists the file with others; empty if the file's own name shows the set
  int64_t num_files = 0;             // in the set
  std::vector<std::string> missing;  // from its folder
};
// Nullopt if neither the file's name nor an index next to it shows that it is one of several.
std::optional<WholeOfFile> FindWholeOfFile(const FileSystem& fs, absl::string_view file);

// The first few names, for a message.
std::string ListSome(const std::vector<std::string>& names);

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_CHECKPOINT_FILES_H_
