#ifndef AQT_GRAPH_INTERPRET_DEPENDS_ON_H_
#define AQT_GRAPH_INTERPRET_DEPENDS_ON_H_

#include <algorithm>
#include <vector>

#include "aqt/graph/program.h"

namespace aqt {

// For each variable, whether it depends only on constants and on inputs for whose slots `is_known(slot)` is true.
template <class IsKnown>
std::vector<bool> DependsOnlyOn(const Program& program, const IsKnown& is_known) {
  std::vector<bool> known(program.vars.size(), false);
  for (const Program::Port& port : program.inputs) known[port.var] = is_known(port.slot);
  for (const auto& [var, array] : program.consts) known[var] = true;
  for (const Equation& eqn : program.eqns) {
    const bool all = std::all_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) { return known[var]; });
    for (const VarId var : eqn.out) known[var] = all;
  }
  return known;
}

}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_DEPENDS_ON_H_
