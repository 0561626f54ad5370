#ifndef AQT_MODELS_TEXT_TEXT_TOKENS_H_
#define AQT_MODELS_TEXT_TEXT_TOKENS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/tokenizers/tokenizer.h"

namespace aqt::models {

// The tokenizer of a model's folder, checked against the model. Immutable; cheap to copy.
class TextTokens {
 public:
  // The errors of Tokenizer::Open; Unimplemented for a folder whose texts are changed to lower case outside of the
  // tokenizer; InvalidArgument, with both numbers, if the tokenizer has ids that the model does not know.
  static absl::StatusOr<TextTokens> Open(const io::FileSystem& fs, absl::string_view folder, const EncoderModel& model);

  // The tokens of a text or a pair, at most max_length(); more are cut off. A prompt of the folder (Pooling::prompt) is
  // put before the text, and counts as part of it. With `offsets` also the bytes of each token; those of a single text
  // without the prompt, whose tokens have (0, 0). InvalidArgument if there are none, or if a token has the number of a
  // segment that a model with segments does not know; the errors of Tokenizer::Encode.
  absl::StatusOr<tokenizers::Encoding> Encode(absl::string_view text,
                                              std::optional<absl::string_view> second = std::nullopt,
                                              bool offsets = false) const;

  const tokenizers::Tokenizer& tokenizer() const { return *tokenizer_; }
  // The longest text in tokens: what the model and the folder allow (Pooling::max_length).
  int64_t max_length() const { return max_length_; }

 private:
  TextTokens() = default;
  std::shared_ptr<const tokenizers::Tokenizer> tokenizer_;
  int64_t max_length_ = 0;
  int64_t types_ = 0;
  std::string prompt_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_TEXT_TOKENS_H_
