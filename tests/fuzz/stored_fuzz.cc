// Input: a line with the JSON text of a quantization_config, then a safetensors file. Whatever it says, reading it as a
// quantized checkpoint gives an error or values, and a part of a tensor has the bytes of the whole.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/stored/dequantized_source.h"
#include "aqt/stored/stored_config.h"
#include "tests/fuzz/safetensors_bytes.h"

namespace {

constexpr int64_t kMaxBytes = 1 << 16;  // of a tensor that is read

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
  if (end == absl::string_view::npos) return 0;
  const auto source = aqt::fuzz::SafetensorsBytes::Open(input.substr(end + 1));
  if (source == nullptr) return 0;
  absl::StatusOr<aqt::stored::StoredConfig> config = aqt::stored::StoredConfig();
  if (end > 0) config = aqt::stored::ParseStoredConfig(input.substr(0, end), "config.json, quantization_config");
  if (!config.ok()) return 0;
  const auto dequantized = aqt::stored::DequantizedSource::Open(*source, *config);
  if (dequantized.ok()) ReadAll(**dequantized);
  return 0;
}
