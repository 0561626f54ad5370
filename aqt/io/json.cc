#include "aqt/io/json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace aqt::io {
namespace {

// Passes the library's events on to a JsonHandler. Never throws; `false` makes the library stop.
class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(JsonHandler& handler, int max_depth) : handler_(handler), max_depth_(max_depth) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return Scalar({.kind = JsonScalar::kNull}); }
  bool boolean(bool value) override { return Scalar({.kind = JsonScalar::kBool, .unsigned_value = value}); }
  bool number_integer(number_integer_t) override { return Scalar({.kind = JsonScalar::kNumber}); }
  bool number_unsigned(number_unsigned_t value) override {
    return Scalar({.kind = JsonScalar::kUnsigned, .unsigned_value = value});
  }
  bool number_float(number_float_t, const string_t&) override { return Scalar({.kind = JsonScalar::kNumber}); }
  bool string(string_t& value) override { return Scalar({.kind = JsonScalar::kString, .string = &value}); }
  bool binary(binary_t&) override { return Keep(absl::InternalError("JSON has no binary values")); }
  bool start_object(size_t) override { return Enter() && Keep(handler_.StartObject()); }
  bool key(string_t& key) override { return Keep(handler_.Key(key)); }
  bool end_object() override { return Leave(handler_.EndObject()); }
  bool start_array(size_t) override { return Enter() && Keep(handler_.StartArray()); }
  bool end_array() override { return Leave(handler_.EndArray()); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's texts are "[id] parse error at line 1, column 2: syntax error while parsing value - invalid
    // literal; last read: '<the token>'" and "[id] number overflow parsing '<the token>'", where the token may be the
    // whole text.
    absl::string_view what = error.what();
    for (const absl::string_view before : {"] ", "syntax error "}) {
      if (const size_t at = what.find(before); at != absl::string_view::npos) what.remove_prefix(at + before.size());
    }
    what = what.substr(0, std::min(what.find("; last read: "), what.find(" '")));
    return Keep(absl::DataLossError(absl::StrCat("invalid JSON at byte ", position, ": ", absl::CHexEscape(what))));
  }

 private:
  bool Keep(absl::Status status) {
    status_ = std::move(status);
    return status_.ok();
  }
  bool Scalar(const JsonScalar& value) { return Keep(handler_.Scalar(value)); }
  bool Enter() {
    if (++depth_ <= max_depth_) return true;
    return Keep(absl::DataLossError(absl::StrCat("JSON nests deeper than ", max_depth_, " levels")));
  }
  bool Leave(absl::Status status) {
    --depth_;
    return Keep(std::move(status));
  }

  JsonHandler& handler_;
  const int max_depth_;
  int depth_ = 0;
  absl::Status status_;
};

}  // namespace

absl::Status ParseJson(absl::string_view text, int max_depth, JsonHandler& handler) {
  // The library takes a NUL for the end of the text and skips a byte order mark.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat("invalid JSON at byte ", nul + 1, ": a NUL byte"));
  }
  if (absl::StartsWith(text, "\xef\xbb\xbf")) return absl::DataLossError("invalid JSON at byte 1: a byte order mark");
  Adapter adapter(handler, max_depth);
  const bool parsed = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter);
  if (parsed) return absl::OkStatus();
  if (adapter.status().ok()) return absl::InternalError("the JSON parser stopped without an error");
  return adapter.status();
}

absl::StatusOr<std::string> JsonQuote(absl::string_view text) {
  try {
    return nlohmann::json(std::string(text)).dump();
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError(absl::StrCat(QuoteForMessage(text), " is not UTF-8"));
  }
}

const std::string* FindDuplicate(std::vector<const std::string*> strings) {
  std::sort(strings.begin(), strings.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto it =
      std::adjacent_find(strings.begin(), strings.end(), [](const auto* a, const auto* b) { return *a == *b; });
  return it == strings.end() ? nullptr : *it;
}

std::string QuoteForMessage(absl::string_view text) {
  constexpr size_t kMaxBytes = 100;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxBytes)), text.size() > kMaxBytes ? "..." : "", "'");
}

}  // namespace aqt::io
