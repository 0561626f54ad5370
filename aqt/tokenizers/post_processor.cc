#include "aqt/tokenizers/post_processor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::tokenizers {
namespace {

constexpr int64_t kMaxType = 1 << 20;

TemplatePart Special(int32_t id, int32_t type_id) { return {TemplatePart::kSpecial, type_id, {id}}; }

class Parser {
 public:
  explicit Parser(int64_t num_ids) : num_ids_(num_ids) {}

  absl::Status Parse(const io::JsonValue& json, const std::string& where, int depth) {
    io::JsonFields fields(json, where);
    const std::string type = fields.Text("type");
    if (type == "BertProcessing") return ParseBert(fields);
    if (type == "RobertaProcessing") return ParseRoberta(fields);
    if (type == "TemplateProcessing") return ParseTemplates(fields);
    if (type == "ByteLevel") return ParseByteLevel(fields);
    if (type == "Sequence") return ParseSequence(fields, depth);
    fields.Fail("type", "read are BertProcessing, ByteLevel, RobertaProcessing, Sequence and TemplateProcessing");
    return fields.Finish();
  }

  PostProcessor Take() { return std::move(result_); }

 private:
  static constexpr int kMaxDepth = 4;

  absl::Status CheckId(const io::JsonFields& fields, absl::string_view key, const io::JsonValue& id) const {
    if (id.is_unsigned() && id.integer() < static_cast<uint64_t>(num_ids_)) return absl::OkStatus();
    return io::WrongField(fields.where(), key, id,
                          absl::StrCat("expected an id below ", num_ids_, ", the size of the vocabulary"));
  }

  // Only one part of a Sequence may set special tokens.
  absl::Status SetTemplates(const io::JsonFields& fields, Template single, Template pair) {
    if (has_templates_) {
      return absl::InvalidArgumentError(absl::StrCat(
          fields.where(),
          " is the second post-processor that sets special tokens; one is read, with any number of ByteLevel"));
    }
    has_templates_ = true;
    result_.single = std::move(single);
    result_.pair = std::move(pair);
    return absl::OkStatus();
  }

  // A field such as ["[SEP]", 102].
  absl::StatusOr<int32_t> ParseToken(io::JsonFields& fields, const char* key) const {
    const io::JsonValue& value = fields.Any(key);
    if (!value.is_array() || value.size() != 2 || !value[0].is_string()) {
      return io::WrongField(fields.where(), key, value, "expected a token and its id");
    }
    AQT_RETURN_IF_ERROR(CheckId(fields, key, value[1]));
    return static_cast<int32_t>(value[1].integer());
  }

  absl::Status ParseBert(io::JsonFields& fields) {
    AQT_ASSIGN_OR_RETURN(const int32_t sep, ParseToken(fields, "sep"));
    AQT_ASSIGN_OR_RETURN(const int32_t cls, ParseToken(fields, "cls"));
    AQT_RETURN_IF_ERROR(fields.Finish());
    PostProcessor bert = BertPostProcessor(cls, sep);
    return SetTemplates(fields, std::move(bert.single), std::move(bert.pair));
  }

  absl::Status ParseRoberta(io::JsonFields& fields) {
    AQT_ASSIGN_OR_RETURN(const int32_t sep, ParseToken(fields, "sep"));
    AQT_ASSIGN_OR_RETURN(const int32_t cls, ParseToken(fields, "cls"));
    const bool trim = fields.Bool("trim_offsets");
    const bool add_prefix_space = fields.Bool("add_prefix_space");
    AQT_RETURN_IF_ERROR(fields.Finish());
    if (trim) result_.trims.push_back({add_prefix_space});
    const TemplatePart first = {TemplatePart::kFirst, 0, {}}, second = {TemplatePart::kSecond, 0, {}};
    return SetTemplates(fields, {Special(cls, 0), first, Special(sep, 0)},
                        {Special(cls, 0), first, Special(sep, 0), Special(sep, 0), second, Special(sep, 0)});
  }

  absl::Status ParseByteLevel(io::JsonFields& fields) {
    const bool add_prefix_space = fields.Bool("add_prefix_space");
    const bool trim = fields.Bool("trim_offsets");
    fields.Bool("use_regex", true);
    AQT_RETURN_IF_ERROR(fields.Finish());
    if (trim) result_.trims.push_back({add_prefix_space});
    return absl::OkStatus();
  }

  absl::Status ParseSequence(io::JsonFields& fields, int depth) {
    const io::JsonValue& list = fields.Array("processors");
    if (depth >= kMaxDepth) fields.Fail("processors", absl::StrCat("at most ", kMaxDepth, " levels are read"));
    AQT_RETURN_IF_ERROR(fields.Finish());
    for (size_t i = 0; i < list.size(); ++i) {
      AQT_RETURN_IF_ERROR(Parse(list[i], absl::StrCat(fields.where(), ".processors[", i, "]"), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status ParseTemplates(io::JsonFields& fields) {
    std::map<std::string, std::vector<int32_t>> specials;
    const io::JsonValue& tokens = fields.Any("special_tokens");
    if (!tokens.is_object()) fields.Fail("special_tokens", "expected an object");
    const io::JsonValue& single = fields.Array("single");
    const io::JsonValue& pair = fields.Array("pair");
    AQT_RETURN_IF_ERROR(fields.Finish());
    for (const auto& [name, json] : tokens.object()) {
      AQT_ASSIGN_OR_RETURN(specials[name], ParseSpecial(json, absl::StrCat(fields.where(), ".special_tokens")));
    }
    AQT_ASSIGN_OR_RETURN(Template one, ParseTemplate(single, specials, fields.where() + ".single"));
    AQT_ASSIGN_OR_RETURN(Template two, ParseTemplate(pair, specials, fields.where() + ".pair"));
    const auto has = [](const Template& parts, TemplatePart::Kind kind) {
      return std::any_of(parts.begin(), parts.end(), [&](const TemplatePart& part) { return part.kind == kind; });
    };
    if (has(one, TemplatePart::kSecond))
      return io::WrongField(fields.where(), "single", single, "it must not use the sequence B");
    if (!has(two, TemplatePart::kFirst) || !has(two, TemplatePart::kSecond)) {
      return io::WrongField(fields.where(), "pair", pair, "it must use the sequences A and B");
    }
    return SetTemplates(fields, std::move(one), std::move(two));
  }

  absl::StatusOr<std::vector<int32_t>> ParseSpecial(const io::JsonValue& json, const std::string& where) const {
    io::JsonFields fields(json, where);
    fields.Any("id");
    fields.Any("tokens");
    const io::JsonValue& list = fields.Array("ids");
    AQT_RETURN_IF_ERROR(fields.Finish());
    std::vector<int32_t> ids;
    for (const io::JsonValue& id : list.array()) {
      AQT_RETURN_IF_ERROR(CheckId(fields, "ids", id));
      ids.push_back(static_cast<int32_t>(id.integer()));
    }
    return ids;
  }

  static absl::StatusOr<Template> ParseTemplate(const io::JsonValue& list,
                                                const std::map<std::string, std::vector<int32_t>>& specials,
                                                const std::string& where) {
    Template parts;
    for (size_t i = 0; i < list.size(); ++i) {
      io::JsonFields choice(list[i], absl::StrCat(where, "[", i, "]"));
      const bool is_special = !choice.Any("SpecialToken").is_null();
      const char* const key = is_special ? "SpecialToken" : "Sequence";
      io::JsonFields fields(choice.Any(key), absl::StrCat(where, "[", i, "].", key));
      AQT_RETURN_IF_ERROR(choice.Finish());
      TemplatePart part;
      const int64_t type_id = fields.Int("type_id");
      if (type_id > kMaxType) fields.Fail("type_id", absl::StrCat("expected at most ", kMaxType));
      part.type_id = static_cast<int32_t>(std::min(type_id, kMaxType));
      if (is_special) {
        part.kind = TemplatePart::kSpecial;
        const auto it = specials.find(fields.Text("id"));
        if (it == specials.end()) {
          fields.Fail("id", "it is not in special_tokens");
        } else {
          part.ids = it->second;
        }
      } else {
        part.kind = fields.Word("id", {"A", "B"}, 99) == 0 ? TemplatePart::kFirst : TemplatePart::kSecond;
      }
      AQT_RETURN_IF_ERROR(fields.Finish());
      parts.push_back(std::move(part));
    }
    return parts;
  }

  const int64_t num_ids_;
  PostProcessor result_;
  bool has_templates_ = false;
};

}  // namespace

int64_t NumSpecial(const Template& parts) {
  int64_t count = 0;
  for (const TemplatePart& part : parts) count += static_cast<int64_t>(part.ids.size());
  return count;
}

absl::StatusOr<PostProcessor> ParsePostProcessor(const io::JsonValue& json, int64_t num_ids, const std::string& where) {
  if (json.is_null()) return PostProcessor();
  Parser parser(num_ids);
  AQT_RETURN_IF_ERROR(parser.Parse(json, where, 0));
  return parser.Take();
}

PostProcessor BertPostProcessor(int32_t cls, int32_t sep) {
  PostProcessor result;
  const TemplatePart first = {TemplatePart::kFirst, 0, {}}, second = {TemplatePart::kSecond, 1, {}};
  result.single = {Special(cls, 0), first, Special(sep, 0)};
  result.pair = {Special(cls, 0), first, Special(sep, 0), second, Special(sep, 1)};
  return result;
}

}  // namespace aqt::tokenizers
