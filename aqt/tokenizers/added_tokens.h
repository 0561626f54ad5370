#ifndef AQT_TOKENIZERS_ADDED_TOKENS_H_
#define AQT_TOKENIZERS_ADDED_TOKENS_H_

// Tokens that are found in the text itself, before and after it is normalized, such as [MASK].

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/io/json_fields.h"
#include "aqt/tokenizers/splitting/normalizer.h"
#include "aqt/tokenizers/splitting/pre_tokenizer.h"
#include "aqt/tokenizers/text/text.h"
#include "aqt/tokenizers/vocabularies/model.h"

namespace aqt::tokenizers {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // not beside a letter
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // takes the spaces after it
  bool normalized = false;   // is looked for in the normalized text, in its own normalized form
};

// The list "added_tokens" of tokenizer.json. Their ids must be those that the package would give: that of the model, or
// the next free one.
absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const io::JsonValue& json, const Model& model,
                                                         const std::string& where);

// Finds tokens in a text: of those that begin first, the longest.
class AddedTokenFinder {
 public:
  // InvalidArgument for two tokens with one text, or an empty one.
  static absl::StatusOr<AddedTokenFinder> Make(std::vector<std::pair<AddedToken, std::u32string>> tokens);

  // Appends to `out` the parts of text[0, text.size()): tokens, and the text between them.
  void Split(const Text& text, std::vector<Piece>& out) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Match {
    uint32_t begin;
    uint32_t end;
    int token;
  };
  // The longest token at `begin`; its end is `begin` if there is none.
  Match FindAt(const Text& text, uint32_t begin) const;
  // Widens a match by spaces. False if the token must be a word of its own, and is not.
  bool Adjust(const Text& text, uint32_t done, Match& match) const;

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<uint64_t, int> children_;  // node << 32 | code -> node
  std::vector<int> token_of_node_;
  std::vector<bool> begins_token_;  // by the first code point, modulo its size
};

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_ADDED_TOKENS_H_
