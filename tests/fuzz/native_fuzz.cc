// Input: a complete safetensors file. Whatever its metadata describe, reading it as weights of the native layout gives
// an error or weights, whose headers read the same when they are written again.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_source.h"
#include "aqt/native/native_file.h"
#include "aqt/native/weight_header.h"

namespace {

constexpr int64_t kMaxElements = 1 << 16;  // of a weight that is read

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

void ReadAll(const aqt::native::NativeReader& reader) {
  for (const auto& [name, header] : reader.weights()) {
    const auto again = aqt::native::WeightHeaderFromText(aqt::native::ToText(header));
    AQT_CHECK(again.ok() && *again == header);
    if (header.StoredShape().num_elements() > kMaxElements) continue;
    const auto weight = reader.ReadWeight(name);
    if (!weight.ok()) continue;
    AQT_CHECK(weight->tensor.qvalue->shape() == header.StoredShape());
    const auto values = weight->tensor.Dequantize();
    if (values.ok()) AQT_CHECK(values->shape() == header.UntiledShape());
  }
  (void)reader.ReadProgram();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const absl::string_view file(reinterpret_cast<const char*>(bytes), size);
  if (size < 8) return 0;
  uint64_t length = 0;
  std::memcpy(&length, bytes, 8);
  if (length > size - 8) return 0;
  const absl::string_view data = file.substr(8 + length);
  auto header = aqt::io::ParseSafetensorsHeader(file.substr(8, length), static_cast<int64_t>(data.size()));
  if (!header.ok()) return 0;
  const FileSource source(*std::move(header), data);
  const auto reader = aqt::native::NativeReader::Open(source);
  if (reader.ok()) ReadAll(*reader);
  return 0;
}
