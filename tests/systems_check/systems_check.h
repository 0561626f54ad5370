#ifndef AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_
#define AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_

// Recomputes recorded cases of the systems besides AQT through the public API and compares.

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/io/file.h"

namespace aqt::systems {

// What golden_check does with a folder of systems (HasSystems). To `out`: a line per failing case, with `verbose` also
// one per case that is not supported; then per area and in total `passed N, failed N, not supported N`. Returns 1 if a
// case failed, 0 if none did; 2, with a message to `err`, if the folder is bad.
int CheckSystems(const io::FileSystem& fs, absl::string_view dir, const std::vector<std::string>& areas, bool verbose,
                 std::ostream& out, std::ostream& err);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_CHECK_H_
