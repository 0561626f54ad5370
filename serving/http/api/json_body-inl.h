#ifndef AQT_SERVING_HTTP_API_JSON_BODY_INL_H_
#define AQT_SERVING_HTTP_API_JSON_BODY_INL_H_

// The JSON bodies of requests, within limits.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aqt::serving {

using BodyJson = nlohmann::json;
using AnswerJson = nlohmann::ordered_json;

struct JsonLimits {
  int depth = 16;
  int64_t values = int64_t{1} << 20;  // numbers, strings, keys, arrays, objects
};

// An object. InvalidArgument, with the position, if `text` is no JSON object, has a key twice in one object, or is
// beyond the limits.
absl::StatusOr<BodyJson> ParseBody(absl::string_view text, const JsonLimits& limits = {});

// Reads the fields of an object, which outlives it, and notices those that nobody asked for. The errors name the field.
class FieldReader {
 public:
  // `where` begins messages: "inputs[2]."; empty for the body itself.
  explicit FieldReader(const BodyJson& object, std::string where = "") : object_(object), where_(std::move(where)) {}

  // The value, or null if it is missing or null.
  const BodyJson* Get(absl::string_view name);
  absl::StatusOr<std::optional<std::string>> String(absl::string_view name);
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view name);
  // InvalidArgument outside of [min, max].
  absl::StatusOr<std::optional<int64_t>> Int(absl::string_view name, int64_t min, int64_t max);
  // InvalidArgument if it is missing.
  absl::StatusOr<std::string> RequiredString(absl::string_view name);
  // InvalidArgument, naming them, if there are fields that were not read.
  absl::Status CheckAllRead() const;
  absl::Status Error(absl::string_view name, absl::string_view problem) const;

 private:
  const BodyJson& object_;
  const std::string where_;
  std::vector<std::string> read_;
};

// "a string", "an array", ... for messages.
absl::string_view TypeName(const BodyJson& value);

// The text of an answer. Bytes that are not UTF-8 become U+FFFD.
std::string AnswerText(const AnswerJson& answer);
// Appends a finite number so that it reads back as the same float.
void AppendFloat(float x, std::string* out);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_JSON_BODY_INL_H_
