#ifndef AQT_TRANSFORMS_EXPAND_H_
#define AQT_TRANSFORMS_EXPAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

// Replaces composites by their definitions (Composite::Expand), including those inside expansions, until none with an
// expansion is left. `names` limits this to composites with these names; if empty, all are replaced. The bits of the
// program's results do not change.
absl::StatusOr<Program> Expand(const Program& program, const std::vector<std::string>& names = {});

}  // namespace aqt

#endif  // AQT_TRANSFORMS_EXPAND_H_
