#ifndef AQT_TOKENIZERS_VOCABULARIES_MODEL_H_
#define AQT_TOKENIZERS_VOCABULARIES_MODEL_H_

// The third step of a tokenizer: each piece becomes tokens of the vocabulary.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/json_fields.h"
#include "aqt/tokenizers/text/text.h"

namespace aqt::tokenizers {

struct Token {
  int32_t id;
  uint32_t begin;  // [begin, end): its code points in the piece
  uint32_t end;
  bool is_text = true;  // false for a token that stands for an unknown text, or for one of its bytes
};

using Vocabulary = std::vector<std::pair<std::string, int32_t>>;

// Longer tokens are refused, because the time for a text grows with the longest one.
inline constexpr size_t kMaxTokenBytes = 1024;

class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of a piece. InvalidArgument for a piece that the vocabulary cannot express.
  virtual absl::Status Tokenize(absl::Span<const Char> piece, std::vector<Token>& tokens) const = 0;
  // The id of a token, or -1.
  virtual int32_t Find(absl::string_view token) const = 0;
  // The number of tokens.
  virtual int64_t size() const = 0;
  virtual int64_t largest_id() const = 0;
};

// The object "model" of tokenizer.json.
absl::StatusOr<std::unique_ptr<const Model>> ParseModel(const io::JsonValue& json, const std::string& where);

// ---- the kinds, each in a file of its own

struct WordPieceOptions {
  std::string unknown = "[UNK]";
  std::string continuing_prefix = "##";
  int64_t max_code_points = 100;  // of a word; longer ones are unknown
};
absl::StatusOr<std::unique_ptr<const Model>> MakeWordPiece(Vocabulary vocabulary, const WordPieceOptions& options);
absl::StatusOr<std::unique_ptr<const Model>> ParseWordPiece(const io::JsonValue& json, const std::string& where);
absl::StatusOr<std::unique_ptr<const Model>> ParseBpe(const io::JsonValue& json, const std::string& where);
absl::StatusOr<std::unique_ptr<const Model>> ParseUnigram(const io::JsonValue& json, const std::string& where);

// The field "vocab" of WordPiece and BPE: an object that gives each token its id.
absl::StatusOr<Vocabulary> ParseVocabulary(const io::JsonValue& json, const std::string& where);

int64_t LargestId(const Vocabulary& vocabulary);

// The UTF-8 text of a piece, and for each of its bytes and its end the code point that it belongs to.
struct PieceBytes {
  std::string bytes;
  std::vector<uint32_t> code_points;

  explicit PieceBytes(absl::Span<const Char> piece);
};

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_VOCABULARIES_MODEL_H_
