#include "aqt/graph/interpret/interpret.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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

absl::Status ExpectArguments(const Program& program, absl::Span<const Array> args) {
  AQT_RETURN_IF_ERROR(ExpectArgumentCount(program, args.size()));
  for (size_t i = 0; i < args.size(); ++i) {
    const Program::Port& port = program.inputs[i];
    if (args[i].aval() == program.aval(port.var)) continue;
    return absl::InvalidArgumentError(absl::StrCat("eval: input ", port.slot.ToString(), " is ",
                                                   program.aval(port.var).ToString(), ", got ",
                                                   args[i].aval().ToString()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Array>> ArgumentsOf(const Program& program, const SlotValues& values) {
  std::vector<Array> args;
  args.reserve(program.inputs.size());
  for (const Program::Port& port : program.inputs) {
    const auto it = values.find(port.slot);
    if (it == values.end()) {
      return absl::NotFoundError(
          absl::StrCat("eval: no value for input ", port.slot.ToString(), ", ", program.aval(port.var).ToString()));
    }
    args.push_back(it->second);
  }
  return args;
}

SlotValues OutputsByName(const Program& program, std::vector<Array> outputs) {
  SlotValues results;
  for (size_t i = 0; i < outputs.size(); ++i) results.emplace(program.outputs[i].slot, std::move(outputs[i]));
  return results;
}

}  // namespace aqt::internal
