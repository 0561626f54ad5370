// Tokenizers from their files.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/foreign_file.h"
#include "aqt/io/json_fields.h"
#include "aqt/io/printable.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/tokenizers/tokenizer_parts.h"

namespace aqt::tokenizers {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{128} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

absl::StatusOr<io::JsonValue> ParseObject(absl::string_view text, const std::string& name) {
  auto json = io::ParseJsonValue(text);
  if (!json.ok()) {
    return Annotate(json.status(), absl::StrCat(name, io::GuessContent(text.substr(0, io::kGuessBytes))));
  }
  return json;
}

absl::StatusOr<Truncation> ParseTruncation(const io::JsonValue& json, const std::string& where) {
  Truncation truncation;
  if (json.is_null()) return truncation;
  io::JsonFields fields(json, where);
  truncation.max_length = fields.Int("max_length");
  truncation.strategy =
      static_cast<Truncation::Strategy>(fields.Word("strategy", {"LongestFirst", "OnlyFirst", "OnlySecond"}, 99));
  truncation.left = fields.Word("direction", {"Right", "Left"}, 0) == 1;
  fields.Int("stride");  // for the parts that overflow, which Encode does not give
  AQT_RETURN_IF_ERROR(fields.Finish());
  return truncation;
}

absl::StatusOr<Padding> ParsePadding(const io::JsonValue& json, const std::string& where) {
  Padding padding;
  if (json.is_null()) return padding;
  io::JsonFields fields(json, where);
  padding.id = fields.Int("pad_id");
  padding.type_id = static_cast<int32_t>(std::min<int64_t>(fields.Int("pad_type_id"), 1 << 20));
  padding.left = fields.Word("direction", {"Left", "Right"}, 99) == 0;
  for (const char* key : {"strategy", "pad_to_multiple_of", "pad_token"}) fields.Any(key);  // for whoever pads
  AQT_RETURN_IF_ERROR(fields.Finish());
  return padding;
}

void FindPadding(const Tokenizer::Parts& parts, Padding& padding) {
  for (const char* name : {"[PAD]", "<pad>"}) {
    if (padding.id.has_value()) return;
    const auto it = parts.added.find(name);
    const int32_t id = it != parts.added.end() ? it->second : parts.model->Find(name);
    if (id >= 0) padding.id = id;
  }
}

// ---- tokenizer_config.json

// What tokenizer_config.json changes of the tokenizer.json beside it, as transformers does.
struct Changes {
  std::optional<bool> truncates_left;
  io::JsonValue::Object bert_normalizer;  // members
  std::optional<bool> add_prefix_space;   // of ByteLevel

  // A part of tokenizer.json of type `type` with these members.
  static io::JsonValue With(const io::JsonValue& part, absl::string_view type, const io::JsonValue::Object& members) {
    const io::JsonValue& own = part["type"];
    if (members.empty() || !own.is_string() || own.text() != type) return part;
    io::JsonValue::Object changed = part.object();
    for (const auto& [key, value] : members) {
      const auto it =
          std::find_if(changed.begin(), changed.end(), [&](const auto& member) { return member.first == key; });
      if (it == changed.end()) {
        changed.emplace_back(key, value);
      } else {
        it->second = value;
      }
    }
    return io::JsonValue(std::move(changed));
  }
};

absl::StatusOr<Changes> ReadChanges(absl::string_view config_text, const std::string& where) {
  Changes changes;
  if (config_text.empty()) return changes;
  AQT_ASSIGN_OR_RETURN(const io::JsonValue json, ParseObject(config_text, where));
  io::JsonFields config(json, where);
  if (config.Has("truncation_side")) changes.truncates_left = config.Word("truncation_side", {"left", "right"}, 1) == 0;
  changes.add_prefix_space = config.OptionalBool("add_prefix_space");
  const io::JsonValue& class_value = config.Any("tokenizer_class");
  const std::string name(absl::StripSuffix(class_value.is_string() ? class_value.text() : "BertTokenizer", "Fast"));
  const bool is_mpnet = name == "MPNetTokenizer";
  if (is_mpnet || name == "BertTokenizer" || name == "DistilBertTokenizer" || name == "ElectraTokenizer") {
    const auto set = [&](const char* key, std::optional<bool> value) {
      changes.bert_normalizer.emplace_back(key, value.has_value() ? io::JsonValue(*value) : io::JsonValue());
    };
    const std::optional<bool> lower = config.OptionalBool("do_lower_case");
    const std::optional<bool> strip = config.OptionalBool("strip_accents");
    const std::optional<bool> chinese = config.OptionalBool("tokenize_chinese_chars");
    if (lower.has_value()) set("lowercase", lower);
    if (lower.has_value() || strip.has_value()) set("strip_accents", strip);
    if (chinese.has_value() && !is_mpnet) set("handle_chinese_chars", chinese);
  }
  AQT_RETURN_IF_ERROR(config.status());
  return changes;
}

// ---- vocab.txt

// A token in tokenizer_config.json: "[SEP]", or an object with the "content".
std::string SpecialToken(io::JsonFields& config, const char* key, std::string absent) {
  const io::JsonValue& value = config.Any(key);
  if (value.is_null()) return absent;
  const io::JsonValue& content = value.is_object() ? value["content"] : value;
  if (content.is_string()) return content.text();
  config.Fail(key, "expected a token");
  return "";
}

BertNormalizerOptions BertOptions(io::JsonFields& config) {
  BertNormalizerOptions options;
  options.lowercase = config.Bool("do_lower_case", true);
  options.strip_accents = config.Bool("strip_accents", options.lowercase);
  options.handle_chinese_chars = config.Bool("tokenize_chinese_chars", true);
  if (!config.Bool("do_basic_tokenize", true)) config.Fail("do_basic_tokenize", "only true is read");
  if (const io::JsonValue& tokenizer_class = config.Any("tokenizer_class"); !tokenizer_class.is_null()) {
    constexpr absl::string_view kClasses[] = {"BertTokenizer",           "BertTokenizerFast", "DistilBertTokenizer",
                                              "DistilBertTokenizerFast", "ElectraTokenizer",  "ElectraTokenizerFast"};
    const std::string name = tokenizer_class.is_string() ? tokenizer_class.text() : "";
    if (std::find(std::begin(kClasses), std::end(kClasses), name) == std::end(kClasses)) {
      config.Fail("tokenizer_class",
                  "a vocab.txt alone is read for BertTokenizer, DistilBertTokenizer and ElectraTokenizer; for others "
                  "save a tokenizer.json with transformers (use_fast=True)");
    }
  }
  return options;
}

Vocabulary ReadLines(absl::string_view text) {
  const std::string lines = absl::StrReplaceAll(text, {{"\r\n", "\n"}, {"\r", "\n"}});
  absl::string_view rest = lines;
  if (absl::EndsWith(rest, "\n")) rest.remove_suffix(1);
  Vocabulary vocabulary;
  if (rest.empty()) return vocabulary;
  for (const absl::string_view line : absl::StrSplit(rest, '\n')) {
    vocabulary.emplace_back(std::string(line), static_cast<int32_t>(vocabulary.size()));
  }
  return vocabulary;
}

struct BertSpecials {
  std::string unk, sep, pad, cls, mask;
};

BertSpecials ReadSpecials(io::JsonFields& config) {
  return {.unk = SpecialToken(config, "unk_token", "[UNK]"),
          .sep = SpecialToken(config, "sep_token", "[SEP]"),
          .pad = SpecialToken(config, "pad_token", "[PAD]"),
          .cls = SpecialToken(config, "cls_token", "[CLS]"),
          .mask = SpecialToken(config, "mask_token", "[MASK]")};
}

}  // namespace

absl::Status Tokenizer::Parts::SetAddedTokens(const std::vector<AddedToken>& tokens, int64_t largest_model_id) {
  num_ids = largest_model_id + 1;
  std::vector<std::pair<AddedToken, std::u32string>> raw, normal;
  for (const AddedToken& token : tokens) {
    added[token.content] = token.id;
    num_ids = std::max<int64_t>(num_ids, int64_t{token.id} + 1);
    std::u32string codes = ToCodes(token.content);
    if (token.normalized && normalizer != nullptr) {
      Text text;
      DecodeUtf8(token.content, text);
      AQT_RETURN_IF_ERROR(normalizer->Normalize(GrowthLimit(text.size()), text));
      codes.clear();
      for (const Char& c : text) codes.push_back(c.code);
    }
    (token.normalized ? normal : raw).emplace_back(token, std::move(codes));
  }
  AQT_ASSIGN_OR_RETURN(raw_tokens, AddedTokenFinder::Make(std::move(raw)));
  AQT_ASSIGN_OR_RETURN(normalized_tokens, AddedTokenFinder::Make(std::move(normal)));
  return absl::OkStatus();
}

absl::StatusOr<Tokenizer> Tokenizer::FromJson(absl::string_view text, const std::string& name,
                                              absl::string_view config) {
  AQT_ASSIGN_OR_RETURN(const Changes changes, ReadChanges(config, "tokenizer_config.json of " + name));
  AQT_ASSIGN_OR_RETURN(const io::JsonValue json, ParseObject(text, name));
  io::JsonFields fields(json, name);
  const std::string version = fields.Text("version", "1.0");
  if (version != "1.0") fields.Fail("version", "only 1.0 is read");
  const io::JsonValue& truncation = fields.Any("truncation");
  const io::JsonValue& padding = fields.Any("padding");
  const io::JsonValue& added = fields.Any("added_tokens");
  const io::JsonValue normalizer = Changes::With(fields.Any("normalizer"), "BertNormalizer", changes.bert_normalizer);
  io::JsonValue::Object prefix;
  if (changes.add_prefix_space.has_value()) prefix.emplace_back("add_prefix_space", *changes.add_prefix_space);
  const io::JsonValue pre_tokenizer = Changes::With(fields.Any("pre_tokenizer"), "ByteLevel", prefix);
  const io::JsonValue& post_processor = fields.Any("post_processor");
  const io::JsonValue& model = fields.Any("model");
  fields.Any("decoder");  // makes text from ids
  AQT_RETURN_IF_ERROR(fields.Finish());
  auto parts = std::make_unique<Parts>();
  AQT_ASSIGN_OR_RETURN(parts->truncation, ParseTruncation(truncation, name + ": truncation"));
  parts->truncation.left = changes.truncates_left.value_or(parts->truncation.left);
  AQT_ASSIGN_OR_RETURN(parts->padding, ParsePadding(padding, name + ": padding"));
  if (!normalizer.is_null()) {
    AQT_ASSIGN_OR_RETURN(parts->normalizer, ParseNormalizer(normalizer, name + ": normalizer"));
  }
  if (!pre_tokenizer.is_null()) {
    AQT_ASSIGN_OR_RETURN(parts->pre_tokenizer, ParsePreTokenizer(pre_tokenizer, name + ": pre_tokenizer"));
  }
  AQT_ASSIGN_OR_RETURN(parts->model, ParseModel(model, name + ": model"));
  AQT_ASSIGN_OR_RETURN(const std::vector<AddedToken> tokens,
                       ParseAddedTokens(added, *parts->model, name + ": added_tokens"));
  if (absl::Status s = parts->SetAddedTokens(tokens, parts->model->largest_id()); !s.ok()) return Annotate(s, name);
  AQT_ASSIGN_OR_RETURN(parts->post_processor,
                       ParsePostProcessor(post_processor, parts->num_ids, name + ": post_processor"));
  FindPadding(*parts, parts->padding);
  return Tokenizer(std::move(parts));
}

absl::StatusOr<Tokenizer> Tokenizer::FromVocabulary(absl::string_view vocabulary, absl::string_view config_text,
                                                    const std::string& name) {
  io::JsonValue config_value{io::JsonValue::Object()};
  const std::string where = "tokenizer_config.json of " + name;
  if (!config_text.empty()) {
    AQT_ASSIGN_OR_RETURN(config_value, ParseObject(config_text, where));
  }
  io::JsonFields config(config_value, where);
  const BertNormalizerOptions options = BertOptions(config);
  const BertSpecials names = ReadSpecials(config);
  AQT_RETURN_IF_ERROR(config.status());
  auto parts = std::make_unique<Parts>();
  parts->normalizer = MakeBertNormalizer(options);
  parts->pre_tokenizer = MakeBertPreTokenizer();
  Vocabulary lines = ReadLines(vocabulary);
  for (const auto& [token, id] : lines) {
    if (token.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, ", line ", id + 1, " has ", token.size(), " bytes; at most ",
                                                     kMaxTokenBytes, " are read"));
    }
  }
  WordPieceOptions word_piece;
  word_piece.unknown = names.unk;
  auto model = MakeWordPiece(std::move(lines), word_piece);
  if (!model.ok()) return Annotate(model.status(), name);
  parts->model = *std::move(model);
  std::vector<AddedToken> tokens;
  for (const std::string& special : {names.unk, names.sep, names.pad, names.cls, names.mask}) {
    AddedToken token;
    token.content = special;
    token.id = parts->model->Find(special);
    const bool twice =
        std::any_of(tokens.begin(), tokens.end(), [&](const AddedToken& t) { return t.content == special; });
    if (token.id >= 0 && !twice) tokens.push_back(std::move(token));
  }
  AQT_RETURN_IF_ERROR(parts->SetAddedTokens(tokens, parts->model->largest_id()));
  const int32_t cls = parts->model->Find(names.cls), sep = parts->model->Find(names.sep);
  if (cls < 0 || sep < 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has no token ",
                                                   io::Printable(cls < 0 ? names.cls : names.sep),
                                                   "; name the special tokens in tokenizer_config.json"));
  }
  parts->post_processor = BertPostProcessor(cls, sep);
  if (const int32_t pad = parts->model->Find(names.pad); pad >= 0) parts->padding.id = pad;
  return Tokenizer(std::move(parts));
}

absl::StatusOr<Tokenizer> Tokenizer::Open(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const io::FileInfo info, fs.Stat(path));
  std::string file(path);
  if (info.kind == io::FileKind::kFolder) {
    file = io::JoinPath(path, "tokenizer.json");
    AQT_ASSIGN_OR_RETURN(const bool has_json, io::Exists(fs, file));
    if (!has_json) file = io::JoinPath(path, "vocab.txt");
    AQT_ASSIGN_OR_RETURN(const bool has_file, io::Exists(fs, file));
    if (!has_file) {
      return absl::NotFoundError(absl::StrCat(io::Printable(path),
                                              " has neither tokenizer.json nor vocab.txt; save the "
                                              "tokenizer with transformers (use_fast=True)"));
    }
  }
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, file, kMaxFileBytes));
  const std::string name = io::Printable(file);
  const std::string config_file = io::JoinPath(io::FolderOf(file), "tokenizer_config.json");
  std::string config;
  AQT_ASSIGN_OR_RETURN(const bool has_config, io::Exists(fs, config_file));
  if (has_config) {
    AQT_ASSIGN_OR_RETURN(config, io::ReadFile(fs, config_file, kMaxConfigBytes));
  }
  return absl::EndsWith(file, ".txt") ? FromVocabulary(text, config, name) : FromJson(text, name, config);
}

}  // namespace aqt::tokenizers
