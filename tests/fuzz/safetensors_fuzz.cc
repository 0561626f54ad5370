// Input: a complete safetensors file. An accepted file must obey the format's rules, and writing it again must give a
// header that reads the same.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/safetensors.h"

namespace {

void CheckHeader(const aqt::io::SafetensorsHeader& header, int64_t data_bytes) {
  int64_t covered = 0;
  std::vector<aqt::io::TensorSpec> specs;
  for (const aqt::io::TensorInfo& t : header.tensors) {
    AQT_CHECK(t.begin == covered && t.begin <= t.end);
    covered = t.end;
    AQT_CHECK(t.num_bytes() * 8 == t.shape.num_elements() * BitWidth(t.dtype));
    specs.push_back(t);
  }
  AQT_CHECK(covered == data_bytes);

  const auto layout = aqt::io::LayOutSafetensors(specs, {.metadata = header.metadata});
  AQT_CHECK(layout.ok());
  AQT_CHECK(layout->data_bytes == data_bytes && (8 + layout->json.size()) % 64 == 0);
  const auto again = aqt::io::ParseSafetensorsHeader(layout->json, data_bytes);
  AQT_CHECK(again.ok());
  AQT_CHECK(again->metadata == header.metadata && again->tensors.size() == specs.size());
  // Writing once more is stable, also if tensors of size zero were in another order.
  std::vector<aqt::io::TensorSpec> sorted(again->tensors.begin(), again->tensors.end());
  const auto stable = aqt::io::LayOutSafetensors(std::move(sorted), {.metadata = again->metadata});
  AQT_CHECK(stable.ok() && stable->json == layout->json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t length = 0;
  std::memcpy(&length, data, 8);
  absl::string_view rest(reinterpret_cast<const char*>(data) + 8, size - 8);
  // An engine seldom guesses the length. So any other value means that the rest is header, and the upper bits are the
  // size of the data.
  const bool fits = length <= rest.size();
  const absl::string_view json = fits ? rest.substr(0, length) : rest;
  const int64_t data_bytes = fits ? static_cast<int64_t>(rest.size() - length) : static_cast<int64_t>(length >> 24);
  const auto header = aqt::io::ParseSafetensorsHeader(json, data_bytes);
  if (header.ok()) CheckHeader(*header, data_bytes);
  return 0;
}
