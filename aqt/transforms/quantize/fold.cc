#include "aqt/transforms/quantize/fold.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/depends_on.h"
#include "aqt/graph/interpret/needed.h"
#include "aqt/graph/interpret/split.h"
#include "aqt/transforms/dce.h"

namespace aqt {
namespace {

absl::Status CheckKnown(const Program& program, const SlotValues& known) {
  for (const Program::Port& port : program.inputs) {
    const auto it = known.find(port.slot);
    if (it == known.end()) continue;
    if (port.slot.kind == SlotKind::kKey) {
      return absl::InvalidArgumentError(absl::StrCat("fold: ", port.slot.ToString(),
                                                     " is known; leave keys out, for their noise would be that of "
                                                     "every call"));
    }
    if (it->second.aval() != program.aval(port.var)) {
      return absl::InvalidArgumentError(absl::StrCat("fold: input ", port.slot.ToString(), " is ",
                                                     program.aval(port.var).ToString(), ", the known value is ",
                                                     it->second.aval().ToString()));
    }
  }
  return absl::OkStatus();
}

// If a frozen output depends on parameters or statistics without a value, the model was converted without them. One
// that depends on data or a key stays an output.
absl::Status CheckFrozenOutputs(const Program& program, const SlotValues& known) {
  const std::vector<bool> is_known = DependsOnlyOn(program, [&](const Slot& slot) { return known.contains(slot); });
  for (const Program::Port& out : program.outputs) {
    if (out.slot.kind != SlotKind::kFrozen || is_known[out.var]) continue;
    const std::vector<bool> needed = NeededFor(program, {out.var});
    std::vector<std::string> missing;
    for (const Program::Port& in : program.inputs) {
      const bool is_state = in.slot.kind == SlotKind::kParam || in.slot.kind == SlotKind::kStat;
      if (needed[in.var] && is_state && !is_known[in.var]) missing.push_back(in.slot.ToString());
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

// Names for computed values.
class Namer {
 public:
  Namer(const Program& program, const SlotValues& results) : program_(program), results_(results) {}

  // That of the first result with this value, or one made from its scope.
  Slot SlotFor(VarId var, const Equation& eqn) {
    for (const Program::Port& port : program_.outputs) {
      if (port.var == var && results_.contains(port.slot)) return port.slot;
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

 private:
  const Program& program_;
  const SlotValues& results_;
  absl::btree_map<std::string, int> counters_;
};

}  // namespace

absl::StatusOr<Folded> Fold(const Program& program, const SlotValues& known) {
  const Program live = Dce(program);
  AQT_RETURN_IF_ERROR(CheckKnown(live, known));
  AQT_RETURN_IF_ERROR(CheckFrozenOutputs(live, known));
  AQT_ASSIGN_OR_RETURN(Split split, SplitProgram(live, known, {.frozen_outputs_are_results = true}));
  Folded folded{.program = std::move(split.rest), .values = std::move(split.results)};
  Program& rest = folded.program;
  // Known inputs that the rest reads stay.
  for (const Program::Port& port : rest.inputs) {
    const auto written = std::find_if(live.outputs.begin(), live.outputs.end(),
                                      [&](const Program::Port& output) { return output.slot == port.slot; });
    if (folded.values.contains(port.slot) && written->var != port.var) {
      return absl::InvalidArgumentError(
          absl::StrCat("fold: ", port.slot.ToString(),
                       " is an input that the folded program still reads, and an output with another value; "
                       "rename one of them"));
    }
  }
  Namer namer(live, folded.values);
  std::vector<Program::Port> frozen;
  SlotValues named;
  for (Split::Evaluated& evaluated : split.evaluated) {
    if (evaluated.from_constants) {
      rest.consts.emplace(evaluated.var, std::move(evaluated.value));
      continue;
    }
    frozen.push_back({evaluated.var, namer.SlotFor(evaluated.var, live.eqns[evaluated.eqn])});
    named.emplace(frozen.back().slot, std::move(evaluated.value));
  }
  for (const Program::Port& port : rest.inputs) {
    if (const auto it = known.find(port.slot); it != known.end()) named.emplace(*it);
  }
  folded.values.insert(named.begin(), named.end());
  rest.inputs.insert(rest.inputs.end(), frozen.begin(), frozen.end());
  rest = Dce(rest);
  AQT_RETURN_IF_ERROR(Check(rest));
  return folded;
}

}  // namespace aqt
