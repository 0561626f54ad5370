#ifndef AQT_GGUF_GGUF_WRITER_H_
#define AQT_GGUF_GGUF_WRITER_H_

// Writes GGUF files.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/io/file.h"
#include "aqt/quant/weights/ggml_types.h"

namespace aqt::gguf {

// A value of the metadata to write: given here, or copied from a file byte for byte.
struct MetadataItem {
  std::string key;
  ValueType type = ValueType::kU32;
  std::string bytes;               // as in the file, after the id of the type
  const GgufFile* from = nullptr;  // not null: the value is that of the same key of this file, which has it
};
MetadataItem U32Item(std::string key, uint32_t value);
MetadataItem F32Item(std::string key, float value);
MetadataItem StringItem(std::string key, absl::string_view value);
MetadataItem CopiedItem(const GgufFile& from, const MetadataEntry& entry);

struct GgufTensorSpec {
  std::string name;
  ggml::Type type = ggml::Type::kF32;
  Shape shape;  // the outermost extent first
};

struct GgufWriterOptions {
  uint32_t version = kVersion;            // 2 or 3
  int64_t alignment = kDefaultAlignment;  // a power of two; the metadata must say another one
  io::OutputOptions output = {};
};

// Writes a file whose tensors are known up front; their data may come in any order and in pieces. Only the list of
// tensors is kept in memory. The complete file appears at Finish, or never. Write is thread-safe.
class GgufWriter {
 public:
  // Writes the header. InvalidArgument if a name or key is used twice or too long, if a shape does not suit its type,
  // or if alignment and metadata disagree; the errors of FileSystem::CreateOutput; ResourceExhausted if there is not
  // enough disk space. The files that metadata is copied from are read here.
  static absl::StatusOr<std::unique_ptr<GgufWriter>> Create(const io::FileSystem& fs, absl::string_view path,
                                                            const std::vector<MetadataItem>& metadata,
                                                            const std::vector<GgufTensorSpec>& tensors,
                                                            const GgufWriterOptions& options = {});

  const std::string& path() const { return file_->path(); }
  // In the given order, with their places in the file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  // Writes bytes of a tensor of tensors() from its byte `offset` on. OutOfRange if they are not all inside it.
  absl::Status Write(size_t tensor, int64_t offset, absl::Span<const uint8_t> data);
  // Commits the file. FailedPrecondition, naming the tensor, if not exactly as many bytes as it has were written; the
  // first error of Write, if one failed. Must be called only once.
  absl::Status Finish();

 private:
  explicit GgufWriter(std::unique_ptr<io::OutputFile> file) : file_(std::move(file)) {}
  absl::Status WriteHeader(const std::vector<MetadataItem>& metadata, const GgufWriterOptions& options);

  std::unique_ptr<io::OutputFile> file_;
  std::vector<GgufTensor> tensors_;
  std::mutex mutex_;
  absl::Status status_;           // the first error of a write; guarded by mutex_
  std::vector<int64_t> written_;  // bytes of each tensor; guarded by mutex_
};

}  // namespace aqt::gguf

#endif  // AQT_GGUF_GGUF_WRITER_H_
