#include "aqt/gguf/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"

namespace aqt::gguf {
namespace {

constexpr int64_t kBufferBytes = 1 << 16;

template <class T>
std::string Bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string StringBytes(absl::string_view text) { return absl::StrCat(Bytes<uint64_t>(text.size()), text); }

// The entry of a tensor in the header; `data_begin` is where offsets begin.
std::string TensorBytesOf(const GgufTensor& tensor, int64_t data_begin) {
  std::string bytes = StringBytes(tensor.name);
  bytes += Bytes(static_cast<uint32_t>(tensor.shape.rank()));
  for (int64_t axis = tensor.shape.rank(); axis-- > 0;) bytes += Bytes(static_cast<uint64_t>(tensor.shape[axis]));
  bytes += Bytes(static_cast<uint32_t>(tensor.type));
  bytes += Bytes(static_cast<uint64_t>(tensor.begin - data_begin));
  return bytes;
}

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Appends to a file through a buffer.
class Appender {
 public:
  explicit Appender(io::OutputFile& file) : file_(file) {}

  absl::Status Append(absl::string_view bytes) {
    absl::StrAppend(&buffer_, bytes);
    return static_cast<int64_t>(buffer_.size()) < kBufferBytes ? absl::OkStatus() : Flush();
  }
  absl::Status AppendRange(const io::RandomAccessFile& from, int64_t begin, int64_t end) {
    std::string piece;
    for (int64_t at = begin; at < end; at += static_cast<int64_t>(piece.size())) {
      piece.resize(static_cast<size_t>(std::min(kBufferBytes, end - at)));
      AQT_RETURN_IF_ERROR(from.Read(at, absl::MakeSpan(reinterpret_cast<uint8_t*>(piece.data()), piece.size())));
      AQT_RETURN_IF_ERROR(Append(piece));
    }
    return absl::OkStatus();
  }
  absl::Status Flush() {
    AQT_RETURN_IF_ERROR(
        file_.Write(position_, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(buffer_.data()), buffer_.size())));
    position_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
    return absl::OkStatus();
  }

 private:
  io::OutputFile& file_;
  int64_t position_ = 0;
  std::string buffer_;
};

// The bytes of the value in the file.
int64_t ValueBytes(const MetadataItem& item) {
  if (item.from == nullptr) return static_cast<int64_t>(item.bytes.size());
  const MetadataEntry& entry = *item.from->Find(item.key);
  return entry.end - entry.begin;
}

absl::Status CheckNames(absl::string_view what, const std::vector<const std::string*>& names) {
  for (const std::string* name : names) {
    if (static_cast<int64_t>(name->size()) > kMaxNameBytes || !io::JsonQuote(*name).ok()) {
      return absl::InvalidArgumentError(absl::StrCat("the ", what, " ", io::QuoteForMessage(*name), " has more than ",
                                                     kMaxNameBytes, " bytes, or is not UTF-8"));
    }
  }
  const std::string* const twice = io::FindDuplicate(names);
  if (twice == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the ", what, " ", io::QuoteForMessage(*twice), " is used twice"));
}

absl::Status CheckMetadata(const std::vector<MetadataItem>& metadata, const GgufWriterOptions& options) {
  if (options.version != 2 && options.version != 3) {
    return absl::InvalidArgumentError(absl::StrCat("version ", options.version, " is not written; 2 and 3 are"));
  }
  std::vector<const std::string*> keys;
  int64_t alignment = kDefaultAlignment;
  for (const MetadataItem& item : metadata) {
    keys.push_back(&item.key);
    if (item.key != kAlignmentKey) continue;
    uint32_t value = 0;
    if (item.from != nullptr) value = static_cast<uint32_t>(item.from->alignment());
    else std::memcpy(&value, item.bytes.data(), std::min(sizeof(value), item.bytes.size()));
    alignment = value;
  }
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0 || options.alignment != alignment) {
    return absl::InvalidArgumentError(absl::StrCat("the alignment is ", options.alignment, ", and the metadata says ",
                                                   alignment, "; expected the same power of two"));
  }
  return CheckNames("key", keys);
}

}  // namespace

MetadataItem U32Item(std::string key, uint32_t value) { return {std::move(key), ValueType::kU32, Bytes(value)}; }
MetadataItem F32Item(std::string key, float value) { return {std::move(key), ValueType::kF32, Bytes(value)}; }
MetadataItem StringItem(std::string key, absl::string_view value) {
  return {std::move(key), ValueType::kString, StringBytes(value)};
}
MetadataItem CopiedItem(const GgufFile& from, const MetadataEntry& entry) { return {entry.key, entry.type, "", &from}; }

absl::StatusOr<std::unique_ptr<GgufWriter>> GgufWriter::Create(const io::FileSystem& fs, absl::string_view path,
                                                               const std::vector<MetadataItem>& metadata,
                                                               const std::vector<GgufTensorSpec>& tensors,
                                                               const GgufWriterOptions& options) {
  const std::string what = absl::StrCat("'", io::PrintableLine(path), "' cannot be written");
  AQT_RETURN_IF_ERROR(Annotate(CheckMetadata(metadata, options), what));
  std::vector<const std::string*> names;
  std::vector<GgufTensor> placed;
  int64_t header = 4 + 4 + 8 + 8, data = 0;
  for (const MetadataItem& item : metadata) header += 8 + static_cast<int64_t>(item.key.size()) + 4 + ValueBytes(item);
  for (const GgufTensorSpec& spec : tensors) {
    names.push_back(&spec.name);
    GgufTensor tensor = {spec.name, spec.type, spec.shape, data, data};
    absl::StatusOr<int64_t> bytes = TensorBytes(spec.type, spec.shape);
    if (bytes.ok() && spec.shape.rank() > kMaxRank) {
      bytes = absl::InvalidArgumentError(absl::StrCat("the rank exceeds ", kMaxRank));
    }
    if (bytes.ok() && *bytes > INT64_MAX / 2 - data) bytes = absl::InvalidArgumentError("the file exceeds 2^62 bytes");
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": tensor ", io::QuoteForMessage(spec.name), ": ", bytes.status().message()));
    }
    tensor.end += *bytes;
    data = RoundUp(tensor.end, options.alignment);
    header += static_cast<int64_t>(TensorBytesOf(tensor, 0).size());
    placed.push_back(std::move(tensor));
  }
  AQT_RETURN_IF_ERROR(Annotate(CheckNames("tensor name", names), what));
  const int64_t data_begin = RoundUp(header, options.alignment);
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<io::OutputFile> file, fs.CreateOutput(path, options.output));
  // The last tensor is padded, too. The gaps read as zeros.
  AQT_RETURN_IF_ERROR(file->Reserve(data_begin + data));
  auto writer = absl::WrapUnique(new GgufWriter(std::move(file)));
  for (GgufTensor& tensor : placed) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  writer->tensors_ = std::move(placed);
  writer->written_.resize(writer->tensors_.size());
  AQT_RETURN_IF_ERROR(writer->WriteHeader(metadata, options));
  // Where Reserve does nothing, this gives the file its size.
  if (data > 0) {
    const uint8_t zero = 0;
    AQT_RETURN_IF_ERROR(writer->file_->Write(data_begin + data - 1, absl::MakeConstSpan(&zero, 1)));
  }
  return writer;
}

absl::Status GgufWriter::WriteHeader(const std::vector<MetadataItem>& metadata, const GgufWriterOptions& options) {
  Appender out(*file_);
  AQT_RETURN_IF_ERROR(out.Append(absl::StrCat("GGUF", Bytes(options.version), Bytes<uint64_t>(tensors_.size()),
                                              Bytes<uint64_t>(metadata.size()))));
  for (const MetadataItem& item : metadata) {
    AQT_RETURN_IF_ERROR(out.Append(absl::StrCat(StringBytes(item.key), Bytes(static_cast<uint32_t>(item.type)))));
    if (item.from == nullptr) {
      AQT_RETURN_IF_ERROR(out.Append(item.bytes));
      continue;
    }
    const MetadataEntry& entry = *item.from->Find(item.key);
    AQT_RETURN_IF_ERROR(out.AppendRange(item.from->file(), entry.begin, entry.end));
  }
  const int64_t data_begin = tensors_.empty() ? 0 : tensors_[0].begin;
  for (const GgufTensor& tensor : tensors_) AQT_RETURN_IF_ERROR(out.Append(TensorBytesOf(tensor, data_begin)));
  return out.Flush();
}

absl::Status GgufWriter::Write(size_t tensor, int64_t offset, absl::Span<const uint8_t> data) {
  const GgufTensor& to = tensors_[tensor];
  const int64_t bytes = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > to.num_bytes() || bytes > to.num_bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat("'", path(), "', tensor ", io::QuoteForMessage(to.name), ": ", bytes,
                                              " bytes at ", offset, " are not inside its ", to.num_bytes(), " bytes"));
  }
  const absl::Status status = file_->Write(to.begin + offset, data);
  const std::lock_guard<std::mutex> lock(mutex_);
  status_.Update(status);
  written_[tensor] += bytes;
  return status;
}

absl::Status GgufWriter::Finish() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    AQT_RETURN_IF_ERROR(status_);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (written_[i] == tensors_[i].num_bytes()) continue;
      return absl::FailedPreconditionError(absl::StrCat("'", path(), "' is not complete: of tensor ",
                                                        io::QuoteForMessage(tensors_[i].name), " ", written_[i],
                                                        " bytes were written; expected ", tensors_[i].num_bytes()));
    }
  }
  return file_->Commit();
}

}  // namespace aqt::gguf
