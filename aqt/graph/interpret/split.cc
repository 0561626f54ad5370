#include "aqt/graph/interpret/split.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include "aqt/graph/eval_op.h"
#include "aqt/graph/interpret/depends_on.h"

namespace aqt {
namespace {

// Which equations are evaluated and which stay.
struct Division {
  std::vector<bool> is_known;             // by variable
  std::vector<bool> is_constant;          // by variable: known from constants alone
  std::vector<bool> stays, is_evaluated;  // by equation; a broadcast may be both
  std::vector<bool> is_read;              // by variable: by what stays
  bool frozen_outputs_are_results;

  bool IsResult(const Program::Port& port) const {
    return frozen_outputs_are_results && port.slot.kind == SlotKind::kFrozen && is_known[port.var];
  }
};

Division Divide(const Program& program, const SlotValues& known, const SplitOptions& options) {
  Division division;
  division.frozen_outputs_are_results = options.frozen_outputs_are_results;
  division.is_known = DependsOnlyOn(program, [&](const Slot& slot) { return known.contains(slot); });
  division.is_constant = DependsOnlyOn(program, [](const Slot&) { return false; });
  division.stays.resize(program.eqns.size());
  division.is_evaluated.resize(program.eqns.size());
  division.is_read.resize(program.vars.size());
  std::vector<bool> is_wanted(program.vars.size());  // by what is evaluated, and as a result
  for (const Program::Port& port : program.outputs) {
    (division.IsResult(port) ? is_wanted : division.is_read)[port.var] = true;
  }
  for (size_t i = program.eqns.size(); i-- > 0;) {
    const Equation& eqn = program.eqns[i];
    const auto any = [&](const std::vector<bool>& of) {
      return std::any_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return of[var]; });
    };
    const bool is_known = std::all_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) { return division.is_known[var]; });
    const bool is_broadcast = std::holds_alternative<BroadcastOp>(eqn.op);
    division.stays[i] = !is_known || (is_broadcast && any(division.is_read));
    division.is_evaluated[i] = is_known && (any(is_wanted) || (!is_broadcast && any(division.is_read)));
    for (const VarId var : eqn.in) {
      if (division.stays[i]) division.is_read[var] = true;
      if (division.is_evaluated[i]) is_wanted[var] = true;
    }
  }
  return division;
}

}  // namespace

absl::StatusOr<Split> SplitProgram(const Program& program, const SlotValues& known, const SplitOptions& options) {
  const Division division = Divide(program, known, options);
  Split split;
  Program& rest = split.rest;
  rest = program;
  rest.eqns.clear();
  std::vector<std::optional<Array>> values(program.vars.size());
  for (const auto& [var, array] : program.consts) values[var] = array;
  for (const Program::Port& port : program.inputs) {
    if (division.is_known[port.var]) values[port.var] = known.at(port.slot);
  }
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    const Equation& eqn = program.eqns[i];
    if (division.stays[i]) rest.eqns.push_back(eqn);
    if (!division.is_evaluated[i]) continue;
    std::vector<Array> in;
    for (const VarId var : eqn.in) in.push_back(*values[var]);
    absl::StatusOr<std::vector<Array>> out = EvalOp(eqn.op, in);
    if (!out.ok()) return DescribeError(out.status(), program, eqn);
    for (size_t j = 0; j < out->size(); ++j) {
      const VarId var = eqn.out[j];
      values[var] = std::move((*out)[j]);
      if (division.stays[i] || !division.is_read[var]) continue;
      split.evaluated.push_back({var, static_cast<int>(i), division.is_constant[var], *values[var]});
    }
  }
  erase_if(rest.consts, [&](const auto& constant) { return !division.is_read[constant.first]; });
  std::erase_if(rest.inputs,
                [&](const Program::Port& port) { return division.is_known[port.var] && !division.is_read[port.var]; });
  std::erase_if(rest.outputs, [&](const Program::Port& port) { return division.IsResult(port); });
  for (const Program::Port& port : program.outputs) {
    if (division.IsResult(port)) split.results.emplace(port.slot, *values[port.var]);
  }
  return split;
}

}  // namespace aqt
