#ifndef AQT_IO_PRINTABLE_H_
#define AQT_IO_PRINTABLE_H_

// Names of tensors, modules and files are bytes chosen by others. On a terminal they must neither move the cursor nor
// look like other lines.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace aqt::io {

// Longer names are cut.
inline constexpr size_t kMaxShownBytes = 200;

// `text` in one line: control characters, bytes that are not UTF-8, and characters that change the writing direction,
// end a line or have no width are written as \n, \t, \r, \x1b, \u202e. Everything else is unchanged, even a backslash,
// so escaping twice is harmless. Cut after `max_bytes` of the text, between two characters, with "...".
std::string Printable(absl::string_view text, size_t max_bytes = kMaxShownBytes);

// The same without cutting, for a message that contains such names.
std::string PrintableLine(absl::string_view text);

}  // namespace aqt::io

#endif  // AQT_IO_PRINTABLE_H_
