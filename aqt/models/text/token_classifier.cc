#include "aqt/models/text/token_classifier.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "aqt/core/status_macros.h"

namespace aqt::models {

TokenClasses ClassesOfTokens(const Head& head, const tokenizers::Encoding& encoding, absl::Span<const float> logits) {
  const size_t labels = head.labels.size();
  TokenClasses classes;
  classes.tokens = static_cast<int64_t>(encoding.ids.size());
  classes.truncated = encoding.num_truncated;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.special_tokens_mask[i] != 0) continue;
    const absl::Span<const float> own = logits.subspan(i * labels, labels);
    TokenClass token;
    token.begin = encoding.offsets[i].first;
    token.end = encoding.offsets[i].second;
    token.id = encoding.ids[i];
    token.label = absl::c_max_element(own) - own.begin();
    token.scores = Scores(own, head.scores);
    token.score = token.scores[token.label];
    classes.found.push_back(std::move(token));
  }
  return classes;
}

absl::StatusOr<TokenClassifier> TokenClassifier::Open(const io::FileSystem& fs, absl::string_view folder,
                                                      const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(TextRunner runner, TextRunner::Open(fs, folder, TextRunner::Output::kClassesOfTokens, config));
  return TokenClassifier(std::move(runner));
}

absl::StatusOr<TokenClasses> TokenClassifier::Classify(absl::string_view text) const {
  AQT_ASSIGN_OR_RETURN(const TextRunner::Result result, runner_.Run(text));
  return ClassesOfTokens(*model().head(), result.encoding, result.output.View<float>());
}

}  // namespace aqt::models
