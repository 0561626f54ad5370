#include "aqt/graph/interpret.h"

namespace aqt::internal {

std::vector<int> LastUses(const Program& program) {
  std::vector<int> last_use(program.vars.size(), -1);
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    for (VarId var : program.eqns[i].in) last_use[var] = static_cast<int>(i);
  }
  for (const Program::Port& port : program.outputs) last_use[port.var] = static_cast<int>(program.eqns.size());
  return last_use;
}

absl::Status ExpectArgumentCount(const Program& program, size_t count) {
  if (count == program.inputs.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the program has ", program.inputs.size(), " inputs, got ", count, " arguments"));
}

}  // namespace aqt::internal
