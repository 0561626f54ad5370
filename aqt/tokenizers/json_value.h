#ifndef AQT_TOKENIZERS_JSON_VALUE_H_
#define AQT_TOKENIZERS_JSON_VALUE_H_

// A JSON value in memory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::tokenizers {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  Json() = default;  // null
  explicit Json(bool value) : value_(value) {}
  explicit Json(uint64_t value) : value_(value) {}
  explicit Json(double value) : value_(value) {}
  explicit Json(std::string value) : value_(std::move(value)) {}
  explicit Json(Array value) : value_(std::move(value)) {}
  explicit Json(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  bool is_unsigned() const { return std::holds_alternative<uint64_t>(value_); }  // an integer from 0 on
  bool is_number() const { return is_unsigned() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Only for values of that kind.
  bool boolean() const { return std::get<bool>(value_); }
  uint64_t integer() const { return std::get<uint64_t>(value_); }
  double number() const { return is_unsigned() ? static_cast<double>(integer()) : std::get<double>(value_); }
  const std::string& text() const { return std::get<std::string>(value_); }
  const Array& array() const { return std::get<Array>(value_); }
  const Object& object() const { return std::get<Object>(value_); }
  const Json& operator[](size_t i) const { return array()[i]; }

  // The number of elements of an array or object; 0 for others.
  size_t size() const { return is_array() ? array().size() : is_object() ? object().size() : 0; }
  // A member of an object, or null: for other kinds, too.
  const Json& operator[](absl::string_view key) const;

  // For a message: short, printable, in one line.
  std::string Shown() const;

 private:
  std::variant<std::monostate, bool, uint64_t, double, std::string, Array, Object> value_;
};

// DataLoss, with the line and column, for text that is not a JSON object, or has a key twice in one object.
absl::StatusOr<Json> ParseJsonObject(absl::string_view text);

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_JSON_VALUE_H_
