#ifndef AQT_IO_FOREIGN_FILE_H_
#define AQT_IO_FOREIGN_FILE_H_

// Recognises files that are given or found in place of those this library reads, for error messages.

#include <string>

#include "absl/strings/string_view.h"

namespace aqt::io {

// The number of leading bytes that GuessContent looks at.
inline constexpr int kGuessBytes = 64;

// "; it looks like WHAT: REMEDY" for a file that begins with these bytes, or an empty text. Recognises Git LFS
// pointers, web pages and error messages saved in place of a download, and the formats of other weights.
std::string GuessContent(absl::string_view begin);

// The weight format that a file's name indicates ("PyTorch"), or an empty text. safetensors is not included.
absl::string_view WeightFormatOfName(absl::string_view name);

// How to get safetensors from weights in that format.
absl::string_view RemedyForFormat(absl::string_view format);

}  // namespace aqt::io

#endif  // AQT_IO_FOREIGN_FILE_H_
