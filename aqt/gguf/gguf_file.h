#ifndef AQT_GGUF_GGUF_FILE_H_
#define AQT_GGUF_GGUF_FILE_H_

// The GGUF container: metadata by key, and tensors as blocks. docs/formats/gguf.md says what is read and refused.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/io/file.h"
#include "aqt/quant/weights/ggml_types.h"

namespace aqt::gguf {

// How the names of such files end.
inline constexpr char kGgufSuffix[] = ".gguf";

// Keys that this library reads or changes.
inline constexpr char kArchitectureKey[] = "general.architecture";
inline constexpr char kAlignmentKey[] = "general.alignment";
inline constexpr char kFileTypeKey[] = "general.file_type";
inline constexpr char kQuantizationVersionKey[] = "general.quantization_version";
inline constexpr char kSplitNoKey[] = "split.no";
inline constexpr char kSplitCountKey[] = "split.count";
inline constexpr char kSplitTensorsKey[] = "split.tensors.count";

// The layout of blocks that files of today have (general.quantization_version).
inline constexpr uint32_t kQuantizationVersion = 2;
inline constexpr uint32_t kVersion = 3;
inline constexpr int64_t kDefaultAlignment = 32;

// Limits, far above those of real files, that bound the memory for a hostile one.
inline constexpr int64_t kMaxMetadata = 1 << 16;
inline constexpr int64_t kMaxTensors = 1 << 17;
inline constexpr int64_t kMaxNameBytes = 1024;  // of a key or a tensor's name
inline constexpr int64_t kMaxRank = 8;

// The types of metadata, with their ids in the file.
enum class ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// A value of the metadata. Only its place is kept: lists of tokens have megabytes.
struct MetadataEntry {
  std::string key;
  ValueType type = ValueType::kU32;
  ValueType element = ValueType::kU32;  // of an array; kArray if it has arrays
  uint64_t count = 0;                   // of an array
  // The bytes [begin, end) of the file, after the id of its type.
  int64_t begin = 0;
  int64_t end = 0;
};

struct GgufTensor {
  std::string name;
  ggml::Type type = ggml::Type::kF32;
  Shape shape;  // the outermost extent first, unlike in the file
  // The bytes [begin, end) of the file.
  int64_t begin = 0;
  int64_t end = 0;
  int64_t num_bytes() const { return end - begin; }
  // The last extent, and the number of rows of that length. A scalar is one row of one value.
  int64_t cols() const { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }
  int64_t rows() const;
};
// The bytes of n values of a row, a multiple of the type's block.
int64_t RowBytes(ggml::Type type, int64_t n);
// The size of a tensor. InvalidArgument if the last extent is not a multiple of the type's block, or the size exceeds
// 2^63 - 1 bits.
absl::StatusOr<int64_t> TensorBytes(ggml::Type type, const Shape& shape);

// Whether the file begins as GGUF.
bool IsGguf(const io::RandomAccessFile& file);

// An open file. Reading is thread-safe. Errors name the file.
class GgufFile {
 public:
  // DataLoss if the file is damaged or not of this format; Unimplemented for another byte order, version or tensor
  // type; the errors of FileSystem::OpenForReading and Read.
  static absl::StatusOr<GgufFile> Open(const io::FileSystem& fs, absl::string_view path);
  static absl::StatusOr<GgufFile> Open(std::unique_ptr<io::RandomAccessFile> file);

  const io::RandomAccessFile& file() const { return *file_; }
  const std::string& path() const { return file_->path(); }
  uint32_t version() const { return version_; }
  int64_t alignment() const { return alignment_; }
  const std::vector<MetadataEntry>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of the file

  // Null if there is no such key.
  const MetadataEntry* Find(absl::string_view key) const;
  // The value of a key. nullopt if there is no such key, or its value has another type.
  absl::StatusOr<std::optional<std::string>> String(absl::string_view key) const;  // of at most 1 MiB
  absl::StatusOr<std::optional<int64_t>> Integer(absl::string_view key) const;     // any integer type, or a bool
  absl::StatusOr<std::optional<double>> Number(absl::string_view key) const;       // any float or integer type
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key) const;
  // The numbers of an array of at most `max_count` integers or bools.
  absl::StatusOr<std::optional<std::vector<int64_t>>> Integers(absl::string_view key, int64_t max_count) const;

 private:
  GgufFile() = default;
  absl::Status ReadHeader();

  std::unique_ptr<io::RandomAccessFile> file_;
  uint32_t version_ = 0;
  int64_t alignment_ = kDefaultAlignment;
  std::vector<MetadataEntry> metadata_;
  std::vector<GgufTensor> tensors_;
};

// A model in one file, or in several that were split: NAME-00001-of-0000N.gguf.
class GgufModel {
 public:
  // `path` is a file, any file of a set, or a folder that holds one model. The errors of GgufFile::Open; NotFound if a
  // file of a set is missing; DataLoss if the files of a set do not belong together; FailedPrecondition if a folder has
  // no model, or several.
  static absl::StatusOr<GgufModel> Open(const io::FileSystem& fs, absl::string_view path);

  const std::string& path() const { return path_; }
  // The first has the metadata of the model.
  const std::vector<GgufFile>& files() const { return files_; }
  const GgufFile& first() const { return files_[0]; }

 private:
  std::string path_;
  std::vector<GgufFile> files_;
};

// Whether the file begins like one of this format.
bool LooksLikeGguf(const io::FileSystem& fs, absl::string_view path);

}  // namespace aqt::gguf

#endif  // AQT_GGUF_GGUF_FILE_H_
