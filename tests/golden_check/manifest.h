#ifndef AQT_TESTS_GOLDEN_CHECK_MANIFEST_H_
#define AQT_TESTS_GOLDEN_CHECK_MANIFEST_H_

// Reads a directory of recorded cases: manifest.json and one safetensors file per family.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "tests/golden_check/golden_case.h"

namespace aqt::golden {

// The named families, or all if none is named. Returns InvalidArgument or the errors of reading, naming file and case,
// if the manifest lacks a family, a file is missing or differs from the recorded one (SHA-256, numbers of cases and
// tensors), a tensor is missing or has another dtype or shape, or a field or tolerance is unknown. A configuration for
// which the library has no API is an error of the case only (GoldenCase::config).
absl::StatusOr<GoldenSet> LoadGolden(const io::FileSystem& fs, const std::string& dir,
                                     absl::Span<const std::string> families = {});

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_MANIFEST_H_
