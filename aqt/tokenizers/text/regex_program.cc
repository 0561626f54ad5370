#include "aqt/tokenizers/text/regex_program.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

constexpr int kMaxDepth = 16;
constexpr int kMaxRepeat = 255;
constexpr size_t kMaxSteps = 1000;
constexpr int kMaxSplits = 256;  // each takes one bit for each code point of a text

absl::Status NotRead(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      what,
      " is not read in a regular expression; read are alternatives, (?: ), (?i: ), classes, \\s \\d \\w, \\p{L} and "
      "other categories, ? * + {m,n}, and (?! ) or (?= ) for one character"));
}

struct Category {
  absl::string_view name;
  uint32_t flags;
};
constexpr Category kCategories[] = {
    {"L", kRegexLetter},    {"N", kRegexNumber}, {"Lu", kRegexUpper}, {"Ll", kRegexLower}, {"Lt", kRegexTitle},
    {"Lm", kRegexModifier}, {"Lo", kRegexOther}, {"M", kRegexMark},   {"P", kRegexPunct},  {"S", kRegexSymbol},
};

class Parser {
 public:
  explicit Parser(absl::string_view regex) : codes_(ToCodes(regex)) {}

  absl::StatusOr<RegexNode> Parse() {
    AQT_ASSIGN_OR_RETURN(RegexNode node, ParseAlternatives(/*fold=*/false, 0));
    if (!AtEnd()) return NotRead("an unmatched )");
    return node;
  }

 private:
  bool AtEnd() const { return at_ == codes_.size(); }
  char32_t Peek(size_t ahead = 0) const { return at_ + ahead < codes_.size() ? codes_[at_ + ahead] : 0; }
  bool Take(char32_t code) {
    if (AtEnd() || codes_[at_] != code) return false;
    ++at_;
    return true;
  }
  bool Take(absl::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (Peek(i) != static_cast<uint8_t>(text[i])) return false;
    }
    at_ += text.size();
    return true;
  }

  absl::StatusOr<RegexNode> ParseAlternatives(bool fold, int depth) {
    if (depth > kMaxDepth) return NotRead(absl::StrCat("nesting deeper than ", kMaxDepth));
    RegexNode node;
    node.kind = RegexNode::kAlternatives;
    do {
      RegexNode sequence;
      while (!AtEnd() && Peek() != '|' && Peek() != ')') {
        AQT_ASSIGN_OR_RETURN(RegexNode item, ParseItem(fold, depth));
        AQT_ASSIGN_OR_RETURN(item, ParseQuantifier(std::move(item)));
        sequence.children.push_back(std::move(item));
      }
      node.children.push_back(std::move(sequence));
    } while (Take('|'));
    return node;
  }

  absl::StatusOr<RegexNode> ParseGroup(bool fold, int depth) {
    bool negative = false;
    if (Take("?!") || Take("?=")) {
      negative = codes_[at_ - 1] == '!';
      AQT_ASSIGN_OR_RETURN(RegexNode item, ParseItem(fold, depth + 1));
      if (item.kind != RegexNode::kSet || !Take(')')) return NotRead("a look-ahead for more than one character");
      item.kind = RegexNode::kLookAhead;
      item.negative = negative;
      return item;
    }
    if (Take("?i:")) {
      fold = true;
    } else if (!Take("?:") && Peek() == '?') {
      return NotRead("a group that begins with (?" + std::string(1, Peek(1) < 0x7F ? static_cast<char>(Peek(1)) : '.'));
    }
    AQT_ASSIGN_OR_RETURN(RegexNode group, ParseAlternatives(fold, depth + 1));
    if (!Take(')')) return NotRead("a group without )");
    return group;
  }

  absl::StatusOr<RegexNode> ParseItem(bool fold, int depth) {
    if (AtEnd()) return NotRead("an empty group");
    const char32_t code = codes_[at_++];
    if (code == '(') return ParseGroup(fold, depth);
    RegexNode node;
    node.kind = RegexNode::kSet;
    if (code == '[') {
      AQT_RETURN_IF_ERROR(ParseClass(fold, node.set));
    } else if (code == '\\') {
      AQT_RETURN_IF_ERROR(ParseEscape(fold, /*in_class=*/false, node.set).status());
    } else if (code == '.') {
      node.set.ranges.emplace_back('\n', '\n');
      node.set.negated = true;
    } else if (code < 0x80 && absl::string_view("^$*+?{").find(static_cast<char>(code)) != absl::string_view::npos) {
      return NotRead(absl::StrCat(std::string(1, static_cast<char>(code)), " here"));
    } else {
      AQT_RETURN_IF_ERROR(AddCode(code, fold, node.set));
    }
    return node;
  }

  static absl::Status AddCode(char32_t code, bool fold, CodeSet& set) {
    set.ranges.emplace_back(code, code);
    if (!fold) return absl::OkStatus();
    if (code >= 0x80) return NotRead("a character beyond ASCII in (?i: )");
    const char lower = absl::ascii_tolower(static_cast<uint8_t>(code));
    if (!absl::ascii_isalpha(lower)) return absl::OkStatus();
    set.ranges.emplace_back(lower, lower);
    set.ranges.emplace_back(absl::ascii_toupper(lower), absl::ascii_toupper(lower));
    if (lower == 's') set.ranges.emplace_back(0x17F, 0x17F);    // the long s
    if (lower == 'k') set.ranges.emplace_back(0x212A, 0x212A);  // the sign of Kelvin
    return absl::OkStatus();
  }

  // After the backslash. The code point if the escape stands for one, else nullopt.
  absl::StatusOr<std::optional<char32_t>> ParseEscape(bool fold, bool in_class, CodeSet& set) {
    if (AtEnd()) return NotRead("a backslash at the end");
    const char32_t code = codes_[at_++];
    const char name = code < 0x80 ? static_cast<char>(code) : '\0';
    if (in_class && (name == 'w' || name == 'W')) {
      (name == 'w' ? set.class_word : set.class_not_word) = true;
      return std::optional<char32_t>();
    }
    uint32_t flags = 0;
    switch (absl::ascii_tolower(name)) {
      case 's': flags = kRegexSpace; break;
      case 'd': flags = kRegexDigit; break;
      case 'w': flags = kRegexWord; break;
      case 'p': {
        AQT_ASSIGN_OR_RETURN(flags, ParseCategory());
        break;
      }
      default: break;
    }
    if (flags != 0) {
      if (absl::ascii_isupper(name)) {
        set.absent_flags.push_back(flags);
      } else {
        set.flags |= flags;
      }
      return std::optional<char32_t>();
    }
    char32_t meant = code;
    if (name == 'n') meant = '\n';
    else if (name == 'r') meant = '\r';
    else if (name == 't') meant = '\t';
    else if (!absl::ascii_ispunct(name) && name != ' ')
      return NotRead(absl::StrCat("\\", std::string(1, name ? name : '?')));
    AQT_RETURN_IF_ERROR(AddCode(meant, fold, set));
    return std::optional<char32_t>(meant);
  }

  absl::StatusOr<uint32_t> ParseCategory() {
    std::string name;
    if (!Take('{')) return NotRead("\\p without {");
    while (!AtEnd() && Peek() != '}' && name.size() < 40) name.push_back(static_cast<char>(codes_[at_++] & 0x7F));
    if (!Take('}')) return NotRead("\\p{ without }");
    for (const Category& category : kCategories) {
      if (category.name == name) return category.flags;
    }
    return NotRead(absl::StrCat("\\p{", name, "}"));
  }

  // After the opening bracket.
  absl::Status ParseClass(bool fold, CodeSet& set) {
    set.negated = Take('^');
    bool first = true;
    for (; !AtEnd() && (Peek() != ']' || first); first = false) {
      const char32_t code = codes_[at_++];
      if (code == '[' || code == ']') return NotRead("[ or an early ] inside of a class");
      if (code == '&' && Peek() == '&') return NotRead("&& in a class");
      std::optional<char32_t> low = code;
      if (code == '\\') {
        AQT_ASSIGN_OR_RETURN(low, ParseEscape(fold, /*in_class=*/true, set));
      } else {
        AQT_RETURN_IF_ERROR(AddCode(code, fold, set));
      }
      if (Peek() != '-' || Peek(1) == ']' || at_ + 1 >= codes_.size()) continue;
      if (!low.has_value() || fold) return NotRead("this range of a class");
      ++at_;
      char32_t high = codes_[at_++];
      if (high == '\\') {
        AQT_ASSIGN_OR_RETURN(const std::optional<char32_t> escaped, ParseEscape(fold, /*in_class=*/true, set));
        high = escaped.value_or(0);
      }
      if (high < *low || high == '[') return NotRead("a range of a class that ends before it begins");
      set.ranges.emplace_back(*low, high);
    }
    return Take(']') ? absl::OkStatus() : NotRead("a class without ]");
  }

  std::optional<int> ParseNumber() {
    if (!(Peek() >= '0' && Peek() <= '9')) return std::nullopt;
    int number = 0;
    while (Peek() >= '0' && Peek() <= '9')
      number = std::min(number * 10 + static_cast<int>(codes_[at_++] - '0'), 10000);
    return number;
  }

  absl::StatusOr<RegexNode> ParseQuantifier(RegexNode item) {
    RegexNode repeat;
    repeat.kind = RegexNode::kRepeat;
    if (Take('?')) {
      repeat.max = 1;
    } else if (Take('*')) {
      repeat.max = RegexNode::kUnlimited;
    } else if (Take('+')) {
      repeat.min = 1;
      repeat.max = RegexNode::kUnlimited;
    } else if (Take('{')) {
      const std::optional<int> min = ParseNumber();
      const bool range = Take(',');
      const std::optional<int> max = range ? ParseNumber() : min;
      if (!min.has_value() || !Take('}')) return NotRead("a { that begins no quantifier {m}, {m,} or {m,n}");
      repeat.min = *min;
      repeat.max = max.value_or(RegexNode::kUnlimited);
      if (repeat.min > kMaxRepeat || repeat.max > kMaxRepeat || (max.has_value() && *max < *min)) {
        return NotRead(absl::StrCat("a quantifier beyond ", kMaxRepeat, ", or with a maximum below its minimum,"));
      }
      if (!range && Peek() == '?') return NotRead("{m}?");
    } else {
      return item;
    }
    repeat.greedy = !Take('?');
    if (Peek() == '+' || Peek() == '*' || Peek() == '?' || Peek() == '{')
      return NotRead("a quantifier after a quantifier");
    if (item.kind == RegexNode::kLookAhead || MatchesEmpty(item)) return NotRead("a quantifier of something empty");
    repeat.children.push_back(std::move(item));
    return repeat;
  }

  const std::u32string codes_;
  size_t at_ = 0;
};

class Compiler {
 public:
  absl::StatusOr<RegexProgram> Compile(const RegexNode& node) {
    Emit(node);
    Add(RegexStep::kMatch);
    if (program_.steps.size() > kMaxSteps || program_.num_splits > kMaxSplits) {
      return NotRead(absl::StrCat("an expression of more than ", kMaxSteps, " steps or ", kMaxSplits, " choices"));
    }
    return std::move(program_);
  }

 private:
  int Next() const { return static_cast<int>(program_.steps.size()); }
  int Add(RegexStep::Kind kind) {
    RegexStep step;
    step.kind = kind;
    if (kind == RegexStep::kSplit) step.number = program_.num_splits++;
    program_.steps.push_back(step);
    return Next() - 1;
  }
  // Sets where a split goes on: into what follows it, or past it.
  void SetSplit(int split, int into, int past, bool greedy) {
    program_.steps[split].first = greedy ? into : past;
    program_.steps[split].second = greedy ? past : into;
  }

  void Emit(const RegexNode& node) {
    if (program_.steps.size() > kMaxSteps) return;
    switch (node.kind) {
      case RegexNode::kSet:
      case RegexNode::kLookAhead: {
        const int step = Add(node.kind == RegexNode::kSet ? RegexStep::kSet
                             : node.negative              ? RegexStep::kNegativeLookAhead
                                                          : RegexStep::kLookAhead);
        program_.steps[step].set = static_cast<int>(program_.sets.size());
        program_.sets.push_back(node.set);
        break;
      }
      case RegexNode::kSequence:
        for (const RegexNode& child : node.children) Emit(child);
        break;
      case RegexNode::kAlternatives: EmitAlternatives(node); break;
      case RegexNode::kRepeat: EmitRepeat(node); break;
    }
  }

  void EmitAlternatives(const RegexNode& node) {
    std::vector<int> jumps;
    for (size_t i = 0; i + 1 < node.children.size(); ++i) {
      const int split = Add(RegexStep::kSplit);
      Emit(node.children[i]);
      jumps.push_back(Add(RegexStep::kJump));
      SetSplit(split, split + 1, Next(), /*greedy=*/true);
    }
    Emit(node.children.back());
    for (const int jump : jumps) program_.steps[jump].first = Next();
  }

  void EmitRepeat(const RegexNode& node) {
    for (int i = 0; i < node.min; ++i) Emit(node.children[0]);
    if (node.max == RegexNode::kUnlimited) {
      const int split = Add(RegexStep::kSplit);
      Emit(node.children[0]);
      const int jump = Add(RegexStep::kJump);
      program_.steps[jump].first = split;
      SetSplit(split, split + 1, Next(), node.greedy);
      return;
    }
    std::vector<int> splits;
    for (int i = node.min; i < node.max; ++i) {
      splits.push_back(Add(RegexStep::kSplit));
      Emit(node.children[0]);
    }
    for (const int split : splits) SetSplit(split, split + 1, Next(), node.greedy);
  }

  RegexProgram program_;
};

}  // namespace

namespace {

// Oniguruma, which the package uses, takes U+00B2, B3, B9 and BC to BE for words only outside of brackets.
bool IsClassWord(char32_t code) {
  const uint32_t flags = CodeFlags(code);
  const bool is_other_number = (flags & kRegexNumber) != 0 && (flags & kRegexDigit) == 0;
  return (flags & kRegexWord) != 0 && !(code < 0x100 && is_other_number);
}

}  // namespace

bool CodeSet::HasWithoutNegation(char32_t code) const {
  const uint32_t code_flags = CodeFlags(code);
  if ((code_flags & flags) != 0) return true;
  if (class_word && IsClassWord(code)) return true;
  if (class_not_word && !IsClassWord(code)) return true;
  for (const uint32_t absent : absent_flags) {
    if ((code_flags & absent) == 0) return true;
  }
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const auto& range) { return code >= range.first && code <= range.second; });
}

bool CodeSet::Has(char32_t code) const { return HasWithoutNegation(code) != negated; }

absl::StatusOr<RegexNode> ParseRegexNode(absl::string_view regex) { return Parser(regex).Parse(); }

bool MatchesEmpty(const RegexNode& node) {
  const auto empty = [](const RegexNode& child) { return MatchesEmpty(child); };
  switch (node.kind) {
    case RegexNode::kSet: return false;
    case RegexNode::kLookAhead: return true;
    case RegexNode::kSequence: return std::all_of(node.children.begin(), node.children.end(), empty);
    case RegexNode::kAlternatives: return std::any_of(node.children.begin(), node.children.end(), empty);
    case RegexNode::kRepeat: return node.min == 0 || MatchesEmpty(node.children[0]);
  }
  return true;
}

absl::StatusOr<RegexProgram> CompileRegex(const RegexNode& node) { return Compiler().Compile(node); }

}  // namespace aqt::tokenizers
