#include "serving/cli/models/given_text.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aqt::serving {

std::vector<std::string> LinesOf(absl::string_view content) {
  absl::ConsumePrefix(&content, "\xef\xbb\xbf");
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    lines.emplace_back(line);
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

absl::StatusOr<std::vector<GivenText>> GivenTexts(const std::vector<std::string>& texts, const models::Head* head,
                                                  const Flags& flags) {
  const bool knows_pairs = head != nullptr && !head->OfTokens();
  if (!flags.pairs.empty() && !knows_pairs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model ", head == nullptr ? "embeds" : "classifies the tokens of", " single texts; leave --pair out"));
  }
  if (!flags.pairs.empty() && flags.pairs.size() != flags.texts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", flags.texts.size(), " --text and ", flags.pairs.size(),
                                                   " --pair; give one --pair for each --text"));
  }
  std::vector<GivenText> given;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t tab = texts[i].find('\t');
    if (i < flags.texts.size()) {
      given.push_back({texts[i], flags.pairs.empty() ? std::nullopt : std::optional(flags.pairs[i])});
    } else if (!knows_pairs || tab == std::string::npos) {
      given.push_back({texts[i], std::nullopt});
    } else {
      given.push_back({texts[i].substr(0, tab), texts[i].substr(tab + 1)});
    }
    if (knows_pairs && head->cross_encoder && !given.back().second.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("text ", i + 1, " is alone, and the model scores pairs; give --text TEXT --pair TEXT, or a ",
                       "file with a tab between the texts of a line"));
    }
  }
  return given;
}

}  // namespace aqt::serving
