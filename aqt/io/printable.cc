#include "aqt/io/printable.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aqt::io {
namespace {

// The first character of `text` and its size; 0 bytes if it is not UTF-8 (overlong, a surrogate, cut off).
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};
Character Decode(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {};
  uint32_t code = first & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

// Control characters (C0, C1, delete), zero-width characters, direction marks, line ends, and the byte order mark.
bool MustEscape(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

}  // namespace

std::string Printable(absl::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Character c = Decode(text.substr(at));
    const size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (at + bytes > max_bytes) return absl::StrCat(out, "...");
    if (c.bytes > 0 && !MustEscape(c.code)) {
      absl::StrAppend(&out, text.substr(at, bytes));
    } else if (c.bytes > 1) {
      absl::StrAppendFormat(&out, "\\u%04x", c.code);
    } else if (text[at] == '\n' || text[at] == '\t' || text[at] == '\r') {
      absl::StrAppend(&out, text[at] == '\n' ? "\\n" : text[at] == '\t' ? "\\t" : "\\r");
    } else {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<uint8_t>(text[at]));
    }
    at += bytes;
  }
  return out;
}

std::string PrintableLine(absl::string_view text) { return Printable(text, absl::string_view::npos); }

}  // namespace aqt::io
