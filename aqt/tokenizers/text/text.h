#ifndef AQT_TOKENIZERS_TEXT_TEXT_H_
#define AQT_TOKENIZERS_TEXT_TEXT_H_

// A text while it is made into tokens: code points, each with its place in the bytes that were given.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aqt::tokenizers {

struct Char {
  char32_t code;
  uint32_t begin;  // [begin, end): the bytes that it comes from
  uint32_t end;
};
using Text = std::vector<Char>;

// Appends the code points of `bytes`, which must be shorter than 4 GiB. Like Python's errors="replace", each longest
// beginning of a sequence that is not UTF-8 becomes one U+FFFD.
void DecodeUtf8(absl::string_view bytes, Text& text);
void AppendUtf8(char32_t code, std::string& bytes);
std::u32string ToCodes(absl::string_view bytes);

}  // namespace aqt::tokenizers

#endif  // AQT_TOKENIZERS_TEXT_TEXT_H_
