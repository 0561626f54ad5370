#ifndef AQT_TOKENIZERS_TOKENIZER_PARTS_H_
#define AQT_TOKENIZERS_TOKENIZER_PARTS_H_

// What a Tokenizer consists of.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "aqt/tokenizers/added_tokens.h"
#include "aqt/tokenizers/post_processor.h"
#include "aqt/tokenizers/splitting/normalizer.h"
#include "aqt/tokenizers/splitting/pre_tokenizer.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/tokenizers/vocabularies/model.h"

namespace aqt::tokenizers {

struct Truncation {
  enum Strategy : uint8_t { kLongestFirst, kOnlyFirst, kOnlySecond };
  std::optional<int64_t> max_length;
  Strategy strategy = kLongestFirst;
  bool left = false;  // tokens at the beginning go
};

struct Tokenizer::Parts {
  std::unique_ptr<const Normalizer> normalizer;       // may be null
  std::unique_ptr<const PreTokenizer> pre_tokenizer;  // may be null
  std::unique_ptr<const Model> model;
  AddedTokenFinder raw_tokens;         // in the text as it was given
  AddedTokenFinder normalized_tokens;  // in the normalized text
  absl::flat_hash_map<std::string, int32_t> added;
  PostProcessor post_processor;
  Truncation truncation;
  Padding padding;
  int64_t num_ids = 0;

  // Fills raw_tokens, normalized_tokens, added and num_ids. The normalizer and the model must be there.
  absl::Status SetAddedTokens(const std::vector<AddedToken>& tokens, int64_t largest_model_id);
};

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_TOKENIZER_PARTS_H_
