#include "aqt/tokenizers/json_value.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"

namespace aqt::tokenizers {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxShown = 8;  // elements

// Builds a value from the events of a parser.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(Json()); }
  bool boolean(bool value) override { return Add(Json(value)); }
  bool number_integer(number_integer_t value) override { return Add(Json(static_cast<double>(value))); }
  bool number_unsigned(number_unsigned_t value) override { return Add(Json(uint64_t{value})); }
  bool number_float(number_float_t value, const string_t&) override { return Add(Json(double{value})); }
  bool string(string_t& value) override { return Add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool key(string_t& value) override {
    stack_.back().key = std::move(value);
    return true;
  }
  bool end_object() override {
    Level level = Close();
    return Add(Json(std::move(level.object)));
  }
  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool end_array() override {
    Level level = Close();
    return Add(Json(std::move(level.array)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  Json Take() { return std::move(root_); }

 private:
  struct Level {
    Json::Array array;
    Json::Object object;
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
  bool Add(Json value) {
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
  Json root_;
};

}  // namespace

const Json& Json::operator[](absl::string_view key) const {
  static const Json* const null = new Json();
  if (!is_object()) return *null;
  for (const auto& [name, value] : object()) {
    if (name == key) return value;
  }
  return *null;
}

std::string Json::Shown() const {
  if (is_null()) return "null";
  if (is_boolean()) return boolean() ? "true" : "false";
  if (is_unsigned()) return absl::StrCat(integer());
  if (is_number()) return absl::StrCat(number());
  if (is_string()) return absl::StrCat("\"", io::Printable(text()), "\"");
  if (size() > kMaxShown) return absl::StrCat(is_array() ? "a list" : "an object", " of ", size(), " values");
  const auto show = [](const Json& value) {
    return value.size() > 0 ? (value.is_array() ? "[...]" : "{...}") : value.Shown();
  };
  std::vector<std::string> parts;
  if (is_array()) {
    for (const Json& value : array()) parts.push_back(show(value));
    return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
  }
  for (const auto& [key, value] : object())
    parts.push_back(absl::StrCat("\"", io::Printable(key), "\": ", show(value)));
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view text) {
  AQT_ASSIGN_OR_RETURN(const io::JsonObjectText object, io::ScanJsonObject(text, kMaxDepth));
  Builder builder;
  if (!nlohmann::json::sax_parse(object.standard, &builder)) return absl::InternalError("valid JSON could not be read");
  return builder.Take();
}

}  // namespace aqt::tokenizers
