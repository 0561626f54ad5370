#ifndef AQT_GRAPH_INTERPRET_NEEDED_H_
#define AQT_GRAPH_INTERPRET_NEEDED_H_

#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/program.h"

namespace aqt {

// For each variable, whether one of `vars` is computed from it, or is it. An equation is needed if one of its results
// is.
std::vector<bool> NeededFor(const Program& program, absl::Span<const VarId> vars);

// Whether one of the equation's results is needed.
bool IsNeeded(const Equation& eqn, const std::vector<bool>& needed);

// The variables that are outputs.
std::vector<VarId> OutputVars(const Program& program);

}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_NEEDED_H_
