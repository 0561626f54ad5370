#ifndef AQT_TOKENIZERS_TEXT_PATTERN_H_
#define AQT_TOKENIZERS_TEXT_PATTERN_H_

// What Split and Replace look for: a string or a regular expression.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/io/json_fields.h"
#include "aqt/tokenizers/text/text.h"

namespace aqt::tokenizers {

// The places of the matches in a text, in order and apart: [first, second).
using Matches = std::vector<std::pair<uint32_t, uint32_t>>;

class Pattern {
 public:
  virtual ~Pattern() = default;
  // Appends the matches. Takes time in proportion to the text.
  virtual void Find(absl::Span<const Char> text, Matches& matches) const = 0;
};

// A value such as {"String": " "} or {"Regex": "\\s+"}.
absl::StatusOr<std::unique_ptr<const Pattern>> ParsePattern(const io::JsonValue& json, absl::string_view where);

// Regular expressions of Perl's kind (leftmost, and the first alternative that matches): alternatives, groups without
// capture, (?i: ), classes, \s \d \w \p{L} and other categories, the quantifiers ? * + {m,n} and their lazy forms, and
// a look-ahead for one character. Everything else is refused by name.
absl::StatusOr<std::unique_ptr<const Pattern>> ParseRegex(absl::string_view regex);

// The pattern of GPT-2, which RoBERTa and ModernBERT use. Its matches cover the text.
const Pattern& Gpt2Pattern();
inline constexpr char kGpt2Regex[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_TEXT_PATTERN_H_
