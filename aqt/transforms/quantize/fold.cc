#include "aqt/transforms/quantize/fold.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/eval_op.h"
#include "aqt/transforms/dce.h"

namespace aqt {
namespace {

// Why a variable's value is known.
enum class Known { kNo, kConstant, kInput, kFromConstants, kFromInputs };

class Folder {
 public:
  Folder(const Program& program, const SlotValues& known)
      : program_(program), known_(known), state_(program.vars.size(), Known::kNo), values_(program.vars.size()) {}

  absl::StatusOr<Folded> Run() {
    AQT_RETURN_IF_ERROR(FindKnown());
    AQT_RETURN_IF_ERROR(CheckFrozenOutputs());
    AQT_RETURN_IF_ERROR(Evaluate());
    return Rebuild();
  }

 private:
  bool IsKnown(VarId var) const { return state_[var] != Known::kNo; }

  absl::Status FindKnown() {
    for (const Program::Port& port : program_.inputs) {
      const auto it = known_.find(port.slot);
      if (it == known_.end()) continue;
      if (port.slot.kind == SlotKind::kKey) {
        return absl::InvalidArgumentError(absl::StrCat("fold: ", port.slot.ToString(),
                                                       " is known; leave keys out, for their noise would be that of "
                                                       "every call"));
      }
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
    // An equation stays if it is not known, or is a broadcast of a known value that the rest uses. Iterates from last
    // to first, because a broadcast may be used by another one.
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

  // A frozen output that is known becomes a stored value.
  bool IsStored(const Program::Port& port) const { return port.slot.kind == SlotKind::kFrozen && IsKnown(port.var); }

  // If a frozen output depends on parameters or statistics without a value, the model was converted without them. One
  // that depends on data or a key stays an output.
  absl::Status CheckFrozenOutputs() const {
    std::vector<bool> needed(program_.vars.size(), false);
    for (const Program::Port& out : program_.outputs) {
      if (out.slot.kind != SlotKind::kFrozen || IsKnown(out.var)) continue;
      needed.assign(program_.vars.size(), false);
      needed[out.var] = true;
      for (size_t i = program_.eqns.size(); i-- > 0;) {
        const Equation& eqn = program_.eqns[i];
        const bool any = std::any_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return needed[var]; });
        if (!any) continue;
        for (VarId var : eqn.in) needed[var] = true;
      }
      std::vector<std::string> missing;
      for (const Program::Port& in : program_.inputs) {
        const bool is_state = in.slot.kind == SlotKind::kParam || in.slot.kind == SlotKind::kStat;
        if (needed[in.var] && is_state && !IsKnown(in.var)) missing.push_back(in.slot.ToString());
      }
      if (missing.empty()) continue;
      return absl::NotFoundError(absl::StrCat("fold: ", out.slot.ToString(), " is computed from ",
                                              absl::StrJoin(missing, ", "), ", which ",
                                              missing.size() == 1 ? "has" : "have",
                                              " no value: give parameters and statistics, such as the state of a "
                                              "training or of a calibration"));
    }
    return absl::OkStatus();
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

  // The name of a computed value: that of the first frozen output with this value, or one made from its scope.
  Slot SlotFor(VarId var, const Equation& eqn) {
    for (const Program::Port& port : program_.outputs) {
      if (port.var == var && IsStored(port)) return port.slot;
    }
    const auto taken = [](const std::vector<Program::Port>& ports, const Slot& slot) {
      return std::any_of(ports.begin(), ports.end(), [&](const Program::Port& port) { return port.slot == slot; });
    };
    const std::string& scope = program_.scope(eqn);
    while (true) {
      const Slot slot{SlotKind::kFrozen, absl::StrCat(scope, scope.empty() ? "" : "/", "folded_", counters_[scope]++)};
      if (!taken(program_.inputs, slot) && !taken(program_.outputs, slot)) return slot;
    }
  }

  absl::StatusOr<Folded> Rebuild() {
    Folded folded;
    Program& out = folded.program;
    out = program_;
    out.eqns.clear();
    out.outputs.clear();
    for (const Program::Port& port : program_.outputs) {
      if (IsStored(port)) folded.values.emplace(port.slot, *values_[port.var]);
      else out.outputs.push_back(port);
    }
    std::vector<Program::Port> frozen;
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (stays_[i]) {
        out.eqns.push_back(eqn);
        continue;
      }
      for (VarId var : eqn.out) {
        if (!used_[var]) continue;
        if (state_[var] == Known::kFromConstants) {
          out.consts.emplace(var, *values_[var]);
          continue;
        }
        frozen.push_back({var, SlotFor(var, eqn)});
        folded.values.emplace(frozen.back().slot, *values_[var]);
      }
    }
    // Known inputs stay if the rest uses them.
    const auto goes = [&](const Program::Port& port) { return IsKnown(port.var) && !used_[port.var]; };
    out.inputs.erase(std::remove_if(out.inputs.begin(), out.inputs.end(), goes), out.inputs.end());
    for (const Program::Port& port : out.inputs) {
      for (const Program::Port& written : program_.outputs) {
        if (IsStored(written) && written.slot == port.slot && written.var != port.var) {
          return absl::InvalidArgumentError(
              absl::StrCat("fold: ", port.slot.ToString(),
                           " is an input that the folded program still reads, and an output with another value; "
                           "rename one of them"));
        }
      }
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
  std::vector<bool> folded_, stays_;  // by equation: computed now; part of the result
  std::vector<bool> used_;            // by variable: used by a part of the result
  absl::btree_map<std::string, int> counters_;
};

}  // namespace

absl::StatusOr<Folded> Fold(const Program& program, const SlotValues& known) {
  const Program live = Dce(program);
  return Folder(live, known).Run();
}

}  // namespace aqt
