#include <charconv>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {
namespace {

// Builds the value from the parser's events, so that nothing grows beyond the limits.
class LimitedBuilder final : public nlohmann::json_sax<BodyJson> {
 public:
  explicit LimitedBuilder(const JsonLimits& limits) : limits_(limits) {}

  BodyJson root;
  std::string problem;

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(BodyJson::object()); }
  bool start_array(std::size_t) override { return Open(BodyJson::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (stack_.back()->contains(name)) {
      problem = absl::StrCat("the field \"", io::Printable(name), "\" occurs twice in one object");
      return false;
    }
    key_ = std::move(name);
    return Count();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    problem = absl::StrCat("the body is not JSON: the problem is at byte ", position);
    return false;
  }

 private:
  bool Count() {
    if (++values_ <= limits_.values) return true;
    problem = absl::StrCat("the body has more than ", limits_.values, " values; split it into several requests");
    return false;
  }
  BodyJson* Place(BodyJson&& value) {
    if (stack_.empty()) return &(root = std::move(value));
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    return &((*stack_.back())[key_] = std::move(value));
  }
  bool Add(BodyJson&& value) {
    if (!Count()) return false;
    Place(std::move(value));
    return true;
  }
  bool Open(BodyJson&& value) {
    if (static_cast<int>(stack_.size()) >= limits_.depth) {
      problem = absl::StrCat("the body nests arrays and objects deeper than ", limits_.depth);
      return false;
    }
    if (!Count()) return false;
    stack_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  int64_t values_ = 0;
  std::vector<BodyJson*> stack_;  // the open arrays and objects; they do not move while they are open
  std::string key_;
};

}  // namespace

absl::StatusOr<BodyJson> ParseBody(absl::string_view text, const JsonLimits& limits) {
  // The parser takes it for the end.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the body is not JSON: the problem is at byte ", nul + 1));
  }
  LimitedBuilder builder(limits);
  const bool done = BodyJson::sax_parse(text.begin(), text.end(), &builder);
  if (!done) return absl::InvalidArgumentError(builder.problem);
  if (!builder.root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("the body is ", TypeName(builder.root), ", expected a JSON object"));
  }
  return std::move(builder.root);
}

absl::string_view TypeName(const BodyJson& value) {
  switch (value.type()) {
    case BodyJson::value_t::null: return "null";
    case BodyJson::value_t::object: return "an object";
    case BodyJson::value_t::array: return "an array";
    case BodyJson::value_t::string: return "a string";
    case BodyJson::value_t::boolean: return "a boolean";
    default: return "a number";
  }
}

const BodyJson* FieldReader::Get(absl::string_view name) {
  read_.emplace_back(name);
  const auto it = object_.find(read_.back());
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status FieldReader::Error(absl::string_view name, absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat("\"", where_, name, "\" ", problem));
}

absl::StatusOr<std::optional<std::string>> FieldReader::String(absl::string_view name) {
  const BodyJson* value = Get(name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return Error(name, absl::StrCat("is ", TypeName(*value), ", expected a string"));
  return std::optional<std::string>(value->get_ref<const std::string&>());
}

absl::StatusOr<std::optional<bool>> FieldReader::Bool(absl::string_view name) {
  const BodyJson* value = Get(name);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return Error(name, absl::StrCat("is ", TypeName(*value), ", expected true or false"));
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<std::optional<int64_t>> FieldReader::Int(absl::string_view name, int64_t min, int64_t max) {
  const BodyJson* value = Get(name);
  if (value == nullptr) return std::optional<int64_t>();
  if (!value->is_number_integer()) return Error(name, absl::StrCat("is ", TypeName(*value), ", expected an integer"));
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (huge || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return Error(name, absl::StrCat("is ", value->dump(), ", expected ", min, " to ", max));
  }
  return std::optional<int64_t>(value->get<int64_t>());
}

absl::StatusOr<std::string> FieldReader::RequiredString(absl::string_view name) {
  AQT_ASSIGN_OR_RETURN(std::optional<std::string> value, String(name));
  if (!value.has_value()) return Error(name, "is missing");
  return *std::move(value);
}

absl::Status FieldReader::CheckAllRead() const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : object_.items()) {
    if (!absl::c_linear_search(read_, key)) unknown.push_back(absl::StrCat("\"", where_, io::Printable(key, 60), "\""));
    if (unknown.size() == 5) break;
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Unrecognized request argument supplied: ", absl::StrJoin(unknown, ", ")));
}

std::string AnswerText(const AnswerJson& answer) {
  return answer.dump(-1, ' ', /*ensure_ascii=*/false, AnswerJson::error_handler_t::replace);
}

void AppendFloat(float x, std::string* out) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), x);
  out->append(text, end.ptr);
}

}  // namespace aqt::serving
