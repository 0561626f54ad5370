#include "aqt/tokenizers/json_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/io/printable.h"

namespace aqt::tokenizers {
namespace {

const Json& EmptyArray() {
  static const Json* const empty = new Json(Json::Array());
  return *empty;
}

}  // namespace

absl::Status WrongField(absl::string_view where, absl::string_view key, const Json& value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(where, ".", key, " is ", value.Shown(), "; ", expected));
}

Fields::Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, " is ", json.Shown(), "; expected an object"));
  }
}

const Json& Fields::Any(const char* key) {
  known_.insert(key);
  return json_[key];
}

std::string Fields::Text(const char* key) {
  const Json& value = Any(key);
  if (value.is_string()) return value.text();
  Fail(key, "expected a string");
  return "";
}

std::string Fields::Text(const char* key, std::string absent) { return Any(key).is_null() ? absent : Text(key); }

bool Fields::Bool(const char* key) {
  const Json& value = Any(key);
  if (value.is_boolean()) return value.boolean();
  Fail(key, "expected true or false");
  return false;
}

bool Fields::Bool(const char* key, bool absent) { return Any(key).is_null() ? absent : Bool(key); }

std::optional<bool> Fields::OptionalBool(const char* key) {
  if (Any(key).is_null()) return std::nullopt;
  return Bool(key);
}

int64_t Fields::Int(const char* key) {
  const Json& value = Any(key);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  // Some files have a "no limit" beyond 64 bits.
  if (value.is_unsigned()) return static_cast<int64_t>(std::min(value.integer(), uint64_t{kMax}));
  if (value.is_number() && value.number() >= static_cast<double>(kMax)) return kMax;
  Fail(key, "expected an integer of at least 0");
  return 0;
}

std::optional<int64_t> Fields::OptionalInt(const char* key) {
  if (Any(key).is_null()) return std::nullopt;
  return Int(key);
}

const Json& Fields::Array(const char* key) {
  const Json& value = Any(key);
  if (value.is_array()) return value;
  Fail(key, "expected a list");
  return EmptyArray();
}

size_t Fields::Word(const char* key, std::initializer_list<const char*> words, size_t absent) {
  const Json& value = Any(key);
  if (value.is_null() && absent < words.size()) return absent;
  size_t i = 0;
  for (const char* word : words) {
    if (value.is_string() && value.text() == word) return i;
    ++i;
  }
  Fail(key, absl::StrCat("read are ", absl::StrJoin(words, ", ")));
  return 0;
}

void Fields::Fail(const char* key, absl::string_view expected) {
  if (status_.ok()) status_ = WrongField(where_, key, Any(key), expected);
}

absl::Status Fields::Finish() {
  if (!status_.ok() || !json_.is_object()) return status_;
  for (const auto& [key, value] : json_.object()) {
    if (known_.count(key) == 0) {
      return WrongField(where_, io::Printable(key), value,
                        absl::StrCat("this field is not known; known are ", absl::StrJoin(known_, ", ")));
    }
  }
  return absl::OkStatus();
}

}  // namespace aqt::tokenizers
