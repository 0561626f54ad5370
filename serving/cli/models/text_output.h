#ifndef AQT_SERVING_CLI_MODELS_TEXT_OUTPUT_H_
#define AQT_SERVING_CLI_MODELS_TEXT_OUTPUT_H_

// What `aqt run` prints about a text.

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/models/head.h"
#include "aqt/models/text/text_classifier.h"
#include "aqt/models/text/token_classifier.h"
#include "serving/tools/report_json-inl.h"

namespace aqt::serving {

struct TextOutput {
  std::string text;   // one line or several, each with its end
  ReportJson fields;  // of the text's object in a report
};

// The numbers of an embedding, in one line.
TextOutput EmbeddingOutput(absl::Span<const float> embedding);
// One line:
//   the score, for one class; the scores, for a regression with several outputs
//   the best label and its score, with a tab between them
//   for classes that do not exclude each other, the same for each with a score of at least 0.5, the best first
TextOutput ClassesOutput(const models::Head& head, const models::TextClasses& classes);
// A line for each token, then an empty one: the token as it is in `text`, its label and the score, with tabs between.
TextOutput TokensOutput(const models::Head& head, absl::string_view text, const models::TokenClasses& classes);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_TEXT_OUTPUT_H_
