#include "aqt/io/containers/container_source.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/part_file.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

// Bytes in memory as a file.
class MemoryFile final : public RandomAccessFile {
 public:
  MemoryFile(std::string path, FileInfo info, std::vector<uint8_t> bytes)
      : path_(std::move(path)), info_(info), bytes_(std::move(bytes)) {}
  const std::string& path() const override { return path_; }
  const FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    std::memcpy(dst.data(), bytes_.data() + offset, dst.size());
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const FileInfo info_;
  const std::vector<uint8_t> bytes_;
};

// Sign-extends or masks the low bits.
void KeepLowBits(int bits, bool is_signed, absl::Span<uint8_t> bytes) {
  const uint8_t mask = static_cast<uint8_t>((1 << bits) - 1);
  const uint8_t sign = is_signed ? static_cast<uint8_t>(1 << (bits - 1)) : 0;
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(((byte & mask) ^ sign) - sign);
}

// The number of elements from the first to the last one, both included; DataLoss if it exceeds 2^62. The tensor has
// elements.
absl::StatusOr<int64_t> ElementSpan(const Shape& shape, const std::vector<int64_t>& strides) {
  int64_t span = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t stride = strides[static_cast<size_t>(axis)];
    int64_t reach = 0;
    if (stride < 0 || __builtin_mul_overflow(shape[axis] - 1, stride, &reach) ||
        __builtin_add_overflow(span, reach, &span) || span > int64_t{1} << 62) {
      return absl::DataLossError(absl::StrCat("stride ", stride, " is not valid for shape ", shape.ToString()));
    }
  }
  return span;
}

}  // namespace

absl::StatusOr<ContainerSource::Entry> ContainerSource::MakeEntry(const StoredTensor& tensor, int64_t bytes) {
  Entry entry;
  entry.data = tensor.data;
  entry.begin = tensor.begin;
  entry.sequential = tensor.sequential;
  entry.low_bits = tensor.low_bits;
  entry.is_signed = tensor.is_signed;
  if (bytes == 0) return entry;
  const int64_t size = BitWidth(tensor.spec.dtype) / 8;
  int64_t needed = bytes;
  if (!tensor.strides.empty()) {
    AQT_ASSIGN_OR_RETURN(const int64_t span, ElementSpan(tensor.spec.shape, tensor.strides));
    if (__builtin_mul_overflow(span, size, &needed)) return absl::DataLossError("its strides exceed 2^63-1 bytes");
    entry.view = Simplify(tensor.spec.shape, tensor.strides, size);
    entry.row_major = IsRowMajor(entry.view);
  }
  const int64_t available = tensor.data->size();
  if (tensor.begin < 0 || tensor.begin > available || needed > available - tensor.begin) {
    return absl::DataLossError(absl::StrCat("needs bytes ", tensor.begin, " to ", tensor.begin, "+", needed,
                                            " of its data, which has ", available));
  }
  if (entry.row_major) return entry;
  if (bytes > std::max(needed, kMaxRepeatedBytes)) {
    return absl::UnimplementedError(
        absl::StrCat("repeats ", needed, " bytes to ", bytes, "; at most ", kMaxRepeatedBytes, " are read"));
  }
  if (entry.sequential && available > kMaxDecodedBytes) {
    return absl::UnimplementedError(absl::StrCat("is both compressed and not in row-major order, with ", available,
                                                 " bytes; up to ", kMaxDecodedBytes,
                                                 " are read: save it uncompressed, or in C order"));
  }
  return entry;
}

absl::StatusOr<std::unique_ptr<ContainerSource>> ContainerSource::Make(const RandomAccessFile& file,
                                                                       std::vector<StoredTensor> tensors,
                                                                       Metadata metadata,
                                                                       std::vector<std::string> warnings,
                                                                       const ContainerMemory& memory) {
  auto source = absl::WrapUnique(new ContainerSource(memory));
  std::vector<TensorInfo> infos;
  std::set<std::string> names;
  int64_t begin = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto fail = [&](const absl::Status& status) {
      return Annotate(status, absl::StrCat("tensor ", QuoteForMessage(tensor.spec.name)));
    };
    if (!names.insert(tensor.spec.name).second) return fail(absl::DataLossError("is there twice"));
    const absl::StatusOr<int64_t> bytes = TensorBytes(tensor.spec.dtype, tensor.spec.shape);
    if (!bytes.ok()) return fail(absl::DataLossError(bytes.status().message()));
    absl::StatusOr<Entry> entry = MakeEntry(tensor, *bytes);
    if (!entry.ok()) return fail(entry.status());
    if (!entry->row_major) entry->owner = memory.blocks->NewOwner();
    TensorInfo info;
    static_cast<TensorSpec&>(info) = tensor.spec;
    info.value_bits = tensor.low_bits;
    info.begin = begin;
    if (__builtin_add_overflow(begin, *bytes, &info.end)) return fail(absl::DataLossError("exceeds 2^63-1 bytes"));
    begin = info.end;
    infos.push_back(std::move(info));
    source->entries_.push_back(*std::move(entry));
    source->begins_.push_back(infos.back().begin);
  }
  std::vector<Shard> shards;
  shards.push_back({std::string(BaseName(file.path())), file.path(), std::move(metadata)});
  source->SetContents(file.path(), std::move(shards), std::move(infos), std::move(warnings));
  return source;
}

absl::Status ContainerSource::ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const {
  // The last one that begins there: those before it are empty.
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), tensor.begin);
  const Entry& entry = entries_[static_cast<size_t>(after - begins_.begin()) - 1];
  const absl::Status status = ReadEntry(entry, tensor.num_bytes(), offset, dst);
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("'", path(), "', tensor ", QuoteForMessage(tensor.name)));
  }
  if (entry.low_bits > 0) KeepLowBits(entry.low_bits, entry.is_signed, dst);
  return absl::OkStatus();
}

absl::Status ContainerSource::ReadEntry(const Entry& entry, int64_t bytes, int64_t offset,
                                        absl::Span<uint8_t> dst) const {
  if (entry.row_major) return entry.data->Read(entry.begin + offset, dst);
  std::shared_ptr<const RandomAccessFile> data = entry.data;
  if (entry.sequential) {
    AQT_ASSIGN_OR_RETURN(data, Decoded(entry));
  }
  const PartFile part(data, {{entry.begin, data->size() - entry.begin}});
  const int64_t size = entry.view.element_bytes;
  return memory_.blocks->Read(entry.owner, bytes, offset, dst, [&](int64_t begin, absl::Span<uint8_t> block) {
    return ReadStrided(part, entry.view, begin / size, static_cast<int64_t>(block.size()) / size, block.data());
  });
}

absl::StatusOr<std::shared_ptr<const RandomAccessFile>> ContainerSource::Decoded(const Entry& entry) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (decoded_entry_ != &entry) {
    decoded_ = nullptr;
    decoded_entry_ = nullptr;
    std::vector<uint8_t> bytes(static_cast<size_t>(entry.data->size()));
    AQT_RETURN_IF_ERROR(entry.data->Read(0, absl::MakeSpan(bytes)));
    decoded_ = std::make_shared<MemoryFile>(entry.data->path(), entry.data->info(), std::move(bytes));
    decoded_entry_ = &entry;
  }
  return decoded_;
}

}  // namespace aqt::io
