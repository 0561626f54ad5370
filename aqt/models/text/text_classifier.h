#ifndef AQT_MODELS_TEXT_TEXT_CLASSIFIER_H_
#define AQT_MODELS_TEXT_TEXT_CLASSIFIER_H_

// From texts, or pairs of texts, to scores of classes, with nothing but a model's folder:
//
//   AQT_ASSIGN_OR_RETURN(const models::TextClassifier classifier, models::TextClassifier::Open(fs, "sst2"));
//   AQT_ASSIGN_OR_RETURN(const models::TextClasses classes, classifier.Classify("a sentence"));
//   const std::string& label = classifier.labels()[classes.best];
//
// A cross-encoder scores pairs:
//
//   AQT_ASSIGN_OR_RETURN(const models::TextClasses classes, reranker.Classify("a question", "a passage"));
//   const float score = classes.scores[0];

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/models/head.h"
#include "aqt/models/text/text_runner.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

struct TextClasses {
  std::vector<float> scores;  // one for each label, by Head::scores
  std::vector<float> logits;
  int64_t best = 0;       // the number of the largest logit
  int64_t tokens = 0;     // that were read, special ones included
  int64_t truncated = 0;  // that were cut off
};

// The classes of a text with these logits; without its numbers of tokens.
TextClasses ClassesOfText(const Head& head, absl::Span<const float> logits);

// The tokenizer, the encoder and the head of a folder. Thread-safe; cheap to copy.
class TextClassifier {
 public:
  // The weights are quantized as `config` says; an empty one computes in floating point. FailedPrecondition if the
  // folder has no classes of texts; the errors of ModelFromFolder and TextTokens::Open.
  static absl::StatusOr<TextClassifier> Open(const io::FileSystem& fs, absl::string_view folder,
                                             const InjectConfig& config = {});

  const EncoderModel& model() const { return runner_.model(); }
  const std::vector<std::string>& labels() const { return model().head()->labels; }
  // The longest text or pair in tokens.
  int64_t max_length() const { return runner_.tokens().max_length(); }

  // A text or a pair that is too long is cut off; of a pair the longer text first, unless the tokenizer says otherwise.
  // The errors of TextRunner::Run.
  absl::StatusOr<TextClasses> Classify(absl::string_view text,
                                       std::optional<absl::string_view> second = std::nullopt) const;

 private:
  explicit TextClassifier(TextRunner runner) : runner_(std::move(runner)) {}
  TextRunner runner_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_TEXT_CLASSIFIER_H_
