#include "aqt/io/json_value.h"

#include <charconv>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"

namespace aqt::io {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxShown = 8;  // elements

// Builds a value from the events of a parser.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(JsonValue()); }
  bool boolean(bool value) override { return Add(JsonValue(value)); }
  bool number_integer(number_integer_t value) override { return Add(JsonValue(int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override { return Add(JsonValue(uint64_t{value})); }
  bool number_float(number_float_t value, const string_t&) override { return Add(JsonValue(double{value})); }
  bool string(string_t& value) override { return Add(JsonValue(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool key(string_t& value) override {
    stack_.back().key = std::move(value);
    return true;
  }
  bool end_object() override {
    Level level = Close();
    return Add(JsonValue(std::move(level.object)));
  }
  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool end_array() override {
    Level level = Close();
    return Add(JsonValue(std::move(level.array)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  JsonValue Take() { return std::move(root_); }

 private:
  struct Level {
    JsonValue::Array array;
    JsonValue::Object object;
    std::string key;
    bool is_object = false;
  };

  bool Open(bool is_object) {
    stack_.emplace_back();
    stack_.back().is_object = is_object;
    return true;
  }
  Level Close() {
    Level level = std::move(stack_.back());
    stack_.pop_back();
    return level;
  }
  bool Add(JsonValue value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (Level& level = stack_.back(); level.is_object) {
      level.object.emplace_back(std::move(level.key), std::move(value));
    } else {
      level.array.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Level> stack_;
  JsonValue root_;
};

}  // namespace

const JsonValue& JsonValue::operator[](absl::string_view key) const {
  static const JsonValue* const null = new JsonValue();
  if (!is_object()) return *null;
  for (const auto& [name, value] : object()) {
    if (name == key) return value;
  }
  return *null;
}

std::optional<int64_t> JsonValue::int64() const {
  if (is_negative()) return std::get<int64_t>(value_);
  if (!is_unsigned() || integer() > uint64_t{std::numeric_limits<int64_t>::max()}) return std::nullopt;
  return static_cast<int64_t>(integer());
}

double JsonValue::number() const {
  if (is_unsigned()) return static_cast<double>(integer());
  return is_negative() ? static_cast<double>(std::get<int64_t>(value_)) : std::get<double>(value_);
}

bool JsonValue::operator==(const JsonValue& other) const {
  if (is_object() && other.is_object()) {
    return size() == other.size() && absl::c_all_of(object(), [&](const auto& member) {
             return absl::c_any_of(other.object(), [&](const auto& o) { return o == member; });
           });
  }
  if (is_number() && other.is_number() && value_.index() != other.value_.index()) return number() == other.number();
  return value_ == other.value_;
}

std::string JsonValue::Shown() const {
  if (is_null()) return "null";
  if (is_boolean()) return boolean() ? "true" : "false";
  if (is_unsigned()) return absl::StrCat(integer());
  if (is_negative()) return absl::StrCat(*int64());
  if (is_number()) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), number()).ptr);
  }
  if (is_string()) return absl::StrCat("\"", Printable(text()), "\"");
  if (size() > kMaxShown) return absl::StrCat(is_array() ? "a list" : "an object", " of ", size(), " values");
  const auto show = [](const JsonValue& value) {
    return value.size() > 0 ? (value.is_array() ? "[...]" : "{...}") : value.Shown();
  };
  std::vector<std::string> parts;
  if (is_array()) {
    for (const JsonValue& value : array()) parts.push_back(show(value));
    return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
  }
  for (const auto& [key, value] : object()) parts.push_back(absl::StrCat("\"", Printable(key), "\": ", show(value)));
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

absl::StatusOr<JsonValue> ParseJsonValue(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const JsonObjectText object, ScanJsonObject(text, kMaxDepth));
  Builder builder;
  if (!nlohmann::json::sax_parse(object.standard, &builder)) return absl::InternalError("valid JSON could not be read");
  return builder.Take();
}

}  // namespace aqt::io
