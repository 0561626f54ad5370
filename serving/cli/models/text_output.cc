#include "serving/cli/models/text_output.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/io/printable.h"

namespace aqt::serving {
namespace {

std::string Number(float x) { return absl::StrFormat("%.9g", x); }

std::string Numbers(absl::Span<const float> numbers) {
  return absl::StrJoin(numbers, " ", [](std::string* out, float x) { absl::StrAppend(out, Number(x)); });
}

std::string Label(const models::Head& head, int64_t label) { return io::PrintableLine(head.labels[label]); }

std::string Classes(const models::Head& head, const models::TextClasses& classes) {
  const bool is_regression = head.scores == models::ScoreFunction::kIdentity && !head.cross_encoder;
  if (head.labels.size() == 1 || is_regression) return Numbers(classes.scores);
  std::vector<int64_t> shown = {classes.best};
  if (head.scores == models::ScoreFunction::kSigmoid) {
    shown.clear();
    for (size_t i = 0; i < classes.scores.size(); ++i) {
      if (classes.scores[i] >= 0.5f) shown.push_back(static_cast<int64_t>(i));
    }
    std::stable_sort(shown.begin(), shown.end(),
                     [&](int64_t a, int64_t b) { return classes.scores[a] > classes.scores[b]; });
  }
  return absl::StrJoin(shown, "\t", [&](std::string* out, int64_t i) {
    absl::StrAppend(out, Label(head, i), "\t", Number(classes.scores[i]));
  });
}

}  // namespace

TextOutput EmbeddingOutput(absl::Span<const float> embedding) {
  return {Numbers(embedding) + "\n", {{"embedding", std::vector<float>(embedding.begin(), embedding.end())}}};
}

TextOutput ClassesOutput(const models::Head& head, const models::TextClasses& classes) {
  return {Classes(head, classes) + "\n",
          {{"label", io::PrintableLine(head.labels[classes.best])}, {"scores", classes.scores}}};
}

TextOutput TokensOutput(const models::Head& head, absl::string_view text, const models::TokenClasses& classes) {
  TextOutput output;
  ReportJson found = ReportJson::array();
  for (const models::TokenClass& token : classes.found) {
    const std::string piece = io::PrintableLine(text.substr(token.begin, token.end - token.begin));
    absl::StrAppend(&output.text, piece, "\t", Label(head, token.label), "\t", Number(token.score), "\n");
    found.push_back(
        {{"begin", token.begin}, {"end", token.end}, {"label", Label(head, token.label)}, {"score", token.score}});
  }
  output.text += "\n";
  output.fields = {{"found", std::move(found)}};
  return output;
}

}  // namespace aqt::serving
