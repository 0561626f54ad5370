#ifndef AQT_MODELS_TEXT_TOKEN_CLASSIFIER_H_
#define AQT_MODELS_TEXT_TOKEN_CLASSIFIER_H_

// From a text to the classes of its tokens, such as names and places, with nothing but a model's folder:
//
//   AQT_ASSIGN_OR_RETURN(const models::TokenClassifier tagger, models::TokenClassifier::Open(fs, "bert-base-NER"));
//   AQT_ASSIGN_OR_RETURN(const models::TokenClasses classes, tagger.Classify(text));
//   for (const models::TokenClass& token : classes.found) {
//     std::cout << text.substr(token.begin, token.end - token.begin) << " " << tagger.labels()[token.label] << "\n";
//   }

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/models/head.h"
#include "aqt/models/text/text_runner.h"
#include "aqt/tokenizers/tokenizer.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

// A token of a text.
struct TokenClass {
  uint32_t begin = 0, end = 0;  // its bytes [begin, end) of the text
  int32_t id = 0;
  int64_t label = 0;          // the number of the largest logit
  float score = 0;            // that of the label
  std::vector<float> scores;  // those of all labels: the softmax of the logits
};

struct TokenClasses {
  std::vector<TokenClass> found;  // all tokens but the special ones, in the order of the text
  int64_t tokens = 0;             // that were read, special ones included
  int64_t truncated = 0;          // that were cut off
};

// The classes of a text whose tokens have these logits, [tokens, labels] or longer. The encoding needs its offsets.
TokenClasses ClassesOfTokens(const Head& head, const tokenizers::Encoding& encoding, absl::Span<const float> logits);

// The tokenizer, the encoder and the head of a folder. Thread-safe; cheap to copy.
class TokenClassifier {
 public:
  // The weights are quantized as `config` says; an empty one computes in floating point. FailedPrecondition if the
  // folder has no classes of tokens; the errors of ModelFromFolder and TextTokens::Open.
  static absl::StatusOr<TokenClassifier> Open(const io::FileSystem& fs, absl::string_view folder,
                                              const InjectConfig& config = {});

  const EncoderModel& model() const { return runner_.model(); }
  const std::vector<std::string>& labels() const { return model().head()->labels; }
  // The longest text in tokens.
  int64_t max_length() const { return runner_.tokens().max_length(); }

  // A text that is too long is cut off. The errors of TextRunner::Run.
  absl::StatusOr<TokenClasses> Classify(absl::string_view text) const;

 private:
  explicit TokenClassifier(TextRunner runner) : runner_(std::move(runner)) {}
  TextRunner runner_;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_TEXT_TOKEN_CLASSIFIER_H_
