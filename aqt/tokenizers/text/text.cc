#include "aqt/tokenizers/text/text.h"

namespace aqt::tokenizers {
namespace {

// The sequence at `bytes`: its code point and length. A wrong one is U+FFFD, with the length of its longest right part.
struct Sequence {
  char32_t code;
  uint32_t size;
};
Sequence Next(absl::string_view bytes) {
  constexpr char32_t kReplacement = 0xFFFD;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const uint32_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return {kReplacement, 1};
  char32_t code = lead & (0x7F >> size);
  for (uint32_t i = 1; i < size; ++i) {
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      // Neither overlong forms nor surrogates nor codes beyond U+10FFFF.
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (i >= bytes.size() || at(i) < low || at(i) > high) return {kReplacement, i};
    code = code << 6 | (at(i) & 0x3F);
  }
  return {code, size};
}

}  // namespace

void DecodeUtf8(absl::string_view bytes, Text& text) {
  text.reserve(text.size() + bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Sequence next = Next(bytes.substr(i));
    text.push_back({next.code, static_cast<uint32_t>(i), static_cast<uint32_t>(i + next.size)});
    i += next.size;
  }
}

void AppendUtf8(char32_t code, std::string& bytes) {
  if (code < 0x80) {
    bytes.push_back(static_cast<char>(code));
    return;
  }
  if (code < 0x800) {
    bytes.push_back(static_cast<char>(0xC0 | code >> 6));
  } else {
    if (code < 0x10000) {
      bytes.push_back(static_cast<char>(0xE0 | code >> 12));
    } else {
      bytes.push_back(static_cast<char>(0xF0 | code >> 18));
      bytes.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    }
    bytes.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
  }
  bytes.push_back(static_cast<char>(0x80 | (code & 0x3F)));
}

std::u32string ToCodes(absl::string_view bytes) {
  Text text;
  DecodeUtf8(bytes, text);
  std::u32string codes;
  for (const Char& c : text) codes.push_back(c.code);
  return codes;
}

}  // namespace aqt::tokenizers
