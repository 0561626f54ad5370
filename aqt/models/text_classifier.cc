#include "aqt/models/text_classifier.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "aqt/core/status_macros.h"
#include "aqt/models/head.h"

namespace aqt::models {

absl::StatusOr<TextClassifier> TextClassifier::Open(const io::FileSystem& fs, absl::string_view folder,
                                                    const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(TextRunner runner, TextRunner::Open(fs, folder, /*of_tokens=*/false, config));
  return TextClassifier(std::move(runner));
}

absl::StatusOr<TextClasses> TextClassifier::Classify(absl::string_view text,
                                                     std::optional<absl::string_view> second) const {
  AQT_ASSIGN_OR_RETURN(const TextRunner::Result result, runner_.Run(text, second));
  const absl::Span<const float> logits = result.logits.View<float>();
  TextClasses classes;
  classes.logits.assign(logits.begin(), logits.end());
  classes.scores = Scores(logits, model().head()->scores);
  classes.best = absl::c_max_element(logits) - logits.begin();
  classes.tokens = static_cast<int64_t>(result.encoding.ids.size());
  classes.truncated = result.encoding.num_truncated;
  return classes;
}

}  // namespace aqt::models
