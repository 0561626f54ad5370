#ifndef AQT_TOKENIZERS_TEXT_REGEX_PROGRAM_H_
#define AQT_TOKENIZERS_TEXT_REGEX_PROGRAM_H_

// A regular expression as a small program, and its parser.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aqt::tokenizers {

// A set of code points.
struct CodeSet {
  uint32_t flags = 0;                  // CodeFlags of which one is enough
  std::vector<uint32_t> absent_flags;  // for each: none of them is enough (\S)
  std::vector<std::pair<char32_t, char32_t>> ranges;
  bool class_word = false;      // \w in brackets, which lacks some characters of the \w outside
  bool class_not_word = false;  // \W in brackets
  bool negated = false;

  bool Has(char32_t code) const;
  bool HasWithoutNegation(char32_t code) const;
};

struct RegexNode {
  enum Kind : uint8_t { kSet, kSequence, kAlternatives, kRepeat, kLookAhead };
  Kind kind = kSequence;
  CodeSet set;                      // kSet, kLookAhead
  std::vector<RegexNode> children;  // one for kRepeat
  int min = 0;                      // kRepeat
  int max = 0;                      // kUnlimited for no limit
  bool greedy = true;
  bool negative = false;  // kLookAhead: no code point of the set follows
  static constexpr int kUnlimited = -1;
};

// InvalidArgument for everything that is not read, without the expression in the message.
absl::StatusOr<RegexNode> ParseRegexNode(absl::string_view regex);

// Whether it matches the empty text.
bool MatchesEmpty(const RegexNode& node);

struct RegexStep {
  enum Kind : uint8_t { kSet, kSplit, kJump, kLookAhead, kNegativeLookAhead, kMatch };
  Kind kind = kMatch;
  int set = 0;     // in RegexProgram::sets
  int first = 0;   // kSplit, kJump: the next step
  int second = 0;  // kSplit: the step to try if the first fails
  int number = 0;  // kSplit: its number among the splits
};

struct RegexProgram {
  std::vector<RegexStep> steps;
  std::vector<CodeSet> sets;
  int num_splits = 0;
};

absl::StatusOr<RegexProgram> CompileRegex(const RegexNode& node);

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_TEXT_REGEX_PROGRAM_H_
