#ifndef AQT_IO_JSON_VALUE_H_
#define AQT_IO_JSON_VALUE_H_

// A JSON value in memory, for files that people write. Vocabularies of 250,000 tokens are such files.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::io {

class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Object = std::vector<std::pair<std::string, JsonValue>>;  // in the order of the text

  JsonValue() = default;  // null
  explicit JsonValue(bool value) : value_(value) {}
  explicit JsonValue(uint64_t value) : value_(value) {}
  explicit JsonValue(int64_t negative) : value_(negative) {}
  explicit JsonValue(double value) : value_(value) {}
  explicit JsonValue(std::string value) : value_(std::move(value)) {}
  explicit JsonValue(Array value) : value_(std::move(value)) {}
  explicit JsonValue(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_boolean() const { return std::holds_alternative<bool>(value_); }
  bool is_unsigned() const { return std::holds_alternative<uint64_t>(value_); }  // an integer from 0 on
  bool is_number() const { return is_unsigned() || is_negative() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // The integer, if the number is one that fits; a number with a fraction or an exponent is not one.
  std::optional<int64_t> int64() const;

  // Only for values of that kind.
  bool boolean() const { return std::get<bool>(value_); }
  uint64_t integer() const { return std::get<uint64_t>(value_); }
  double number() const;
  const std::string& text() const { return std::get<std::string>(value_); }
  const Array& array() const { return std::get<Array>(value_); }
  const Object& object() const { return std::get<Object>(value_); }
  const JsonValue& operator[](size_t i) const { return array()[i]; }

  // The number of elements of an array or object; 0 for others.
  size_t size() const { return is_array() ? array().size() : is_object() ? object().size() : 0; }
  // A member of an object, or null: for other kinds, too.
  const JsonValue& operator[](absl::string_view key) const;

  // Numbers are equal by value: 1, 1.0 and 1e0 are. Members may come in any order.
  bool operator==(const JsonValue& other) const;

  // For a message: short, printable, in one line.
  std::string Shown() const;

 private:
  bool is_negative() const { return std::holds_alternative<int64_t>(value_); }

  std::variant<std::monostate, bool, uint64_t, int64_t, double, std::string, Array, Object> value_;
};

// DataLoss, with the line and column, for text that is not a JSON object, or has a key twice in one object. Words and
// numbers that JSON lacks become strings, as in JsonObjectText (json.h).
absl::StatusOr<JsonValue> ParseJsonValue(absl::string_view text);

}  // namespace aqt::io

#endif  // AQT_IO_JSON_VALUE_H_
