#include "aqt/transforms/dce.h"

#include <algorithm>
#include <utility>

namespace aqt {

Program Dce(const Program& program, const DceOptions& options) {
  std::vector<bool> live(program.vars.size(), false);
  for (const Program::Port& port : program.outputs) live[port.var] = true;
  std::vector<bool> kept(program.eqns.size(), false);
  for (size_t i = program.eqns.size(); i-- > 0;) {
    const Equation& eqn = program.eqns[i];
    kept[i] = std::any_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return live[var]; });
    if (!kept[i]) continue;
    for (VarId var : eqn.in) live[var] = true;
  }
  Program out = program;
  out.eqns.clear();
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    if (kept[i]) out.eqns.push_back(program.eqns[i]);
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
