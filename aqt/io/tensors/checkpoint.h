#ifndef AQT_IO_TENSORS_CHECKPOINT_H_
#define AQT_IO_TENSORS_CHECKPOINT_H_

// A model's tensors in one or more files, as found on disk:
//   a .safetensors file; or a folder with
//     model.safetensors.index.json and the shards that it names, or else
//     model.safetensors, or else
//     one other checkpoint: an index of another name, such as diffusion_pytorch_model.safetensors.index.json, with its
//     shards; a full set, such as model-00001-of-00002.safetensors and its sibling; or a single *.safetensors.
// A folder with both an index and a single file of the same name that the index does not name is refused as ambiguous.
// So is one with several other checkpoints.
//
// With CheckpointOptions::open_other, files of other formats are read as well: any file, or a folder without a model in
// safetensors. Such a folder has, in the same way, pytorch_model.bin.index.json and its shards, pytorch_model.bin, or
// one other .bin; or a model of another format: .msgpack (flax_model.msgpack is preferred), .gguf, .npz, .pth, .pt,
// .npy.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/weight_index.h"

namespace aqt::io {

inline constexpr char kModelFile[] = "model.safetensors";             // a model in one file
inline constexpr char kIndexFile[] = "model.safetensors.index.json";  // the index of a sharded model

// Opens a file of a format other than safetensors. A format that knows the other files of a set opens them, too: the
// source has a shard for each. Takes `file` if it knows the format of its content; otherwise leaves it, and returns
// null.
using OpenOther = std::function<absl::StatusOr<std::unique_ptr<TensorSource>>(std::unique_ptr<RandomAccessFile>& file)>;

// Options of Checkpoint::Open.
struct CheckpointOptions {
  // A file or folder inside the opened folder that is not part of it: the output of a conversion. It need not exist.
  std::string leave_out;
  // Null: only safetensors is read.
  OpenOther open_other = nullptr;
};

// The tensors and the other files of a checkpoint. path() is as given to Open; a shard is a file.
class Checkpoint final : public TensorSource {
 public:
  // NotFound if a file is missing, even if only the names of its siblings imply it; DataLoss if a file is damaged, or
  // if index and shards disagree (each tensor must be in the shard that the index names, and in no other; each tensor
  // of a shard must be in the index; each file of a set must be in the index); FailedPrecondition if a folder is
  // ambiguous. Shards are opened when they are read, a few at a time: `fs` must outlive the result.
  static absl::StatusOr<Checkpoint> Open(const FileSystem& fs, absl::string_view path,
                                         const CheckpointOptions& options = {});

  bool is_folder() const { return is_folder_; }
  // Whether there is an index file.
  bool has_index() const { return has_index_; }
  // Whether it is a set of files, with or without an index.
  bool is_sharded() const { return is_sharded_; }
  // The common beginning of its file names, as safetensors: "model", "diffusion_pytorch_model", "model.fp16". That of
  // other formats' models is "model".
  const std::string& stem() const { return stem_; }
  // The existing index, or the one that a set without an index, or of another format, should have.
  const std::string& index_name() const { return index_name_; }
  // The existing index; empty if there is none.
  const std::string& index_file() const { return index_file_; }
  // The content of the index apart from its weight map.
  const IndexExtras& index_extras() const { return index_extras_; }

  // The folder's other files, sorted, as paths relative to it ("config.json", "2_Dense/model.safetensors"), for a
  // converter to copy. Excludes what FolderFiles (folder_files.h) leaves out, the index, and *.safetensors files and
  // indices next to it that are not part of this checkpoint, except an adapter's. Empty if a file was opened.
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
  bool is_sharded_ = false;
  std::string stem_;
  std::string index_name_;
  std::string index_file_;
  IndexExtras index_extras_;
  std::vector<std::unique_ptr<TensorSource>> readers_;
  std::vector<const TensorSource*> reader_of_;  // of each shard
  std::vector<std::string> other_files_;
  std::vector<std::string> unused_weight_files_;
};

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_CHECKPOINT_H_
