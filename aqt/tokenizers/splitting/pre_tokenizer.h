#ifndef AQT_TOKENIZERS_SPLITTING_PRE_TOKENIZER_H_
#define AQT_TOKENIZERS_SPLITTING_PRE_TOKENIZER_H_

// The second step of a tokenizer: the text is split into pieces, which the model then turns into tokens one by one.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/io/json_fields.h"
#include "aqt/tokenizers/text/text.h"

namespace aqt::tokenizers {

struct Piece {
  static constexpr int32_t kNoToken = -1;

  uint32_t begin = 0;  // [begin, end): its code points in Pieces::text
  uint32_t end = 0;
  int32_t token = kNoToken;  // the id of an added token: this piece is finished
  bool first = false;        // whether it begins where the given text begins
};

struct Pieces {
  Text text;
  std::vector<Piece> pieces;  // none is empty
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits all pieces that are not finished. May change their text.
  virtual void Split(Pieces& pieces) const = 0;
};

// The object "pre_tokenizer" of tokenizer.json, or one in a Sequence. InvalidArgument names what is not read.
absl::StatusOr<std::unique_ptr<const PreTokenizer>> ParsePreTokenizer(const io::JsonValue& json,
                                                                      const std::string& where);

std::unique_ptr<const PreTokenizer> MakeBertPreTokenizer();

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_SPLITTING_PRE_TOKENIZER_H_
