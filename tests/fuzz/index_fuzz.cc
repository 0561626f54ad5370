// Input: the text of model.safetensors.index.json. A file name that could leave the folder is refused. An accepted
// index can be written and read again, including its other keys.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/io/tensors/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  aqt::io::IndexExtras extras;
  const auto parsed = aqt::io::ParseIndex(absl::string_view(reinterpret_cast<const char*>(data), size), &extras);
  if (!parsed.ok()) return 0;
  aqt::io::WeightMap map = *parsed;
  for (const auto& [tensor, file] : map) {
    AQT_CHECK(absl::EndsWith(file, ".safetensors") && file.find('/') == file.npos && file.find('\0') == file.npos);
  }
  const auto json = aqt::io::MakeIndex(map, 0, extras);
  AQT_CHECK(json.ok());
  aqt::io::IndexExtras kept;
  const auto again = aqt::io::ParseIndex(*json, &kept);
  AQT_CHECK(again.ok());
  AQT_CHECK(kept.metadata == extras.metadata && kept.members == extras.members);
  std::sort(map.begin(), map.end());
  AQT_CHECK(*again == map);
  return 0;
}
