// The pattern of GPT-2 by hand, because most byte-level tokenizers run it on every text.

#include "aqt/tokenizers/text/pattern.h"
#include "aqt/tokenizers/text/unicode.h"

namespace aqt::tokenizers {
namespace {

constexpr uint32_t kClasses = kRegexLetter | kRegexNumber | kRegexSpace;

class Gpt2 final : public Pattern {
 public:
  void Find(absl::Span<const Char> text, Matches& matches) const override {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = End(text, begin);
      matches.emplace_back(static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
      begin = end;
    }
  }

 private:
  static uint32_t ClassOf(const Char& c) { return CodeFlags(c.code) & kClasses; }

  // The end of the run of one class.
  static size_t Run(absl::Span<const Char> text, size_t at) {
    const uint32_t first = ClassOf(text[at]);
    while (at < text.size() && ClassOf(text[at]) == first) ++at;
    return at;
  }

  // The length of 's, 't, 're, 've, 'm, 'll or 'd, or 0.
  static size_t Contraction(absl::Span<const Char> text, size_t at) {
    const auto code = [&](size_t i) { return at + i < text.size() ? text[at + i].code : char32_t{0}; };
    if (code(0) != '\'') return 0;
    const char32_t a = code(1), b = code(2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
  }

  static size_t End(absl::Span<const Char> text, size_t begin) {
    if (const size_t length = Contraction(text, begin); length > 0) return begin + length;
    if (ClassOf(text[begin]) != kRegexSpace) return Run(text, begin);
    if (text[begin].code == ' ' && begin + 1 < text.size() && ClassOf(text[begin + 1]) != kRegexSpace) {
      return Run(text, begin + 1);
    }
    // The last space before something else belongs to what follows.
    const size_t end = Run(text, begin);
    return end == text.size() || end == begin + 1 ? end : end - 1;
  }
};

}  // namespace

const Pattern& Gpt2Pattern() {
  static const Gpt2* const pattern = new Gpt2();
  return *pattern;
}

}  // namespace aqt::tokenizers
