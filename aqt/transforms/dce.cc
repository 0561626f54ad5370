#include "aqt/transforms/dce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "aqt/graph/interpret/needed.h"

namespace aqt {

Program Dce(const Program& program, const DceOptions& options) {
  const std::vector<bool> live = NeededFor(program, OutputVars(program));
  Program out = program;
  out.eqns.clear();
  for (const Equation& eqn : program.eqns) {
    if (IsNeeded(eqn, live)) out.eqns.push_back(eqn);
  }
  out.consts.clear();
  for (const auto& [var, array] : program.consts) {
    if (live[var]) out.consts.emplace(var, array);
  }
  const auto drops = [&](const Program::Port& port) {
    return !live[port.var] && std::find(options.drop_inputs.begin(), options.drop_inputs.end(), port.slot.kind) !=
                                  options.drop_inputs.end();
  };
  out.inputs.erase(std::remove_if(out.inputs.begin(), out.inputs.end(), drops), out.inputs.end());
  return out;
}

}  // namespace aqt
