#ifndef AQT_SERVING_CLI_MODELS_GIVEN_TEXT_H_
#define AQT_SERVING_CLI_MODELS_GIVEN_TEXT_H_

// What `aqt run` is asked about: texts and pairs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/models/head.h"
#include "serving/cli/flags/flags.h"

namespace aqt::serving {

// A text, or a pair.
struct GivenText {
  std::string text;
  std::optional<std::string> second;

  // Its length in the input, with an end.
  int64_t bytes() const {
    return static_cast<int64_t>(text.size() + (second.has_value() ? second->size() + 1 : 0)) + 1;
  }
};

// The lines of a file of texts. Lines may end in \r\n, as other systems write them. A byte order mark at the beginning
// is left out.
std::vector<std::string> LinesOf(absl::string_view content);

// The texts of a call. The first of `texts` are those of --text, with those of --pair; the others are lines of --file.
// With a head of texts, a line with a tab is a pair. `head` is null for a model of embeddings. InvalidArgument if there
// is not one --pair for each --text, if a pair is given to a model of single texts, and if a cross-encoder gets a
// single text.
absl::StatusOr<std::vector<GivenText>> GivenTexts(const std::vector<std::string>& texts, const models::Head* head,
                                                  const Flags& flags);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_MODELS_GIVEN_TEXT_H_
