#include "aqt/io/tensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/foreign_file.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's byte order is taken to be the machine's");

// What a file that is not safetensors may be, and the remedy.
std::string Remedy(const RandomAccessFile& file) {
  std::string begin(std::min<int64_t>(file.size(), kGuessBytes), '\0');
  if (file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(begin.data()), begin.size())).ok()) {
    if (std::string guess = GuessContent(begin); !guess.empty()) return guess;
    if (!begin.empty() && begin.front() == '{')
      return "; it looks like JSON: for an index or a config.json, give its folder";
  }
  if (const absl::string_view format = WeightFormatOfName(file.path()); !format.empty()) {
    return absl::StrCat("; judging by its name, it is ", format, ": ", RemedyForFormat(format));
  }
  return "; copy or download the file again, or rewrite it";
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const RandomAccessFile& file, int64_t* data_begin) {
  constexpr int64_t kLengthBytes = 8;
  if (file.size() < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("the file has ", file.size(), " bytes, fewer than the 8 of the header length"));
  }
  char length_bytes[kLengthBytes];
  AQT_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(length_bytes), kLengthBytes)));
  uint64_t length = 0;
  std::memcpy(&length, length_bytes, kLengthBytes);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return absl::DataLossError(
        absl::StrCat("the header length ", length, " exceeds the limit of ", kMaxSafetensorsHeader));
  }
  const int64_t data_bytes = file.size() - kLengthBytes - static_cast<int64_t>(length);
  if (data_bytes < 0) {
    return absl::DataLossError(absl::StrCat("the header length ", length, " exceeds the file, which has ", file.size(),
                                            " bytes; it is truncated"));
  }
  std::string json(length, '\0');
  AQT_RETURN_IF_ERROR(file.Read(kLengthBytes, absl::MakeSpan(reinterpret_cast<uint8_t*>(json.data()), json.size())));
  *data_begin = file.size() - data_bytes;
  return ParseSafetensorsHeader(json, data_bytes);
}

}  // namespace

// ---- reading

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs.OpenForReading(path));
  return Open(std::move(file));
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(std::unique_ptr<RandomAccessFile> file) {
  SafetensorsReader reader;
  reader.file_ = std::move(file);
  const std::string& path = reader.file_->path();
  absl::StatusOr<SafetensorsHeader> header = ReadHeader(*reader.file_, &reader.data_begin_);
  if (!header.ok()) {
    absl::Status status = Annotate(header.status(), absl::StrCat("cannot read safetensors file '", path, "'"));
    if (!absl::IsDataLoss(status)) return status;
    return absl::DataLossError(absl::StrCat(status.message(), Remedy(*reader.file_)));
  }
  std::vector<Shard> shards;
  shards.push_back({std::string(BaseName(path)), path, std::move(header->metadata)});
  reader.SetContents(reader.file_->path(), std::move(shards), std::move(header->tensors));
  return reader;
}

absl::Status SafetensorsReader::ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  return file_->Read(data_begin_ + tensor.begin + offset, dst);
}

// ---- writing

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<OutputFile> file, SafetensorsLayout layout)
    : file_(std::move(file)), layout_(std::move(layout)), by_name_(SortByName(layout_.tensors)) {}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const FileSystem& fs,
                                                                             absl::string_view path,
                                                                             std::vector<TensorSpec> tensors,
                                                                             const SafetensorsWriterOptions& options) {
  AQT_ASSIGN_OR_RETURN(SafetensorsLayout layout, LayOutSafetensors(std::move(tensors), options));
  AQT_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, fs.CreateOutput(path, options.output));
  const uint64_t length = layout.json.size();
  std::string header(reinterpret_cast<const char*>(&length), sizeof(length));
  header += std::exchange(layout.json, {});
  AQT_RETURN_IF_ERROR(file->Reserve(static_cast<int64_t>(header.size()) + layout.data_bytes));
  AQT_RETURN_IF_ERROR(
      file->Write(0, absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(header.data()), header.size())));
  auto writer = absl::WrapUnique(new SafetensorsWriter(std::move(file), std::move(layout)));
  writer->data_begin_ = static_cast<int64_t>(header.size());
  return writer;
}

const TensorInfo* SafetensorsWriter::Find(absl::string_view name) const {
  return FindByName(layout_.tensors, by_name_, name);
}

absl::Status SafetensorsWriter::Write(absl::string_view name, int64_t offset, absl::Span<const uint8_t> data) {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("'", path(), "': tensor ", QuoteForMessage(name), " was not announced"));
  }
  const int64_t bytes = static_cast<int64_t>(data.size());
  if (offset < 0 || offset > tensor->num_bytes() || bytes > tensor->num_bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(name), ": ", bytes,
                                              " bytes at ", offset, " are not inside its ", tensor->num_bytes(),
                                              " bytes"));
  }
  if (bytes == 0) return absl::OkStatus();
  const int64_t begin = tensor->begin + offset;
  AQT_RETURN_IF_ERROR(MarkWritten(*tensor, begin, begin + bytes));
  const absl::Status status = file_->Write(data_begin_ + begin, data);
  if (!status.ok()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  }
  return status;
}

absl::Status SafetensorsWriter::MarkWritten(const TensorInfo& tensor, int64_t begin, int64_t end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = written_.lower_bound(begin);
  const auto previous = next == written_.begin() ? written_.end() : std::prev(next);
  if ((next != written_.end() && next->first < end) || (previous != written_.end() && previous->second > begin)) {
    return absl::FailedPreconditionError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(tensor.name),
                                                      ": bytes ", begin - tensor.begin, " to ", end - tensor.begin,
                                                      " are already written, at least in part"));
  }
  if (next != written_.end() && next->first == end) {
    end = next->second;
    written_.erase(next);
  }
  if (previous != written_.end() && previous->second == begin) {
    previous->second = end;
  } else {
    written_.emplace(begin, end);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::WriteArray(absl::string_view name, const Array& array) {
  const TensorInfo* tensor = Find(name);
  if (tensor != nullptr && (ToDType(tensor->dtype) != array.dtype() || tensor->shape != array.shape())) {
    return absl::InvalidArgumentError(absl::StrCat("'", path(), "', tensor ", QuoteForMessage(name), ": announced as ",
                                                   ToString(tensor->dtype), tensor->shape.ToString(), ", given as ",
                                                   array.aval().ToString()));
  }
  return Write(name, 0, absl::MakeConstSpan(static_cast<const uint8_t*>(array.data()), array.num_bytes()));
}

absl::Status SafetensorsWriter::Finish() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    AQT_RETURN_IF_ERROR(status_);
    const bool starts = !written_.empty() && written_.begin()->first == 0;
    const int64_t covered = starts ? written_.begin()->second : 0;
    if (covered < layout_.data_bytes) {
      const auto missing = std::find_if(layout_.tensors.begin(), layout_.tensors.end(),
                                        [&](const TensorInfo& t) { return t.end > covered; });
      return absl::FailedPreconditionError(absl::StrCat("'", path(), "' is not complete: tensor ",
                                                        QuoteForMessage(missing->name), " lacks its data from byte ",
                                                        covered - missing->begin, " on"));
    }
  }
  return file_->Commit();
}

}  // namespace aqt::io
