#ifndef AQT_MODELS_TEXT_TEXT_RUNNER_H_
#define AQT_MODELS_TEXT_TEXT_RUNNER_H_

// Runs one output of a folder's model on single texts or pairs.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/models/text/text_tokens.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

// Thread-safe; cheap to copy.
class TextRunner {
 public:
  enum class Output : uint8_t { kEmbedding, kClassesOfText, kClassesOfTokens };

  // `config` is that of EncoderModel::Serve; `given` are the weights, instead of those of the folder.
  // FailedPrecondition if the folder does not have the head of this output; the errors of ModelFromFolder and
  // TextTokens::Open.
  static absl::StatusOr<TextRunner> Open(const io::FileSystem& fs, absl::string_view folder, Output output,
                                         const InjectConfig& config, const GivenWeights* given = nullptr);

  const EncoderModel& model() const;
  const TextTokens& tokens() const;

  struct Result {
    tokenizers::Encoding encoding;
    Array output;  // kEmbeddings or kLogits of a batch of one; logits of tokens may be longer than the text
  };
  // The text is computed alone. It is padded (padded_length.h), unless `config` has scales that padding could change
  // (WhyPaddingCounts in transforms/row_dependence.h). Compiles a program for the first text of a length. The errors of
  // TextTokens::Encode.
  absl::StatusOr<Result> Run(absl::string_view text, std::optional<absl::string_view> second = std::nullopt) const;

 private:
  struct Impl;
  explicit TextRunner(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_TEXT_RUNNER_H_
