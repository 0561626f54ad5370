#ifndef AQT_IO_TENSORS_SAFETENSORS_H_
#define AQT_IO_TENSORS_SAFETENSORS_H_

// The safetensors file format: u64 little-endian header length N, N bytes of JSON, raw little-endian row-major data.
// docs/formats/safetensors.md says what is read, written and refused.
//
//   AQT_ASSIGN_OR_RETURN(auto reader, SafetensorsReader::Open(LocalFileSystem(), "model.safetensors"));
//   for (const TensorInfo& t : reader.tensors()) Use(t.name, t.dtype, t.shape);
//   AQT_ASSIGN_OR_RETURN(Array weight, reader.ReadArray("fc1.weight"));

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/io/tensors/tensor_spec.h"

namespace aqt::io {

// How the names of such files end.
inline constexpr char kSafetensorsSuffix[] = ".safetensors";

struct SafetensorsHeader {
  Metadata metadata;
  std::vector<TensorInfo> tensors;  // in the order of their data; those of size zero in header order
};

// The longest header that is read or written, in bytes; the same limit as in the format's own reader.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Reads the JSON text of the header of a file with `data_bytes` bytes of data. DataLoss, naming cause and tensor,
// unless the tensors tile the data exactly and every other rule of docs/formats/safetensors.md holds.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes);

// An open file, with a single shard. Only the header is kept in memory; data is read on demand.
class SafetensorsReader final : public TensorSource {
 public:
  // DataLoss if the file is damaged or not of this format; the errors of FileSystem::OpenForReading and Read.
  static absl::StatusOr<SafetensorsReader> Open(const FileSystem& fs, absl::string_view path);
  static absl::StatusOr<SafetensorsReader> Open(std::unique_ptr<RandomAccessFile> file);

  // The header's `__metadata__`.
  const Metadata& metadata() const { return shards()[0].metadata; }

 private:
  SafetensorsReader() = default;
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override;

  std::unique_ptr<RandomAccessFile> file_;
  int64_t data_begin_ = 0;  // offset in the file
};

// Options of SafetensorsWriter and LayOutSafetensors.
struct SafetensorsWriterOptions {
  Metadata metadata = {};  // written if not empty, in this order; keys must be distinct
  // The data starts at a multiple of this many bytes in the file: a power of two from 8 to 4096. 8 gives the bytes
  // of the format's own writer.
  int64_t alignment = 64;
  OutputOptions output = {};
};

// The JSON text of a header with its padding, and the position of each tensor: sorted by dtype (kU64 first), then by
// name.
struct SafetensorsLayout {
  std::string json;
  std::vector<TensorInfo> tensors;
  int64_t data_bytes = 0;
};
// InvalidArgument if a name is used twice, is "__metadata__" or is not UTF-8, if TensorBytes refuses a shape, if the
// sum of the sizes exceeds 2^63 - 1, if the alignment is not allowed, or if the header would exceed
// kMaxSafetensorsHeader.
absl::StatusOr<SafetensorsLayout> LayOutSafetensors(std::vector<TensorSpec> tensors,
                                                    const SafetensorsWriterOptions& options);

// Writes a file whose tensors are known up front; their data may come in any order and in pieces. Only the layout and
// the list of written ranges are kept in memory. The complete file appears at Finish, or never. Write and WriteArray
// are thread-safe.
class SafetensorsWriter {
 public:
  // The errors of LayOutSafetensors and FileSystem::CreateOutput; ResourceExhausted if there is not enough disk space.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const FileSystem& fs, absl::string_view path,
                                                                   std::vector<TensorSpec> tensors,
                                                                   const SafetensorsWriterOptions& options = {});

  const std::string& path() const { return file_->path(); }
  const std::vector<TensorInfo>& tensors() const { return layout_.tensors; }
  const TensorInfo* Find(absl::string_view name) const;

  // Writes bytes of a tensor from its byte `offset` on. NotFound; OutOfRange; FailedPrecondition if a byte was already
  // written.
  absl::Status Write(absl::string_view name, int64_t offset, absl::Span<const uint8_t> data);
  // Writes the whole tensor; its dtype and shape must be those given to Create (InvalidArgument).
  absl::Status WriteArray(absl::string_view name, const Array& array);
  // Commits the file. FailedPrecondition, naming the tensor, if a byte is missing; the first error of Write, if one
  // failed. Must be called only once.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::unique_ptr<OutputFile> file, SafetensorsLayout layout);
  absl::Status MarkWritten(const TensorInfo& tensor, int64_t begin, int64_t end);

  std::unique_ptr<OutputFile> file_;
  SafetensorsLayout layout_;
  int64_t data_begin_ = 0;
  std::vector<int32_t> by_name_;
  std::mutex mutex_;
  absl::Status status_;                 // first error of a write; guarded by mutex_
  std::map<int64_t, int64_t> written_;  // begin -> end of disjoint, non-adjacent ranges of the data; guarded by mutex_
};

}  // namespace aqt::io

#endif  // AQT_IO_TENSORS_SAFETENSORS_H_
