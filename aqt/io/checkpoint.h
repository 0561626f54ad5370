#ifndef AQT_IO_CHECKPOINT_H_
#define AQT_IO_CHECKPOINT_H_

// A model's tensors in one or more safetensors files, as found on disk:
//   a .safetensors file; or a folder with
//     model.safetensors.index.json and the shards that it names, or else
//     model.safetensors, or else
//     exactly one *.safetensors.
// A folder with both an index and a model.safetensors that the index does not name is refused as ambiguous.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/io/safetensors.h"
#include "aqt/io/tensor_source.h"

namespace aqt::io {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

// Which shard holds which tensor: {tensor name, file name}, in the order of the index.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

// Reads the text of an index. DataLoss, naming the cause, unless `weight_map` maps distinct names to file names that
// end in ".safetensors" and contain no '/', '\\' or NUL. `metadata` is optional and not interpreted: total_size is
// often wrong in the wild. If the text is not a JSON object, the error names line and column (ScanJsonObject in
// json.h).
absl::StatusOr<WeightMap> ParseIndex(absl::string_view json);

// The text of an index: indented by two spaces, sorted by name. `total_size` is the number of bytes of all tensors.
// InvalidArgument if a name is not UTF-8 or occurs twice.
absl::StatusOr<std::string> MakeIndex(WeightMap weight_map, int64_t total_size);

struct CheckpointOptions {
  // A file or folder inside the opened folder that is not part of it: the output of a conversion. It need not exist.
  std::string leave_out;
};

// The tensors, and the files beside them. path() is as given to Open; a shard is a safetensors file.
class Checkpoint final : public TensorSource {
 public:
  // NotFound if a file is missing; DataLoss if a file is damaged, or index and shards disagree (each tensor must be in
  // the shard that the index names, and in no other; each tensor of a shard must be in the index); FailedPrecondition
  // if a folder is ambiguous.
  static absl::StatusOr<Checkpoint> Open(const FileSystem& fs, absl::string_view path,
                                         const CheckpointOptions& options = {});

  bool is_folder() const { return is_folder_; }
  // Whether there is an index file.
  bool has_index() const { return has_index_; }

  // The folder's other files, sorted, as paths relative to it ("config.json", "2_Dense/model.safetensors"), for a
  // converter to copy. Leaves out what FolderFiles (folder_files.h) does, the index, and *.safetensors files and
  // indices next to it that are not part of this checkpoint. Empty if a file was opened.
  const std::vector<std::string>& other_files() const { return other_files_; }
  // The *.safetensors and *.safetensors.index.json files that other_files() leaves out as unused.
  const std::vector<std::string>& unused_weight_files() const { return unused_weight_files_; }

 private:
  Checkpoint() = default;
  absl::Status OpenFolder(const FileSystem& fs, const std::string& path, const CheckpointOptions& options,
                          std::vector<std::string>& warnings);
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;

  bool is_folder_ = false;
  bool has_index_ = false;
  std::vector<SafetensorsReader> readers_;  // of the shards
  std::vector<std::string> other_files_;
  std::vector<std::string> unused_weight_files_;
};

}  // namespace aqt::io

#endif  // AQT_IO_CHECKPOINT_H_
