#include "aqt/graph/interpret/rewrite.h"

#include <utility>

#include "absl/status/status.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/interpret.h"

namespace aqt {

std::vector<Value> BindAgain(const Equation& eqn, absl::Span<const Value> operands) {
  return Bind(eqn.op, operands, eqn.where);
}

absl::StatusOr<std::vector<Value>> RewriteValues(const Program& program, absl::Span<const Value> args,
                                                 RewriteRule rule) {
  return Interpret<Value>(
      program, args, [](const Array& constant) { return Value(constant); },
      [&](const Equation& eqn, absl::Span<const Value> operands) -> absl::StatusOr<std::vector<Value>> {
        const Provenance provenance(program.scope(eqn), eqn.where);
        return rule(eqn, operands);
      });
}

std::vector<Value> Inline(const Program& program, absl::Span<const Value> args) {
  absl::StatusOr<std::vector<Value>> out = RewriteValues(
      program, args, [](const Equation& eqn, absl::Span<const Value> operands) { return BindAgain(eqn, operands); });
  if (out.ok()) return *std::move(out);
  internal::ReportError(out.status());
  return std::vector<Value>(program.outputs.size(), Value::Poisoned(Aval{}, out.status()));
}

std::vector<Input> InputsOf(const Program& program) {
  std::vector<Input> inputs;
  for (const Program::Port& port : program.inputs) inputs.push_back({port.slot, program.aval(port.var)});
  return inputs;
}

std::vector<Slot> OutputSlotsOf(const Program& program) {
  std::vector<Slot> slots;
  for (const Program::Port& port : program.outputs) slots.push_back(port.slot);
  return slots;
}

absl::StatusOr<Program> Rewrite(const Program& program, RewriteRule rule) {
  return Trace(
      [&](absl::Span<const Value> args) {
        absl::StatusOr<std::vector<Value>> out = RewriteValues(program, args, rule);
        if (out.ok()) return *std::move(out);
        internal::ReportError(out.status());  // kept only if nothing has failed before
        return std::vector<Value>();
      },
      InputsOf(program), OutputSlotsOf(program));
}

}  // namespace aqt
