#include "aqt/io/json.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"

namespace aqt::io {
namespace {

// Why a text is not JSON, and the number of bytes up to and including the one that shows it.
struct SyntaxError {
  size_t bytes = 0;
  std::string cause;
};

// Passes the library's events on to a JsonHandler. Never throws; `false` makes the library stop.
class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(JsonHandler& handler, int max_depth) : handler_(handler), max_depth_(max_depth) {}

  // After the library has stopped, one of these holds an error.
  const std::optional<SyntaxError>& syntax_error() const { return syntax_error_; }
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
    // The library's texts are "[id] parse error at line 1, column 2: syntax error while parsing value - unexpected end
    // of input; expected ':'", "... - invalid literal; last read: '<the token>'" and "[id] number overflow parsing
    // '<the token>'", where the token may be the whole text.
    absl::string_view what = error.what();
    for (const absl::string_view before : {"] ", "syntax error "}) {
      if (const size_t at = what.find(before); at != absl::string_view::npos) what.remove_prefix(at + before.size());
    }
    what = what.substr(0, what.find("; last read: "));
    if (absl::StartsWith(what, "number overflow")) what = what.substr(0, what.find(" '"));
    syntax_error_ = {position, PrintableLine(what)};
    return false;
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
  std::optional<SyntaxError> syntax_error_;
};

// Finds what the library accepts but should not: it reads a NUL as the end of the text and skips a byte order mark.
std::optional<SyntaxError> FindForeignBytes(absl::string_view text) {
  if (absl::StartsWith(text, "\xef\xbb\xbf")) return SyntaxError{1, "a byte order mark; UTF-8 without one is expected"};
  if (absl::StartsWith(text, "\xff\xfe") || absl::StartsWith(text, "\xfe\xff")) {
    return SyntaxError{1, "the text is in UTF-16; UTF-8 is expected"};
  }
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) return SyntaxError{nul + 1, "a NUL byte"};
  return std::nullopt;
}

// Returns a syntax error, or sets `status` to an error of the handler.
std::optional<SyntaxError> Parse(absl::string_view text, int max_depth, JsonHandler& handler, absl::Status* status) {
  if (const std::optional<SyntaxError> foreign = FindForeignBytes(text); foreign.has_value()) return foreign;
  Adapter adapter(handler, max_depth);
  if (nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter)) return std::nullopt;
  *status = adapter.status();
  if (status->ok() && !adapter.syntax_error().has_value()) {
    *status = absl::InternalError("the JSON parser stopped without an error");
  }
  return adapter.syntax_error();
}

class IgnoringHandler final : public JsonHandler {
 public:
  absl::Status Scalar(const JsonScalar&) override { return absl::OkStatus(); }
  absl::Status StartObject() override { return absl::OkStatus(); }
  absl::Status Key(std::string&) override { return absl::OkStatus(); }
  absl::Status EndObject() override { return absl::OkStatus(); }
  absl::Status StartArray() override { return absl::OkStatus(); }
  absl::Status EndArray() override { return absl::OkStatus(); }
};

// `byte` is an offset into the text; one past its end if something is missing there.
absl::Status ErrorAt(absl::string_view text, size_t byte, absl::string_view cause) {
  const absl::string_view before = text.substr(0, byte);
  const size_t newline = before.rfind('\n');  // npos + 1 is 0
  return absl::DataLossError(absl::StrCat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
                                          before.size() - (newline + 1) + 1, ": ", cause));
}

// Finds the tokens of a text that is JSON apart from the three words. Any other text becomes something that the library
// refuses at the same position.
class Scanner {
 public:
  Scanner(absl::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}

  absl::StatusOr<JsonObjectText> Run() {
    if (const std::optional<SyntaxError> foreign = FindForeignBytes(text_); foreign.has_value()) {
      return ErrorAt(text_, foreign->bytes - 1, foreign->cause);
    }
    out_.standard.reserve(text_.size());
    size_t end = 0;
    for (size_t at = 0; at < text_.size(); at = end) {
      end = TokenEnd(at);
      AQT_RETURN_IF_ERROR(Token(at, end));
    }
    IgnoringHandler ignore;
    absl::Status status;
    const std::optional<SyntaxError> error = Parse(out_.standard, max_depth_, ignore, &status);
    if (error.has_value()) return ErrorAt(text_, Original(error->bytes) - 1, error->cause);
    AQT_RETURN_IF_ERROR(status);
    const size_t first = text_.find_first_not_of(" \t\r\n");
    if (text_[first] != '{') return ErrorAt(text_, first, "a JSON object is expected");
    return std::move(out_);
  }

 private:
  struct Level {
    bool is_object = false;
    bool key_next = false;
    std::set<std::string> keys;
  };

  static bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
  static bool IsWordChar(char c) { return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.'; }

  size_t TokenEnd(size_t at) const {
    size_t end = at + 1;
    if (text_[at] == '"') {
      while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
      return std::min(end + 1, text_.size());
    }
    if (!IsWordChar(text_[at])) return end;
    while (end < text_.size() && IsWordChar(text_[end])) ++end;
    return end;
  }

  absl::Status Token(size_t begin, size_t end) {
    const absl::string_view token = text_.substr(begin, end - begin);
    const char c = token[0];
    const bool key = !levels_.empty() && levels_.back().key_next;
    if (c == '"' && key) AQT_RETURN_IF_ERROR(Key(begin, end));
    const bool at_root = levels_.size() == 1 && !out_.members.empty();
    if (at_root && !key && c != ':' && c != ',' && c != '}' && !IsSpace(c)) {
      JsonObjectText::Member& member = out_.members.back();
      if (member.begin == 0) member.begin = begin;
      member.end = end;
    }
    if (IsWordChar(c) && !key && IsForeignValue(token)) {
      quoted_.push_back(out_.standard.size());
      absl::StrAppend(&out_.standard, "\"", token, "\"");
    } else {
      out_.standard.append(token.data(), token.size());
    }
    if (c == '{' || c == '[') {
      if (levels_.size() == static_cast<size_t>(max_depth_)) {
        return ErrorAt(text_, begin, absl::StrCat("nested deeper than ", max_depth_, " levels"));
      }
      levels_.push_back({c == '{', c == '{', {}});
    } else if ((c == '}' || c == ']') && !levels_.empty()) {
      levels_.pop_back();
      if (levels_.size() == 1 && !out_.members.empty()) out_.members.back().end = end;
    } else if (c == ',' && !levels_.empty()) {
      levels_.back().key_next = levels_.back().is_object;
    } else if (c == ':' && !levels_.empty()) {
      levels_.back().key_next = false;
    }
    return absl::OkStatus();
  }

  absl::Status Key(size_t begin, size_t end) {
    const nlohmann::json parsed =
        nlohmann::json::parse(text_.begin() + begin, text_.begin() + end, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_string()) return absl::OkStatus();  // the library will report why
    const std::string& key = parsed.get_ref<const std::string&>();
    if (!levels_.back().keys.insert(key).second) {
      return ErrorAt(text_, begin, absl::StrCat("the key ", QuoteForMessage(key), " occurs twice in one object"));
    }
    if (levels_.size() == 1) out_.members.push_back({key, begin, 0, 0});
    return absl::OkStatus();
  }

  // Whether Python accepts this value and the library does not.
  static bool IsForeignValue(absl::string_view token) {
    if (token == "NaN" || token == "Infinity" || token == "-Infinity") return true;
    double value = 0;
    return IsNumber(token) && absl::SimpleAtod(token, &value) && std::isinf(value);
  }

  static bool ConsumeDigits(absl::string_view& s) {
    const size_t end = std::min(s.find_first_not_of("0123456789"), s.size());
    s.remove_prefix(end);
    return end > 0;
  }
  // -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
  static bool IsNumber(absl::string_view s) {
    absl::ConsumePrefix(&s, "-");
    if (!absl::ConsumePrefix(&s, "0") && !ConsumeDigits(s)) return false;
    if (absl::ConsumePrefix(&s, ".") && !ConsumeDigits(s)) return false;
    if (absl::ConsumePrefix(&s, "e") || absl::ConsumePrefix(&s, "E")) {
      if (!absl::ConsumePrefix(&s, "-")) absl::ConsumePrefix(&s, "+");
      if (!ConsumeDigits(s)) return false;
    }
    return s.empty();
  }

  // Maps a position in `standard` to the text: each quoted word is two characters longer in `standard`.
  size_t Original(size_t bytes) const {
    size_t quotes = 0;
    for (const size_t begin : quoted_) quotes += begin < bytes ? 2 : 0;
    return std::max<size_t>(bytes - std::min(bytes, quotes), 1);
  }

  const absl::string_view text_;
  const int max_depth_;
  JsonObjectText out_;
  std::vector<Level> levels_;
  std::vector<size_t> quoted_;  // where words begin in out_.standard
};

}  // namespace

absl::Status ParseJson(absl::string_view text, int max_depth, JsonHandler& handler) {
  absl::Status status;
  const std::optional<SyntaxError> error = Parse(text, max_depth, handler, &status);
  if (!error.has_value()) return status;
  return absl::DataLossError(absl::StrCat("invalid JSON at byte ", error->bytes, ": ", error->cause));
}

absl::StatusOr<JsonObjectText> ScanJsonObject(absl::string_view text, int max_depth) {
  return Scanner(text, max_depth).Run();
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
  return absl::StrCat("'", Printable(text, kMaxBytes), "'");
}

}  // namespace aqt::io
