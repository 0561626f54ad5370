#ifndef AQT_IO_JSON_OBJECT_INL_H_
#define AQT_IO_JSON_OBJECT_INL_H_

// Configurations in JSON, read with nlohmann/json. For .cc files only, because that header is large.

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "nlohmann/json.hpp"

namespace aqt::io {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;

// DataLoss unless `text` is a JSON object without duplicate keys. Values that JSON lacks become strings (json.h).
inline absl::StatusOr<Json> ParseJsonObject(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const JsonObjectText object, ScanJsonObject(text, kMaxJsonDepth));
  Json json = Json::parse(object.standard, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InternalError("valid JSON could not be read");
  return json;
}

// The value of a key; null also if it is absent, or if `object` is not an object.
inline const Json& At(const Json& object, const char* key) {
  static const Json* const null = new Json();
  if (!object.is_object()) return *null;
  const auto it = object.find(key);
  return it == object.end() ? *null : *it;
}

// Null unless it is an integer that fits.
inline std::optional<int64_t> AsInt64(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

}  // namespace aqt::io

#endif  // AQT_IO_JSON_OBJECT_INL_H_
