#ifndef AQT_TRANSFORMS_EXPAND_H_
#define AQT_TRANSFORMS_EXPAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

// Replaces composites by their meaning (Composite::Expand), those inside expansions, too, until none is left that has
// one. `names` limits it to the composites of these names; empty: all. The program's bits do not change.
absl::StatusOr<Program> Expand(const Program& program, const std::vector<std::string>& names = {});

}  // namespace aqt

#endif  // AQT_TRANSFORMS_EXPAND_H_
