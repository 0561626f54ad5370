#ifndef AQT_GRAPH_INTERPRET_INTERPRET_H_
#define AQT_GRAPH_INTERPRET_INTERPRET_H_

// The walk shared by evaluation (eval.h) and rewriting (rewrite.h). Each supplies a type of lane (what represents a
// variable) and a rule (what an equation does with its operands' lanes). Analyses, such as which variables are live or
// depend on data, loop over the equations themselves.

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/program.h"

namespace aqt {

namespace internal {
// For each variable, the index of the last equation that uses it: -1 if it is unused, eqns.size() for outputs.
std::vector<int> LastUses(const Program& program);
// InvalidArgument, naming both counts, if the program does not have `count` inputs.
absl::Status ExpectArgumentCount(const Program& program, size_t count);
// Also InvalidArgument, naming the slot, if an argument's dtype or shape is not the input's.
absl::Status ExpectArguments(const Program& program, absl::Span<const Array> args);
// The inputs' values by name. NotFound, naming the slot, if one is missing.
absl::StatusOr<std::vector<Array>> ArgumentsOf(const Program& program, const SlotValues& values);
// The outputs by name.
SlotValues OutputsByName(const Program& program, std::vector<Array> outputs);
}  // namespace internal

// Calls `rule(eqn, operand lanes) -> StatusOr<std::vector<Lane>>` for each equation in order, with `args` for the
// inputs and `lift(array) -> Lane` for constants, and returns the outputs' lanes. A lane is dropped after its last use.
// Errors: the rule's, with a description of the equation; InvalidArgument for a wrong number of arguments.
template <class Lane, class Lift, class Rule>
absl::StatusOr<std::vector<Lane>> Interpret(const Program& program, absl::Span<const Lane> args, Lift&& lift,
                                            Rule&& rule) {
  AQT_RETURN_IF_ERROR(internal::ExpectArgumentCount(program, args.size()));
  const std::vector<int> last_use = internal::LastUses(program);
  std::vector<std::optional<Lane>> lanes(program.vars.size());
  for (size_t i = 0; i < args.size(); ++i) lanes[program.inputs[i].var] = args[i];
  for (const auto& [var, array] : program.consts) lanes[var] = lift(array);
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    const Equation& eqn = program.eqns[i];
    std::vector<Lane> in;
    in.reserve(eqn.in.size());
    for (VarId var : eqn.in) in.push_back(*lanes[var]);
    for (VarId var : eqn.in) {
      if (last_use[var] == static_cast<int>(i)) lanes[var].reset();
    }
    absl::StatusOr<std::vector<Lane>> out = rule(eqn, absl::MakeConstSpan(in));
    if (out.ok() && out->size() != eqn.out.size()) {
      out = absl::InternalError(absl::StrCat("the rule gave ", out->size(), " outputs instead of ", eqn.out.size()));
    }
    if (!out.ok()) return DescribeError(out.status(), program, eqn);
    for (size_t j = 0; j < eqn.out.size(); ++j) {
      if (last_use[eqn.out[j]] >= 0) lanes[eqn.out[j]] = std::move((*out)[j]);
    }
  }
  std::vector<Lane> outputs;
  outputs.reserve(program.outputs.size());
  for (const Program::Port& port : program.outputs) outputs.push_back(*lanes[port.var]);
  return outputs;
}

}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_INTERPRET_H_
