#ifndef AQT_TESTS_FUZZ_TEXT_ERROR_H_
#define AQT_TESTS_FUZZ_TEXT_ERROR_H_

// The guarantees of every textproto reader for its errors.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"

namespace aqt::fuzz {

// `status` is a reader's error for `text` with the source "t". It must have the code of a user's mistake and a place in
// the text.
inline void CheckTextError(const absl::Status& status, absl::string_view text) {
  AQT_CHECK(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status));
  const std::vector<absl::string_view> parts = absl::StrSplit(status.message(), absl::MaxSplits(':', 3));
  int64_t line = 0, column = 0;
  AQT_CHECK(parts.size() == 4 && parts[0] == "t");
  AQT_CHECK(absl::SimpleAtoi(parts[1], &line) && absl::SimpleAtoi(parts[2], &column));
  AQT_CHECK(absl::StartsWith(parts[3], " ") && parts[3].size() > 3);
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  AQT_CHECK(line >= 1 && line <= static_cast<int64_t>(lines.size()));
  // A tab advances to the next multiple of 8.
  AQT_CHECK(column >= 1 && column <= 8 * static_cast<int64_t>(lines[line - 1].size()) + 1);
}

}  // namespace aqt::fuzz

#endif  // AQT_TESTS_FUZZ_TEXT_ERROR_H_
