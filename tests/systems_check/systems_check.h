#ifndef AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_
#define AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_

// Recomputes recorded cases of systems other than AQT through the public API and compares.

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "tests/systems_check/system_case.h"
#include "tests/systems_check/systems_compat.h"

namespace aqt::systems {

struct SystemsOptions {
  std::vector<std::string> areas = {};  // only these, if not empty
  bool verbose = false;                 // prints a line per unsupported case
  bool original = true;                 // with the originals' behaviour; false: with the library's defaults
  // Without `original`: the file that lists the cases with other results, and these results (fixed_systems.h).
  std::string fixed = "";
  bool update_fixed = false;  // rewrites that list
};

// The part of golden_check for a folder of systems (HasSystems). Writes to `out` a line per failing case, then `passed
// N, failed N, not supported N` per area and in total. Returns 1 if a case failed, 0 if none did; 2, with a message to
// `err`, if a file is invalid.
int CheckSystems(const io::FileSystem& fs, absl::string_view dir, const SystemsOptions& options, std::ostream& out,
                 std::ostream& err);

// The error of a case computed with this behaviour; nullopt if it passes. Unimplemented for an unsupported case.
absl::StatusOr<std::optional<std::string>> WrongIn(absl::string_view area, const SystemCase& system_case,
                                                   const SystemsCompat& behaviour);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_
