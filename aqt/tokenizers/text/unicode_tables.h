#ifndef AQT_TOKENIZERS_TEXT_UNICODE_TABLES_H_
#define AQT_TOKENIZERS_TEXT_UNICODE_TABLES_H_

// The tables of unicode.h, generated into unicode_tables.cc.

#include <cstdint>

namespace aqt::tokenizers::unicode_tables {

// The flags of a code point c: kKinds[kCells[kBlocks[c / 128] * 128 + c % 128]].
extern const uint32_t kKinds[];
extern const uint16_t kBlocks[];
extern const uint8_t kCells[];

struct Decomposition {
  char32_t code;
  uint16_t begin;  // in kPool
  uint16_t size;
};
extern const char32_t kPool[];
// Full decompositions, sorted by code; without Hangul syllables.
extern const Decomposition kCanonical[];
extern const int kCanonicalSize;
// Only those that differ from the canonical ones.
extern const Decomposition kCompatible[];
extern const int kCompatibleSize;

struct CombiningClass {
  char32_t first;
  char32_t last;
  uint8_t value;
};
extern const CombiningClass kCombiningClasses[];  // sorted; all other code points have class 0
extern const int kCombiningClassesSize;

struct Composition {
  char32_t first;
  char32_t second;
  char32_t composed;
};
extern const Composition kCompositions[];  // sorted by first, second
extern const int kCompositionsSize;

struct Lowercase {
  char32_t code;
  char32_t lower;
};
extern const Lowercase kLowercase[];  // sorted by code
extern const int kLowercaseSize;

}  // namespace aqt::tokenizers::unicode_tables

#endif  // AQT_TOKENIZERS_TEXT_UNICODE_TABLES_H_
