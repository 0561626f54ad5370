#include "aqt/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/gguf/header_reader.h"
#include "aqt/io/foreign_file.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's byte order is taken to be the machine's");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int kMaxArrayDepth = 4;
constexpr int64_t kMaxStringBytes = 1 << 20;
// The shortest entries of metadata and of the list of tensors.
constexpr int64_t kMinMetadataBytes = 8 + 4 + 1;
constexpr int64_t kMinTensorBytes = 8 + 4 + 4 + 8;

// The bytes of a value of fixed size; 0 for strings and arrays; -1 if there is no such type.
int64_t SizeOf(uint32_t type) {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64: return 8;
    case ValueType::kString:
    case ValueType::kArray: return 0;
  }
  return -1;
}

// Skips a value; fills `entry` with the element type and count if it is an array. nullptr: it is inside an array.
absl::Status SkipValue(HeaderReader& reader, absl::string_view what, uint32_t type, int depth, MetadataEntry* entry) {
  if (const int64_t bytes = SizeOf(type); bytes != 0) {
    if (bytes < 0) {
      return absl::DataLossError(
          absl::StrCat(what, " has the type ", type, ", which does not exist (0 to 12 do); the file is damaged"));
    }
    return reader.Skip(what, 1, bytes);
  }
  if (static_cast<ValueType>(type) == ValueType::kString) return reader.SkipString(what);
  if (depth == kMaxArrayDepth) {
    return absl::DataLossError(absl::StrCat(what, " nests arrays deeper than ", kMaxArrayDepth));
  }
  uint32_t element = 0;
  uint64_t count = 0;
  AQT_RETURN_IF_ERROR(reader.Read(what, element));
  AQT_RETURN_IF_ERROR(reader.Read(what, count));
  if (entry != nullptr) {
    entry->element = static_cast<ValueType>(element);
    entry->count = count;
  }
  const int64_t bytes = SizeOf(element);
  if (bytes > 0) return reader.Skip(what, count, bytes);
  if (bytes < 0) return SkipValue(reader, what, element, depth, nullptr);
  // Each element has at least a length, so the loop ends with the file.
  for (uint64_t i = 0; i < count; ++i) AQT_RETURN_IF_ERROR(SkipValue(reader, what, element, depth + 1, nullptr));
  return absl::OkStatus();
}

absl::Status CheckCount(absl::string_view what, uint64_t count, int64_t limit, int64_t least_bytes, int64_t bytes) {
  if (count > static_cast<uint64_t>(bytes / least_bytes)) {
    return absl::DataLossError(absl::StrCat("the header announces ", count, " ", what, ", for which the file of ",
                                            bytes, " more bytes is too short; it is truncated or damaged"));
  }
  if (count > static_cast<uint64_t>(limit)) {
    return absl::UnimplementedError(
        absl::StrCat("the header announces ", count, " ", what, ", more than the limit of ", limit));
  }
  return absl::OkStatus();
}

absl::Status CheckName(absl::string_view what, const std::string& name) {
  if (io::JsonQuote(name).ok()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, " ", io::QuoteForMessage(name), " is not UTF-8"));
}

absl::Status ReadMetadata(HeaderReader& reader, uint64_t count, std::vector<MetadataEntry>& metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    MetadataEntry entry;
    uint32_t type = 0;
    AQT_RETURN_IF_ERROR(reader.ReadString(absl::StrCat("the key of metadata ", i), kMaxNameBytes, entry.key));
    AQT_RETURN_IF_ERROR(CheckName("the key", entry.key));
    const std::string what = absl::StrCat("the value of ", io::QuoteForMessage(entry.key));
    AQT_RETURN_IF_ERROR(reader.Read(what, type));
    entry.type = static_cast<ValueType>(type);
    entry.begin = reader.position();
    AQT_RETURN_IF_ERROR(SkipValue(reader, what, type, 0, &entry));
    entry.end = reader.position();
    metadata.push_back(std::move(entry));
  }
  std::vector<const std::string*> keys;
  for (const MetadataEntry& entry : metadata) keys.push_back(&entry.key);
  if (const std::string* twice = io::FindDuplicate(std::move(keys)); twice != nullptr) {
    return absl::DataLossError(absl::StrCat("the metadata has the key ", io::QuoteForMessage(*twice), " twice"));
  }
  return absl::OkStatus();
}

// Reads the entry of a tensor. Its `begin` is the offset in the data.
absl::Status ReadTensor(HeaderReader& reader, uint64_t index, GgufTensor& tensor) {
  AQT_RETURN_IF_ERROR(reader.ReadString(absl::StrCat("the name of tensor ", index), kMaxNameBytes, tensor.name));
  AQT_RETURN_IF_ERROR(CheckName("the tensor name", tensor.name));
  const std::string what = absl::StrCat("tensor ", io::QuoteForMessage(tensor.name));
  uint32_t rank = 0, type = 0;
  uint64_t offset = 0;
  AQT_RETURN_IF_ERROR(reader.Read(what, rank));
  if (rank > kMaxRank) {
    return absl::DataLossError(absl::StrCat(what, " has the rank ", rank, "; at most ", kMaxRank, " is allowed"));
  }
  uint64_t extents[kMaxRank];
  for (uint32_t i = 0; i < rank; ++i) AQT_RETURN_IF_ERROR(reader.Read(what, extents[i]));
  for (uint32_t i = rank; i-- > 0;) {
    if (extents[i] > static_cast<uint64_t>(INT64_MAX)) {
      return absl::DataLossError(absl::StrCat(what, " has the extent ", extents[i]));
    }
    tensor.shape.push_back(static_cast<int64_t>(extents[i]));
  }
  AQT_RETURN_IF_ERROR(reader.Read(what, type));
  AQT_RETURN_IF_ERROR(reader.Read(what, offset));
  if (ggml::FindType(type) == nullptr) {
    return absl::UnimplementedError(absl::StrCat(what, " has the type ", type, ", which is not known",
                                                 type == 4 || type == 5 || (type >= 31 && type <= 38)
                                                     ? ": it has been removed from the format; make the file again"
                                                     : "; a newer version of this program may know it"));
  }
  tensor.type = static_cast<ggml::Type>(type);
  const absl::StatusOr<int64_t> bytes = TensorBytes(tensor.type, tensor.shape);
  if (!bytes.ok()) return absl::DataLossError(absl::StrCat(what, ": ", bytes.status().message()));
  if (offset > static_cast<uint64_t>(INT64_MAX - *bytes)) {
    return absl::DataLossError(absl::StrCat(what, " begins at ", offset, ", beyond the end of the file"));
  }
  tensor.begin = static_cast<int64_t>(offset);
  tensor.end = tensor.begin + *bytes;
  return absl::OkStatus();
}

// Makes the offsets of tensors absolute. DataLoss if they are not all inside the file, aligned and apart.
absl::Status PlaceTensors(int64_t data_begin, int64_t alignment, int64_t file_bytes, std::vector<GgufTensor>& tensors) {
  for (GgufTensor& tensor : tensors) {
    const std::string what = absl::StrCat("tensor ", io::QuoteForMessage(tensor.name));
    if (tensor.begin % alignment != 0) {
      return absl::DataLossError(
          absl::StrCat(what, " begins at ", tensor.begin, ", not a multiple of the alignment ", alignment));
    }
    if (tensor.num_bytes() == 0) {
      tensor.begin = tensor.end = data_begin;
      continue;
    }
    if (data_begin > file_bytes - std::min(file_bytes, tensor.end)) {
      return absl::DataLossError(
          absl::StrCat(what, " needs the bytes ", tensor.begin, " to ", tensor.end, " of the data, and the file has ",
                       std::max<int64_t>(0, file_bytes - data_begin), "; it is truncated: copy or download it again"));
    }
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  std::vector<const GgufTensor*> sorted;
  std::vector<const std::string*> names;
  for (const GgufTensor& tensor : tensors) {
    names.push_back(&tensor.name);
    if (tensor.num_bytes() > 0) sorted.push_back(&tensor);
  }
  if (const std::string* twice = io::FindDuplicate(std::move(names)); twice != nullptr) {
    return absl::DataLossError(absl::StrCat("tensor ", io::QuoteForMessage(*twice), " is in the file twice"));
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->begin >= sorted[i - 1]->end) continue;
    return absl::DataLossError(absl::StrCat("the tensors ", io::QuoteForMessage(sorted[i - 1]->name), " and ",
                                            io::QuoteForMessage(sorted[i]->name), " share bytes of the file"));
  }
  return absl::OkStatus();
}

absl::Status NotGguf(const io::RandomAccessFile& file) {
  std::string begin(static_cast<size_t>(std::min<int64_t>(file.size(), io::kGuessBytes)), '\0');
  std::string guess;
  if (file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(begin.data()), begin.size())).ok()) {
    guess = io::GuessContent(begin);
  }
  return absl::DataLossError(
      absl::StrCat("it does not begin with \"GGUF\"", guess.empty() ? "; copy or download it again" : guess));
}

// An integer of a type of that size; a bool, too.
int64_t IntegerAt(ValueType type, const uint8_t* bytes) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, bytes, sizeof(T));
    return static_cast<int64_t>(value);
  };
  switch (type) {
    case ValueType::kI8: return load(int8_t{});
    case ValueType::kU16: return load(uint16_t{});
    case ValueType::kI16: return load(int16_t{});
    case ValueType::kU32: return load(uint32_t{});
    case ValueType::kI32: return load(int32_t{});
    case ValueType::kU64:
    case ValueType::kI64: return load(int64_t{});
    default: return load(uint8_t{});
  }
}

bool IsInteger(ValueType type) {
  return SizeOf(static_cast<uint32_t>(type)) > 0 && type != ValueType::kF32 && type != ValueType::kF64;
}

}  // namespace

int64_t GgufTensor::rows() const { return cols() == 0 ? 0 : shape.num_elements() / cols(); }

int64_t RowBytes(ggml::Type type, int64_t n) {
  const ggml::TypeInfo& info = ggml::InfoOf(type);
  return n / info.block_values * info.block_bytes;
}

absl::StatusOr<int64_t> TensorBytes(ggml::Type type, const Shape& shape) {
  const ggml::TypeInfo& info = ggml::InfoOf(type);
  const int64_t cols = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  if (cols % info.block_values != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the shape is ", shape.ToString(), ", and rows of ", info.name,
                                                   " are multiples of ", info.block_values, " values"));
  }
  // No overflow if a value takes 16 bytes.
  AQT_ASSIGN_OR_RETURN(const int64_t elements, CheckedNumElements(shape.extents(), 16));
  return RowBytes(type, elements);
}

bool IsGguf(const io::RandomAccessFile& file) {
  uint8_t begin[4];
  if (file.size() < static_cast<int64_t>(sizeof(begin)) || !file.Read(0, absl::MakeSpan(begin)).ok()) return false;
  return begin[0] == 'G' && begin[1] == 'G' && begin[2] == 'U' && begin[3] == 'F';
}

absl::StatusOr<GgufFile> GgufFile::Open(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<io::RandomAccessFile> file, fs.OpenForReading(path));
  return Open(std::move(file));
}

absl::StatusOr<GgufFile> GgufFile::Open(std::unique_ptr<io::RandomAccessFile> file) {
  GgufFile result;
  result.file_ = std::move(file);
  const absl::Status status = result.ReadHeader();
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("cannot read GGUF file '", io::PrintableLine(result.path()), "'"));
  }
  return result;
}

absl::Status GgufFile::ReadHeader() {
  HeaderReader reader(*file_);
  uint32_t magic = 0;
  if (file_->size() < 4 || !reader.Read("the header", magic).ok() || magic != kMagic) return NotGguf(*file_);
  uint64_t num_tensors = 0, num_metadata = 0;
  AQT_RETURN_IF_ERROR(reader.Read("the header", version_));
  if (version_ != 2 && version_ != 3) {
    const bool swapped = (version_ & 0xffff) == 0 && version_ != 0;
    return absl::UnimplementedError(
        absl::StrCat(swapped ? std::string("it is big-endian") : absl::StrCat("it has the version ", version_),
                     "; the little-endian versions 2 and 3 are read: make the file again with a current tool"));
  }
  AQT_RETURN_IF_ERROR(reader.Read("the header", num_tensors));
  AQT_RETURN_IF_ERROR(reader.Read("the header", num_metadata));
  AQT_RETURN_IF_ERROR(CheckCount("tensors", num_tensors, kMaxTensors, kMinTensorBytes, reader.remaining()));
  AQT_RETURN_IF_ERROR(
      CheckCount("values of metadata", num_metadata, kMaxMetadata, kMinMetadataBytes, reader.remaining()));
  AQT_RETURN_IF_ERROR(ReadMetadata(reader, num_metadata, metadata_));
  if (const MetadataEntry* entry = Find(kAlignmentKey); entry != nullptr) {
    AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> alignment, Integer(kAlignmentKey));
    if (entry->type != ValueType::kU32 || *alignment <= 0 || (*alignment & (*alignment - 1)) != 0) {
      return absl::DataLossError(absl::StrCat(kAlignmentKey, " is not a power of two in 32 bits"));
    }
    alignment_ = *alignment;
  }
  for (uint64_t i = 0; i < num_tensors; ++i) {
    GgufTensor tensor;
    AQT_RETURN_IF_ERROR(ReadTensor(reader, i, tensor));
    tensors_.push_back(std::move(tensor));
  }
  const int64_t data_begin = (reader.position() + alignment_ - 1) / alignment_ * alignment_;
  return PlaceTensors(data_begin, alignment_, file_->size(), tensors_);
}

const MetadataEntry* GgufFile::Find(absl::string_view key) const {
  const auto it = std::find_if(metadata_.begin(), metadata_.end(), [&](const auto& entry) { return entry.key == key; });
  return it == metadata_.end() ? nullptr : &*it;
}

absl::StatusOr<std::optional<std::string>> GgufFile::String(absl::string_view key) const {
  const MetadataEntry* const entry = Find(key);
  if (entry == nullptr || entry->type != ValueType::kString) return std::nullopt;
  const int64_t bytes = entry->end - entry->begin - 8;
  if (bytes > kMaxStringBytes) {
    return absl::DataLossError(absl::StrCat("'", io::PrintableLine(path()), "': the value of ", key, " has ", bytes,
                                            " bytes, more than the limit of ", kMaxStringBytes));
  }
  std::string value(static_cast<size_t>(bytes), '\0');
  AQT_RETURN_IF_ERROR(
      file_->Read(entry->begin + 8, absl::MakeSpan(reinterpret_cast<uint8_t*>(value.data()), value.size())));
  return value;
}

absl::StatusOr<std::optional<int64_t>> GgufFile::Integer(absl::string_view key) const {
  const MetadataEntry* const entry = Find(key);
  if (entry == nullptr || !IsInteger(entry->type)) return std::nullopt;
  uint8_t bytes[8] = {};
  AQT_RETURN_IF_ERROR(file_->Read(entry->begin, absl::MakeSpan(bytes, static_cast<size_t>(entry->end - entry->begin))));
  return IntegerAt(entry->type, bytes);
}

absl::StatusOr<std::optional<double>> GgufFile::Number(absl::string_view key) const {
  const MetadataEntry* const entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type == ValueType::kF32) {
    float value = 0;
    AQT_RETURN_IF_ERROR(file_->Read(entry->begin, absl::MakeSpan(reinterpret_cast<uint8_t*>(&value), sizeof(value))));
    return static_cast<double>(value);
  }
  if (entry->type == ValueType::kF64) {
    double value = 0;
    AQT_RETURN_IF_ERROR(file_->Read(entry->begin, absl::MakeSpan(reinterpret_cast<uint8_t*>(&value), sizeof(value))));
    return value;
  }
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> value, Integer(key));
  if (!value.has_value()) return std::nullopt;
  return static_cast<double>(*value);
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(absl::string_view key) const {
  const MetadataEntry* const entry = Find(key);
  if (entry == nullptr || entry->type != ValueType::kBool) return std::nullopt;
  AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> value, Integer(key));
  return *value != 0;
}

absl::StatusOr<std::optional<std::vector<int64_t>>> GgufFile::Integers(absl::string_view key, int64_t max_count) const {
  const MetadataEntry* const entry = Find(key);
  if (entry == nullptr || entry->type != ValueType::kArray || !IsInteger(entry->element) ||
      entry->count > static_cast<uint64_t>(max_count)) {
    return std::nullopt;
  }
  const int64_t size = SizeOf(static_cast<uint32_t>(entry->element)), begin = entry->begin + 4 + 8;
  std::vector<uint8_t> bytes(static_cast<size_t>(entry->end - begin));
  AQT_RETURN_IF_ERROR(file_->Read(begin, absl::MakeSpan(bytes)));
  std::vector<int64_t> values;
  for (size_t i = 0; i < entry->count; ++i) values.push_back(IntegerAt(entry->element, bytes.data() + i * size));
  return values;
}

bool LooksLikeGguf(const io::FileSystem& fs, absl::string_view path) {
  const auto file = fs.OpenForReading(path);
  uint8_t begin[4] = {};
  return file.ok() && (*file)->size() >= 4 && (*file)->Read(0, absl::MakeSpan(begin)).ok() &&
         std::memcmp(begin, "GGUF", 4) == 0;
}

}  // namespace aqt::gguf
