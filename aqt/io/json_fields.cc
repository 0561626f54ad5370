#include "aqt/io/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/io/printable.h"

namespace aqt::io {
namespace {

const JsonValue& EmptyArray() {
  static const JsonValue* const empty = new JsonValue(JsonValue::Array());
  return *empty;
}

absl::Status Wrong(absl::string_view where, absl::string_view key, absl::string_view found,
                   absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, absl::StrContains(where, ": ") ? "." : ": ", key, " is ", found, "; ", expected));
}

}  // namespace

absl::Status WrongField(absl::string_view where, absl::string_view key, const JsonValue& value,
                        absl::string_view expected) {
  return Wrong(where, key, value.Shown(), expected);
}

JsonFields::JsonFields(const JsonValue& object, std::string where) : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, " is ", object.Shown(), "; expected an object"));
  }
}

const JsonValue& JsonFields::Any(absl::string_view key) {
  read_.emplace(key);
  return (*object_)[key];
}

std::string JsonFields::Text(absl::string_view key, const std::optional<std::string>& absent) {
  const JsonValue& value = Any(key);
  if (value.is_string()) return value.text();
  if (!value.is_null() || !absent.has_value()) Fail(key, "expected a string");
  return absent.value_or("");
}

bool JsonFields::Bool(absl::string_view key, std::optional<bool> absent) {
  const JsonValue& value = Any(key);
  if (value.is_boolean()) return value.boolean();
  if (!value.is_null() || !absent.has_value()) Fail(key, "expected true or false");
  return absent.value_or(false);
}

std::optional<bool> JsonFields::OptionalBool(absl::string_view key) {
  if (Any(key).is_null()) return std::nullopt;
  return Bool(key);
}

int64_t JsonFields::Int(absl::string_view key, int64_t min, int64_t max) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const JsonValue& value = Any(key);
  std::optional<int64_t> n = value.int64();
  if (!n.has_value() && value.is_number() && value.number() >= static_cast<double>(kLargest)) n = kLargest;
  if (n.has_value() && *n >= min && *n <= max) return *n;
  Fail(key, absl::StrCat("expected an integer from ", min, max == kLargest ? " on" : absl::StrCat(" to ", max)));
  return min;
}

std::optional<int64_t> JsonFields::OptionalInt(absl::string_view key, int64_t min, int64_t max) {
  if (Any(key).is_null()) return std::nullopt;
  return Int(key, min, max);
}

std::optional<double> JsonFields::OptionalNumber(absl::string_view key) {
  const JsonValue& value = Any(key);
  if (value.is_null()) return std::nullopt;
  if (value.is_number() && std::isfinite(value.number())) return value.number();
  Fail(key, "expected a finite number");
  return std::nullopt;
}

std::vector<std::string> JsonFields::Texts(absl::string_view key) {
  std::vector<std::string> texts;
  if (Any(key).is_null()) return texts;
  for (const JsonValue& value : Array(key).array()) {
    if (value.is_string()) texts.push_back(value.text());
  }
  if (texts.size() != Any(key).size()) Fail(key, "expected a list of strings");
  return texts;
}

const JsonValue& JsonFields::Array(absl::string_view key) {
  const JsonValue& value = Any(key);
  if (value.is_array()) return value;
  Fail(key, "expected a list");
  return EmptyArray();
}

size_t JsonFields::Word(absl::string_view key, std::initializer_list<const char*> words, size_t absent) {
  const JsonValue& value = Any(key);
  if (value.is_null() && absent < words.size()) return absent;
  size_t i = 0;
  for (const char* word : words) {
    if (value.is_string() && value.text() == word) return i;
    ++i;
  }
  Fail(key, absl::StrCat("read are ", absl::StrJoin(words, ", ")));
  return 0;
}

void JsonFields::Fail(absl::string_view key, absl::string_view expected) {
  if (!status_.ok()) return;
  const bool missing = object_->is_object() &&
                       absl::c_none_of(object_->object(), [&](const auto& member) { return member.first == key; });
  status_ = Wrong(where_, key, missing ? "missing" : Any(key).Shown(), expected);
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> keys;
  if (!object_->is_object()) return keys;
  for (const auto& [key, value] : object_->object()) {
    if (!read_.contains(key)) keys.push_back(key);
  }
  return keys;
}

absl::Status JsonFields::Finish() const {
  if (!status_.ok()) return status_;
  const std::vector<std::string> unread = Unread();
  if (unread.empty()) return absl::OkStatus();
  return WrongField(where_, Printable(unread[0]), (*object_)[unread[0]],
                    absl::StrCat("this field is not known; known are ", absl::StrJoin(read_, ", ")));
}

}  // namespace aqt::io
