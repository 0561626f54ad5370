// Input: a complete safetensors file. Whatever its metadata describe, reading it as weights of the native layout gives
// an error or weights, whose headers read the same when they are written again.

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/native/native_file.h"
#include "aqt/native/weight_header.h"
#include "tests/fuzz/safetensors_bytes.h"

namespace {

constexpr int64_t kMaxElements = 1 << 16;  // of a weight that is read

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
  const auto source = aqt::fuzz::SafetensorsBytes::Open(file);
  if (source == nullptr) return 0;
  const auto reader = aqt::native::NativeReader::Open(*source);
  if (reader.ok()) ReadAll(*reader);
  return 0;
}
