#include "aqt/graph/interpret/needed.h"

#include <algorithm>
#include <cstddef>

namespace aqt {

std::vector<bool> NeededFor(const Program& program, absl::Span<const VarId> vars) {
  std::vector<bool> needed(program.vars.size(), false);
  for (const VarId var : vars) needed[var] = true;
  for (size_t i = program.eqns.size(); i-- > 0;) {
    const Equation& eqn = program.eqns[i];
    if (!IsNeeded(eqn, needed)) continue;
    for (const VarId var : eqn.in) needed[var] = true;
  }
  return needed;
}

bool IsNeeded(const Equation& eqn, const std::vector<bool>& needed) {
  return std::any_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return needed[var]; });
}

std::vector<VarId> OutputVars(const Program& program) {
  std::vector<VarId> vars;
  for (const Program::Port& output : program.outputs) vars.push_back(output.var);
  return vars;
}

}  // namespace aqt
