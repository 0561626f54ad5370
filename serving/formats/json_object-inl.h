#ifndef AQT_SERVING_FORMATS_JSON_OBJECT_INL_H_
#define AQT_SERVING_FORMATS_JSON_OBJECT_INL_H_

// Reading a config.json with nlohmann/json. For the sources of this folder.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "nlohmann/json.hpp"

namespace aqt::serving {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;

// DataLoss unless `text` is a JSON object without duplicate keys. Values that JSON lacks become strings (json.h).
inline absl::StatusOr<Json> ParseJsonObject(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText object, io::ScanJsonObject(text, kMaxJsonDepth));
  Json json = Json::parse(object.standard, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InternalError("valid JSON could not be read");
  return json;
}

// Null also if the key is absent.
inline const Json& At(const Json& object, const char* key) {
  static const Json* const null = new Json();
  const auto it = object.find(key);
  return it == object.end() ? *null : *it;
}

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_JSON_OBJECT_INL_H_
