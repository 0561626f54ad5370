// Input: a complete GGUF file. Every value and tensor of an accepted file can be read, in both views, or gives an error
// that says why.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/gguf_source.h"
#include "aqt/gguf/gguf_testing.h"
#include "aqt/io/file.h"

namespace {

namespace gguf = aqt::gguf;

// A file system of one file in memory.
class OneFile final : public aqt::io::FileSystem {
 public:
  explicit OneFile(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<std::unique_ptr<aqt::io::RandomAccessFile>> OpenForReading(absl::string_view) const override {
    return std::make_unique<gguf::MemoryFile>(bytes_);
  }
  absl::StatusOr<aqt::io::FileInfo> Stat(absl::string_view) const override {
    aqt::io::FileInfo info;
    info.size = static_cast<int64_t>(bytes_.size());
    return info;
  }
  absl::StatusOr<aqt::io::FileInfo> LStat(absl::string_view path) const override { return Stat(path); }

  // Not used.
  absl::StatusOr<std::unique_ptr<aqt::io::OutputFile>> CreateOutput(absl::string_view,
                                                                    const aqt::io::OutputOptions&) const override {
    return No();
  }
  absl::StatusOr<std::string> RealPath(absl::string_view) const override { return No(); }
  absl::StatusOr<bool> IsMountPoint(absl::string_view) const override { return No(); }
  absl::StatusOr<std::optional<int64_t>> FreeBytes(absl::string_view) const override { return No(); }
  absl::StatusOr<std::vector<std::string>> List(absl::string_view) const override { return No(); }
  absl::Status CreateFolder(absl::string_view) const override { return No(); }
  absl::Status Remove(absl::string_view) const override { return No(); }
  absl::Status Rename(absl::string_view, absl::string_view) const override { return No(); }
  absl::Status Exchange(absl::string_view, absl::string_view) const override { return No(); }
  absl::Status SyncFolder(absl::string_view) const override { return No(); }
  absl::StatusOr<std::unique_ptr<aqt::io::FileLock>> Lock(absl::string_view) const override { return No(); }

 private:
  static absl::Status No() { return absl::UnimplementedError("one file"); }
  std::string bytes_;
};

void CheckSource(const OneFile& fs, gguf::Names names) {
  const auto source = gguf::GgufSource::Open(fs, "memory.gguf", {.names = names});
  if (!source.ok()) {
    AQT_CHECK(!source.status().message().empty());
    return;
  }
  AQT_CHECK((*source)->config().empty() == (names == gguf::Names::kFile));
  for (const aqt::io::TensorInfo& tensor : (*source)->tensors()) {
    // Views of experts may repeat a small tensor often, and ternary blocks are 19 times as long when decoded.
    std::vector<uint8_t> bytes(static_cast<size_t>(std::min<int64_t>(tensor.num_bytes(), 1 << 16)));
    const absl::Status status =
        (*source)->Read(tensor, tensor.num_bytes() - static_cast<int64_t>(bytes.size()), absl::MakeSpan(bytes));
    AQT_CHECK(status.ok() || absl::IsDataLoss(status));
  }
}

void CheckFile(const std::string& bytes) {
  const auto file = gguf::GgufFile::Open(std::make_unique<gguf::MemoryFile>(bytes));
  if (!file.ok()) {
    AQT_CHECK(absl::IsDataLoss(file.status()) || absl::IsUnimplemented(file.status()));
    return;
  }
  const int64_t size = static_cast<int64_t>(bytes.size());
  for (const gguf::MetadataEntry& entry : file->metadata()) {
    AQT_CHECK(0 < entry.begin && entry.begin <= entry.end && entry.end <= size);
    AQT_CHECK(file->String(entry.key).ok() && file->Integer(entry.key).ok() && file->Number(entry.key).ok());
    AQT_CHECK(file->Bool(entry.key).ok() && file->Integers(entry.key, 1000).ok());
  }
  int64_t total = 0;
  for (const gguf::GgufTensor& tensor : file->tensors()) {
    AQT_CHECK(tensor.begin <= tensor.end && (tensor.num_bytes() == 0 || tensor.end <= size));
    AQT_CHECK(gguf::TensorBytes(tensor.type, tensor.shape).value() == tensor.num_bytes());
    AQT_CHECK(tensor.rows() >= 0);
    total += tensor.num_bytes();
  }
  AQT_CHECK(total <= size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  CheckFile(bytes);
  const OneFile fs(bytes);
  CheckSource(fs, gguf::Names::kFile);
  CheckSource(fs, gguf::Names::kModel);
  return 0;
}
