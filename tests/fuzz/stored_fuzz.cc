// Input: a line with the JSON text of a quantization_config, then a safetensors file. Whatever it says, reading it as a
// quantized checkpoint gives an error or values, and a part of a tensor has the bytes of the whole.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/stored/dequantized_source.h"
#include "aqt/stored/stored_config.h"

namespace {

constexpr int64_t kMaxBytes = 1 << 16;  // of a tensor that is read

// The tensors of a file in memory.
class FileSource final : public aqt::io::TensorSource {
 public:
  FileSource(aqt::io::SafetensorsHeader header, absl::string_view data) : data_(data) {
    SetContents("input", {{"input", "input", std::move(header.metadata)}}, std::move(header.tensors));
  }

 private:
  absl::Status ReadBytes(const aqt::io::TensorInfo& tensor, int64_t offset, absl::Span<uint8_t> dst) const override {
    std::memcpy(dst.data(), data_.data() + tensor.begin + offset, dst.size());
    return absl::OkStatus();
  }

  absl::string_view data_;
};

void ReadAll(const aqt::stored::DequantizedSource& source) {
  for (const aqt::io::TensorInfo& tensor : source.tensors()) {
    if (tensor.num_bytes() > kMaxBytes) continue;
    std::vector<uint8_t> whole(static_cast<size_t>(tensor.num_bytes()));
    if (!source.Read(tensor, 0, absl::MakeSpan(whole)).ok()) continue;
    std::vector<uint8_t> part(whole.size() / 3);
    const int64_t at = static_cast<int64_t>(whole.size() - part.size()) / 2;
    AQT_CHECK(source.Read(tensor, at, absl::MakeSpan(part)).ok());
    AQT_CHECK(std::equal(part.begin(), part.end(), whole.begin() + at));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(bytes), size);
  const size_t end = input.find('\n');
  if (end == absl::string_view::npos || input.size() - end - 1 < 8) return 0;
  const absl::string_view file = input.substr(end + 1);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > file.size() - 8) return 0;
  const absl::string_view data = file.substr(8 + length);
  auto header = aqt::io::ParseSafetensorsHeader(file.substr(8, length), static_cast<int64_t>(data.size()));
  if (!header.ok()) return 0;
  const FileSource source(*std::move(header), data);
  absl::StatusOr<aqt::stored::StoredConfig> config = aqt::stored::StoredConfig();
  if (end > 0) config = aqt::stored::ParseStoredConfig(input.substr(0, end), "config.json, quantization_config");
  if (!config.ok()) return 0;
  const auto dequantized = aqt::stored::DequantizedSource::Open(source, *config);
  if (dequantized.ok()) ReadAll(**dequantized);
  return 0;
}
