#include "aqt/models/token_classifier.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/models/head.h"
#include "aqt/tokenizers/tokenizer.h"

namespace aqt::models {

absl::StatusOr<TokenClassifier> TokenClassifier::Open(const io::FileSystem& fs, absl::string_view folder,
                                                      const InjectConfig& config) {
  AQT_ASSIGN_OR_RETURN(TextRunner runner, TextRunner::Open(fs, folder, /*of_tokens=*/true, config));
  return TokenClassifier(std::move(runner));
}

absl::StatusOr<TokenClasses> TokenClassifier::Classify(absl::string_view text) const {
  AQT_ASSIGN_OR_RETURN(const TextRunner::Result result, runner_.Run(text));
  const tokenizers::Encoding& encoding = result.encoding;
  const size_t labels = model().head()->labels.size();
  TokenClasses classes;
  classes.tokens = static_cast<int64_t>(encoding.ids.size());
  classes.truncated = encoding.num_truncated;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.special_tokens_mask[i] != 0) continue;
    const absl::Span<const float> logits = result.logits.View<float>().subspan(i * labels, labels);
    TokenClass token;
    token.begin = encoding.offsets[i].first;
    token.end = encoding.offsets[i].second;
    token.id = encoding.ids[i];
    token.label = absl::c_max_element(logits) - logits.begin();
    token.scores = Scores(logits, model().head()->scores);
    token.score = token.scores[token.label];
    classes.found.push_back(std::move(token));
  }
  return classes;
}

}  // namespace aqt::models
