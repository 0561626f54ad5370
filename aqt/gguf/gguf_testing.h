#ifndef AQT_GGUF_GGUF_TESTING_H_
#define AQT_GGUF_GGUF_TESTING_H_

// Small GGUF files for tests.

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/gguf_writer.h"
#include "aqt/io/file.h"
#include "gtest/gtest.h"

namespace aqt::gguf {

template <class T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string RawString(absl::string_view text) { return absl::StrCat(Raw<uint64_t>(text.size()), text); }

// The parts of a header, as bytes.
inline std::string RawHeader(uint64_t tensors, uint64_t metadata, uint32_t version = 3) {
  return absl::StrCat("GGUF", Raw(version), Raw(tensors), Raw(metadata));
}
inline std::string RawValue(absl::string_view key, ValueType type, absl::string_view value) {
  return absl::StrCat(RawString(key), Raw(static_cast<uint32_t>(type)), value);
}
// `extents` as in the file: the innermost first.
inline std::string RawTensor(absl::string_view name, const std::vector<uint64_t>& extents, uint32_t type,
                             uint64_t offset) {
  std::string bytes = absl::StrCat(RawString(name), Raw(static_cast<uint32_t>(extents.size())));
  for (const uint64_t extent : extents) bytes += Raw(extent);
  return bytes + Raw(type) + Raw(offset);
}
// Pads the header to the alignment, and appends the data.
inline std::string WithData(std::string header, int64_t data_bytes, size_t alignment = 32) {
  while (header.size() % alignment != 0) header += '\0';
  return header + std::string(static_cast<size_t>(data_bytes), '\0');
}

// A file in memory.
class MemoryFile final : public io::RandomAccessFile {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {
    info_.size = static_cast<int64_t>(bytes_.size());
  }
  const std::string& path() const override { return path_; }
  const io::FileInfo& info() const override { return info_; }
  absl::Status Read(int64_t offset, absl::Span<uint8_t> dst) const override {
    const int64_t n = static_cast<int64_t>(dst.size());
    if (offset < 0 || offset > size() || n > size() - offset) return absl::OutOfRangeError("read beyond the end");
    if (n > 0) std::memcpy(dst.data(), bytes_.data() + offset, dst.size());
    return absl::OkStatus();
  }

 private:
  const std::string path_ = "memory.gguf";
  std::string bytes_;
  io::FileInfo info_;
};

// A tensor with its bytes.
struct TestTensor {
  GgufTensorSpec spec;
  std::string bytes;
};
inline TestTensor F32Tensor(std::string name, Shape shape, const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {{std::move(name), ggml::Type::kF32, std::move(shape)}, std::move(bytes)};
}
// The values first, first + 1, ...
inline TestTensor CountingTensor(std::string name, Shape shape, float first = 0) {
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return F32Tensor(std::move(name), std::move(shape), values);
}

// Each test has its own folder.
class GgufTest : public ::testing::Test {
 protected:
  GgufTest() {
    folder_ = io::JoinPath(
        ::testing::TempDir(),
        absl::StrCat("gguf_", ::getpid(), "_", ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    EXPECT_TRUE(io::LocalFileSystem().CreateFolder(folder_).ok());
  }
  ~GgufTest() override { EXPECT_TRUE(io::RemoveTree(io::LocalFileSystem(), folder_).ok()); }

  std::string Path(absl::string_view name) const { return io::JoinPath(folder_, name); }
  std::string WriteBytes(absl::string_view name, absl::string_view bytes) const {
    EXPECT_TRUE(io::WriteFile(fs_, Path(name), bytes, {.overwrite = true}).ok());
    return Path(name);
  }
  std::string Content(absl::string_view name) const { return io::ReadFile(fs_, Path(name), 1 << 24).value(); }
  std::string WriteModel(absl::string_view name, const std::vector<MetadataItem>& metadata,
                         const std::vector<TestTensor>& tensors) const {
    std::vector<GgufTensorSpec> specs;
    for (const TestTensor& tensor : tensors) specs.push_back(tensor.spec);
    auto writer = GgufWriter::Create(fs_, Path(name), metadata, specs, {.output = {.overwrite = true}});
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto* const bytes = reinterpret_cast<const uint8_t*>(tensors[i].bytes.data());
      EXPECT_TRUE((*writer)->Write(i, 0, absl::MakeConstSpan(bytes, tensors[i].bytes.size())).ok());
    }
    const absl::Status status = (*writer)->Finish();
    EXPECT_TRUE(status.ok()) << status;
    return Path(name);
  }

  const io::FileSystem& fs_ = io::LocalFileSystem();
  std::string folder_;
};

}  // namespace aqt::gguf

#endif  // AQT_GGUF_GGUF_TESTING_H_
