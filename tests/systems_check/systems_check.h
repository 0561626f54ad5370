#ifndef AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_
#define AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_

// Recomputes recorded cases of the systems besides AQT through the public API and compares.

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
  std::vector<std::string> areas = {};  // only these, if any
  bool verbose = false;                 // a line per case that is not supported
  bool original = true;                 // computed as the originals do; false: as the library does by default
  // Without `original`: the file that lists the cases with other results, and these results (fixed_systems.h).
  std::string fixed = "";
  bool update_fixed = false;  // writes that list anew
};

// What golden_check does with a folder of systems (HasSystems). To `out`: a line per failing case; then per area and in
// total `passed N, failed N, not supported N`. Returns 1 if a case failed, 0 if none did; 2, with a message to `err`,
// if a file is bad.
int CheckSystems(const io::FileSystem& fs, absl::string_view dir, const SystemsOptions& options, std::ostream& out,
                 std::ostream& err);

// What is wrong with a case that is computed with this behaviour; nullopt if nothing is. Unimplemented for what is not
// supported.
absl::StatusOr<std::optional<std::string>> WrongIn(absl::string_view area, const SystemCase& system_case,
                                                   const SystemsCompat& behaviour);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_
