#include "aqt/tokenizers/vocabularies/model.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"

namespace aqt::tokenizers {
namespace {

// Old files do not name the type.
absl::string_view GuessType(const io::JsonValue& json) {
  if (!json["merges"].is_null()) return "BPE";
  if (!json["max_input_chars_per_word"].is_null()) return "WordPiece";
  return json["vocab"].is_array() ? "Unigram" : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Model>> ParseModel(const io::JsonValue& json, const std::string& where) {
  io::JsonFields fields(json, where);
  const std::string name = fields.Any("type").is_null() ? std::string(GuessType(json)) : fields.Text("type");
  if (name == "WordPiece") return ParseWordPiece(json, where);
  if (name == "BPE") return ParseBpe(json, where);
  if (name == "Unigram") return ParseUnigram(json, where);
  fields.Fail("type", "read are BPE, Unigram and WordPiece");
  return fields.Finish();
}

absl::StatusOr<Vocabulary> ParseVocabulary(const io::JsonValue& json, const std::string& where) {
  if (!json.is_object()) return io::WrongField(where, "vocab", json, "expected an object of tokens with their ids");
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  for (const auto& [token, id] : json.object()) {
    if (!id.is_unsigned() || id.integer() >= uint64_t{std::numeric_limits<int32_t>::max()}) {
      return io::WrongField(where, absl::StrCat("vocab[", io::Printable(token), "]"), id,
                            "expected an id below 2147483647");
    }
    if (token.size() > kMaxTokenBytes) {
      return io::WrongField(
          where, absl::StrCat("vocab[", io::Printable(token), "]"), id,
          absl::StrCat("this token has ", token.size(), " bytes; at most ", kMaxTokenBytes, " are read"));
    }
    vocabulary.emplace_back(token, static_cast<int32_t>(id.integer()));
  }
  return vocabulary;
}

int64_t LargestId(const Vocabulary& vocabulary) {
  int64_t largest = -1;
  for (const auto& [token, id] : vocabulary) largest = std::max<int64_t>(largest, id);
  return largest;
}

PieceBytes::PieceBytes(absl::Span<const Char> piece) {
  bytes.reserve(piece.size());
  code_points.reserve(piece.size() + 1);
  for (size_t i = 0; i < piece.size(); ++i) {
    AppendUtf8(piece[i].code, bytes);
    code_points.resize(bytes.size(), static_cast<uint32_t>(i));
  }
  code_points.push_back(static_cast<uint32_t>(piece.size()));
}

}  // namespace aqt::tokenizers
