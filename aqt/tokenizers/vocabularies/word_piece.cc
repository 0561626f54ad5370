// WordPiece: the longest token of the vocabulary that a word begins with, then the longest continuation, and so on.

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "aqt/tokenizers/vocabularies/model.h"
#include "aqt/tokenizers/vocabularies/trie.h"

namespace aqt::tokenizers {
namespace {

// The continuations, without their prefix.
Vocabulary Continuations(const Vocabulary& vocabulary, absl::string_view prefix) {
  Vocabulary result;
  for (const auto& [token, id] : vocabulary) {
    if (absl::StartsWith(token, prefix)) result.emplace_back(token.substr(prefix.size()), id);
  }
  return result;
}

class WordPiece final : public Model {
 public:
  WordPiece(Vocabulary vocabulary, const WordPieceOptions& options)
      : size_(static_cast<int64_t>(vocabulary.size())),
        largest_id_(LargestId(vocabulary)),
        max_code_points_(options.max_code_points),
        continuations_(Continuations(vocabulary, options.continuing_prefix)),
        tokens_(std::move(vocabulary)),
        unknown_(tokens_.Find(options.unknown)) {}

  absl::Status Tokenize(absl::Span<const Char> piece, std::vector<Token>& tokens) const override {
    const size_t first = tokens.size();
    if (static_cast<int64_t>(piece.size()) > max_code_points_ || !TokenizeKnown(piece, tokens)) {
      tokens.resize(first);
      tokens.push_back({unknown_, 0, static_cast<uint32_t>(piece.size()), /*is_text=*/false});
    }
    return absl::OkStatus();
  }
  int32_t Find(absl::string_view token) const override { return tokens_.Find(token); }
  int64_t size() const override { return size_; }
  int64_t largest_id() const override { return largest_id_; }

 private:
  bool TokenizeKnown(absl::Span<const Char> piece, std::vector<Token>& tokens) const {
    const PieceBytes word(piece);
    for (size_t begin = 0; begin < word.bytes.size();) {
      size_t size = 0;
      int32_t id = Trie::kNone;
      const Trie& trie = begin == 0 ? tokens_ : continuations_;
      trie.VisitPrefixes(absl::string_view(word.bytes).substr(begin), [&](size_t s, int32_t value) {
        size = s;
        id = value;
      });
      if (id == Trie::kNone) return false;
      tokens.push_back({id, word.code_points[begin], word.code_points[begin + size]});
      begin += size;
    }
    return true;
  }

  const int64_t size_;
  const int64_t largest_id_;
  const int64_t max_code_points_;
  const Trie continuations_;
  const Trie tokens_;
  const int32_t unknown_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Model>> MakeWordPiece(Vocabulary vocabulary, const WordPieceOptions& options) {
  auto model = std::make_unique<const WordPiece>(std::move(vocabulary), options);
  if (model->Find(options.unknown) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the token for unknown words, ", io::Printable(options.unknown),
                                                   ", is not in the vocabulary; add it"));
  }
  return model;
}

absl::StatusOr<std::unique_ptr<const Model>> ParseWordPiece(const io::JsonValue& json, const std::string& where) {
  io::JsonFields fields(json, where);
  fields.Any("type");
  WordPieceOptions options;
  options.unknown = fields.Text("unk_token");
  options.continuing_prefix = fields.Text("continuing_subword_prefix");
  options.max_code_points = fields.Int("max_input_chars_per_word");
  const io::JsonValue& vocab = fields.Any("vocab");
  AQT_RETURN_IF_ERROR(fields.Finish());
  AQT_ASSIGN_OR_RETURN(Vocabulary vocabulary, ParseVocabulary(vocab, where));
  auto model = MakeWordPiece(std::move(vocabulary), options);
  if (!model.ok()) return Annotate(model.status(), where);
  return model;
}

}  // namespace aqt::tokenizers
