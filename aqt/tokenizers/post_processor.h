#ifndef AQT_TOKENIZERS_POST_PROCESSOR_H_
#define AQT_TOKENIZERS_POST_PROCESSOR_H_

// The last step of a tokenizer: special tokens are put around one text or a pair, and each token gets its type.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/json_fields.h"
#include "aqt/tokenizers/vocabularies/model.h"

namespace aqt::tokenizers {

// One part of the result: special tokens, or the tokens of a text.
struct TemplatePart {
  enum Kind : uint8_t { kSpecial, kFirst, kSecond };
  Kind kind = kFirst;
  int32_t type_id = 0;
  std::vector<int32_t> ids;  // kSpecial
};
using Template = std::vector<TemplatePart>;

// How many special tokens a template has.
int64_t NumSpecial(const Template& parts);

// Byte-level tokenizers count the space before a word to its token; this takes it from the token's place in the text.
struct TrimOffsets {
  bool add_prefix_space = true;
};

struct PostProcessor {
  Template single = {{TemplatePart::kFirst, 0, {}}};
  Template pair = {{TemplatePart::kFirst, 0, {}}, {TemplatePart::kSecond, 1, {}}};
  std::vector<TrimOffsets> trims;
};

// The object "post_processor" of tokenizer.json, or null. Ids of special tokens must be below `num_ids`.
absl::StatusOr<PostProcessor> ParsePostProcessor(const io::JsonValue& json, int64_t num_ids, const std::string& where);

// [CLS] A [SEP] B [SEP], where B and what follows have type 1.
PostProcessor BertPostProcessor(int32_t cls, int32_t sep);

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_POST_PROCESSOR_H_
