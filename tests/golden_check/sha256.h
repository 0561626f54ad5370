#ifndef AQT_TESTS_GOLDEN_CHECK_SHA256_H_
#define AQT_TESTS_GOLDEN_CHECK_SHA256_H_

#include <string>

#include "absl/strings/string_view.h"

namespace aqt::golden {

// The SHA-256 of `bytes` (FIPS 180-4) as 64 lower-case hexadecimal digits.
std::string Sha256Hex(absl::string_view bytes);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_SHA256_H_
