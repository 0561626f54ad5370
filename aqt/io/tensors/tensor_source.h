#ifndef AQT_IO_TENSORS_TENSOR_SOURCE_H_
#define AQT_IO_TENSORS_TENSOR_SOURCE_H_

// Tensors by name, independent of how they are stored. Code that only reads tensors takes a TensorSource and works with
// every file format.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {

struct TensorInfo : TensorSpec {
  // Bytes [begin, end) of the shard's data. Only the source knows where the data starts. May have any alignment.
  int64_t begin = 0;
  int64_t end = 0;
  int shard = 0;  // index into TensorSource::shards()
  // The bits of an integer that is stored with fewer bits than its dtype has, as flax stores int4; otherwise 0. Reading
  // gives the dtype.
  int value_bits = 0;
  int64_t num_bytes() const { return end - begin; }
  bool operator==(const TensorInfo&) const = default;
};

// Keys and values of a file's header, in order.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// Reads tensors by name. A new format is a class that gives its list of tensors to SetContents and implements
// ReadBytes. Reading is thread-safe.
class TensorSource {
 public:
  // A file that holds tensors.
  struct Shard {
    std::string name;  // without its folder
    std::string path;
    Metadata metadata;
    // What a file of another format says of the whole model. Empty for safetensors.
    std::string stored_as = {};  // how values are stored that are decoded when they are read, for people
    int64_t num_decoded = 0;     // tensors with such values
    int64_t stored_bytes = 0;    // of all tensors in the file, if that differs from what is read
    std::string config = {};     // the text of config.json, made from what the file says
  };

  virtual ~TensorSource() = default;

  // The file or folder that was opened.
  const std::string& path() const { return path_; }
  // At least one; sorted by name.
  const std::vector<Shard>& shards() const { return shards_; }
  std::vector<std::string> shard_names() const;
  // Ordered by shard, then by position in the data. Names are distinct.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // The size of all tensors.
  int64_t total_bytes() const { return total_bytes_; }
  // Messages for users about problems found by opening.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Null if no tensor has this name. Logarithmic.
  const TensorInfo* Find(absl::string_view name) const;
  // Fills `dst` with the bytes from `offset` on, counted from the first byte of the tensor, which must be one of
  // tensors(): little-endian, row-major, without padding. OutOfRange if they are not all inside the tensor; otherwise
  // the errors of ReadBytes.
  absl::Status Read(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const;
  // The whole tensor. NotFound if no tensor has this name; Unimplemented if ToDType has no dtype for it; DataLoss if a
  // BOOL is neither 0 nor 1.
  absl::StatusOr<Array> ReadArray(absl::string_view name) const;
  absl::StatusOr<Array> ReadArray(const TensorInfo& tensor) const;

 protected:
  TensorSource() = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;

  // Called once, before the source is used. `tensors` have distinct names, and the sizes that TensorBytes gives.
  void SetContents(std::string path, std::vector<Shard> shards, std::vector<TensorInfo> tensors,
                   std::vector<std::string> warnings = {});

 private:
  // Implements Read for at least one byte; all bytes are inside the tensor.
  virtual absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const = 0;

  // "'PATH', tensor 'NAME'", for messages.
  std::string Describe(const TensorInfo& tensor) const;

  std::string path_;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<int32_t> by_name_;  // indices into tensors_, sorted by name
  int64_t total_bytes_ = 0;
  std::vector<std::string> warnings_;
};

// The order of `tensors` by name, as indices.
std::vector<int32_t> SortByName(const std::vector<TensorInfo>& tensors);
// The tensor of that name, or null.
const TensorInfo* FindByName(const std::vector<TensorInfo>& tensors, const std::vector<int32_t>& by_name,
                             absl::string_view name);

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_TENSOR_SOURCE_H_
