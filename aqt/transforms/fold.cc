#include "aqt/transforms/fold.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/eval_op.h"
#include "aqt/transforms/dce.h"

namespace aqt {
namespace {

// How a variable's value comes to be known.
enum class Known { kNo, kConstant, kInput, kFromConstants, kFromInputs };

class Folder {
 public:
  Folder(const Program& program, const SlotValues& known)
      : program_(program), known_(known), state_(program.vars.size(), Known::kNo), values_(program.vars.size()) {}

  absl::StatusOr<Folded> Run() {
    AQT_RETURN_IF_ERROR(FindKnown());
    AQT_RETURN_IF_ERROR(Evaluate());
    return Rebuild();
  }

 private:
  bool IsKnown(VarId var) const { return state_[var] != Known::kNo; }

  absl::Status FindKnown() {
    for (const Program::Port& port : program_.inputs) {
      const auto it = known_.find(port.slot);
      if (it == known_.end()) continue;
      if (it->second.aval() != program_.aval(port.var)) {
        return absl::InvalidArgumentError(absl::StrCat("fold: input ", port.slot.ToString(), " is ",
                                                       program_.aval(port.var).ToString(), ", the known value is ",
                                                       it->second.aval().ToString()));
      }
      state_[port.var] = Known::kInput;
      values_[port.var] = it->second;
    }
    for (const auto& [var, array] : program_.consts) {
      state_[var] = Known::kConstant;
      values_[var] = array;
    }
    folded_.assign(program_.eqns.size(), false);
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (!std::all_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) { return IsKnown(var); })) continue;
      const bool constant = std::all_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) {
        return state_[var] == Known::kConstant || state_[var] == Known::kFromConstants;
      });
      folded_[i] = true;
      for (VarId var : eqn.out) state_[var] = constant ? Known::kFromConstants : Known::kFromInputs;
    }
    // What stays: equations that are not known, and broadcasts of known values that these use; last first, as a
    // broadcast may be used by a broadcast.
    used_.assign(program_.vars.size(), false);
    for (const Program::Port& port : program_.outputs) used_[port.var] = used_[port.var] || !IsStored(port);
    stays_.assign(program_.eqns.size(), false);
    for (size_t i = program_.eqns.size(); i-- > 0;) {
      const Equation& eqn = program_.eqns[i];
      stays_[i] = !folded_[i] || (std::holds_alternative<BroadcastOp>(eqn.op) && used_[eqn.out[0]]);
      if (!stays_[i]) continue;
      for (VarId var : eqn.in) used_[var] = true;
    }
    return absl::OkStatus();
  }

  // A frozen output of something computed from known inputs becomes a value.
  bool IsStored(const Program::Port& port) const {
    return port.slot.kind == SlotKind::kFrozen && state_[port.var] == Known::kFromInputs;
  }

  absl::Status Evaluate() {
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (!folded_[i]) continue;
      std::vector<Array> in;
      for (VarId var : eqn.in) in.push_back(*values_[var]);
      absl::StatusOr<std::vector<Array>> out = EvalOp(eqn.op, in);
      if (!out.ok()) return DescribeError(out.status(), program_, eqn);
      for (size_t j = 0; j < out->size(); ++j) values_[eqn.out[j]] = std::move((*out)[j]);
    }
    return absl::OkStatus();
  }

  // The name of a computed value: the frozen output that it is, or one made of its scope.
  std::string PathOf(VarId var, const Equation& eqn) {
    for (const Program::Port& port : program_.outputs) {
      if (port.var == var && port.slot.kind == SlotKind::kFrozen) return port.slot.path;
    }
    const std::string& scope = program_.scope(eqn);
    while (true) {
      std::string path = absl::StrCat(scope, scope.empty() ? "" : "/", "folded_", counters_[scope]++);
      const Slot slot{SlotKind::kFrozen, path};
      const bool taken = std::any_of(program_.inputs.begin(), program_.inputs.end(),
                                     [&](const Program::Port& port) { return port.slot == slot; });
      if (!taken) return path;
    }
  }

  absl::StatusOr<Folded> Rebuild() {
    Folded folded;
    Program& out = folded.program;
    out = program_;
    out.eqns.clear();
    out.outputs.clear();
    for (const Program::Port& port : program_.outputs) {
      if (!IsStored(port)) out.outputs.push_back(port);
    }
    std::vector<Program::Port> frozen;
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (stays_[i]) {
        out.eqns.push_back(eqn);
        continue;
      }
      for (VarId var : eqn.out) {
        const bool named = std::any_of(program_.outputs.begin(), program_.outputs.end(),
                                       [&](const Program::Port& port) { return port.var == var && IsStored(port); });
        if (!used_[var] && !named) continue;
        if (state_[var] == Known::kFromConstants) {
          out.consts.emplace(var, *values_[var]);
          continue;
        }
        const Slot slot{SlotKind::kFrozen, PathOf(var, eqn)};
        folded.values.emplace(slot, *values_[var]);
        if (used_[var]) frozen.push_back({var, slot});
      }
    }
    // Known inputs stay when the rest uses them.
    const auto goes = [&](const Program::Port& port) { return IsKnown(port.var) && !used_[port.var]; };
    out.inputs.erase(std::remove_if(out.inputs.begin(), out.inputs.end(), goes), out.inputs.end());
    for (const Program::Port& port : out.inputs) {
      if (IsKnown(port.var)) folded.values.emplace(port.slot, *values_[port.var]);
    }
    out.inputs.insert(out.inputs.end(), frozen.begin(), frozen.end());
    out = Dce(out);
    AQT_RETURN_IF_ERROR(Check(out));
    return folded;
  }

  const Program& program_;
  const SlotValues& known_;
  std::vector<Known> state_;
  std::vector<std::optional<Array>> values_;
  std::vector<bool> folded_, stays_;  // by equation: can be computed now; is part of the result
  std::vector<bool> used_;            // by variable: a part of the result uses it
  absl::btree_map<std::string, int> counters_;
};

}  // namespace

absl::StatusOr<Folded> Fold(const Program& program, const SlotValues& known) {
  const Program live = Dce(program);
  return Folder(live, known).Run();
}

}  // namespace aqt
