#ifndef AQT_TOKENIZERS_TEXT_UNICODE_H_
#define AQT_TOKENIZERS_TEXT_UNICODE_H_

// Properties of code points as the `tokenizers` package sees them. Its parts follow different versions of Unicode, from
// 8 to 17, so no library of one version gives its results; the tables are recorded from the package itself
// (tests/golden/tokenizers/make_unicode_tables.py).

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "aqt/tokenizers/text/text.h"
#include "aqt/tokenizers/text/unicode_tables.h"

namespace aqt::tokenizers {

enum CodeFlag : uint32_t {
  kRemoved = 1 << 0,                // by the cleaning of BertNormalizer
  kPunctuation = 1 << 1,            // BertPreTokenizer, Punctuation
  kNonspacingMark = 1 << 2,         // removed by the strip_accents of BertNormalizer
  kCombiningMark = 1 << 3,          // removed by StripAccents
  kNumeric = 1 << 4,                // Digits
  kWord = 1 << 5,                   // Whitespace, and the neighbours of a single_word token
  kSpace = 1 << 6,                  // white space everywhere except in regular expressions
  kRegexLetter = 1 << 7,            // \p{L}
  kRegexNumber = 1 << 8,            // \p{N}
  kRegexSpace = 1 << 9,             // \s
  kRegexDigit = 1 << 10,            // \d
  kRegexWord = 1 << 11,             // \w
  kRegexUpper = 1 << 12,            // \p{Lu}
  kRegexLower = 1 << 13,            // \p{Ll}
  kRegexTitle = 1 << 14,            // \p{Lt}
  kRegexModifier = 1 << 15,         // \p{Lm}
  kRegexOther = 1 << 16,            // \p{Lo}
  kRegexMark = 1 << 17,             // \p{M}
  kRegexPunct = 1 << 18,            // \p{P}
  kRegexSymbol = 1 << 19,           // \p{S}
  kDecomposes = 1 << 20,            // changed by NFD
  kDecomposesCompatibly = 1 << 21,  // changed by NFKD
  kNonstarter = 1 << 22,            // a combining class other than 0
  kLowercases = 1 << 23,            // changed by Lowercase
  kComposesWithPrevious = 1 << 24,  // the second of a pair that NFC joins
  kIndicConsonant = 1 << 25,        // the three classes of rule GB9c of grapheme clusters
  kIndicLinker = 1 << 26,
  kIndicExtend = 1 << 27,
};

inline uint32_t CodeFlags(char32_t code) {
  namespace t = unicode_tables;
  return t::kKinds[t::kCells[t::kBlocks[code >> 7] * 128 + (code & 127)]];
}
inline bool IsSpace(char32_t code) { return (CodeFlags(code) & kSpace) != 0; }

// The lowercase form of one code point; U+0130 has two, and this is the first: the second is U+0307.
char32_t LowercaseOf(char32_t code);
// Replaces each code point by its lowercase form.
void LowercaseText(Text& text);

// A code point that an edit of a text gives, and how it relates to the text before: 0 stands for the next code point,
// 1 is inserted, -n stands for the next one and removes the n after it.
struct Change {
  char32_t code;
  int change;
};

enum class NormalForm : uint8_t { kNfd, kNfkd, kNfc, kNfkc };
// Brings the text into a normal form.
void Normalize(NormalForm form, Text& text);

// Makes `text` the codes of `changes`. Each has the place of the code point that it stands for; an inserted one has the
// place of the one before. The first `skipped` code points of `text` have been removed.
void ApplyChanges(const std::vector<Change>& changes, Text& text);

// The end of the extended grapheme cluster that begins at `begin`.
size_t GraphemeEnd(const Text& text, size_t begin);

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_TEXT_UNICODE_H_
