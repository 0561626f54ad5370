#include "aqt/models/text/text_classifier.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "aqt/core/status_macros.h"

namespace aqt::models {

TextClasses ClassesOfText(const Head& head, absl::Span<const float> logits) {
  TextClasses classes;
  classes.logits.assign(logits.begin(), logits.end());
  classes.scores = Scores(logits, head.scores);
  classes.best = absl::c_max_element(logits) - logits.begin();
  return classes;
}

absl::StatusOr<TextClassifier> TextClassifier::Open(const io::FileSystem& fs, absl::string_view folder,
                                                    const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(TextRunner runner, TextRunner::Open(fs, folder, TextRunner::Output::kClassesOfText, config));
  return TextClassifier(std::move(runner));
}

absl::StatusOr<TextClasses> TextClassifier::Classify(absl::string_view text,
                                                     std::optional<absl::string_view> second) const {
  AQT_ASSIGN_OR_RETURN(const TextRunner::Result result, runner_.Run(text, second));
  TextClasses classes = ClassesOfText(*model().head(), result.output.View<float>());
  classes.tokens = static_cast<int64_t>(result.encoding.ids.size());
  classes.truncated = result.encoding.num_truncated;
  return classes;
}

}  // namespace aqt::models
