#ifndef AQT_MODELS_TEXT_RUNNER_H_
#define AQT_MODELS_TEXT_RUNNER_H_

// Runs one output of a folder's model on single texts or pairs.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/models/text_tokens.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

// Thread-safe; cheap to copy.
class TextRunner {
 public:
  // The folder must have a head of this kind: FailedPrecondition otherwise. The errors of ModelFromFolder and
  // TextTokens::Open.
  static absl::StatusOr<TextRunner> Open(const io::FileSystem& fs, absl::string_view folder, bool of_tokens,
                                         const InjectConfig& config);

  const EncoderModel& model() const;
  const TextTokens& tokens() const;

  struct Result {
    tokenizers::Encoding encoding;
    Array logits;  // those of a batch of one; longer than the text if they are of tokens
  };
  // The text is computed alone, padded as padded_length.h says. Compiles a program for the first text of a length. The
  // errors of TextTokens::Encode; InvalidArgument if the tokenizer numbers more texts than the model knows.
  absl::StatusOr<Result> Run(absl::string_view text, std::optional<absl::string_view> second = std::nullopt) const;

 private:
  struct Impl;
  explicit TextRunner(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_RUNNER_H_
