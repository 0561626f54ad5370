#include "aqt/graph/initial_stats.h"

#include <optional>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "aqt/core/array.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/op.h"

namespace aqt {

SlotValues InitialStats(const Program& program) {
  absl::flat_hash_map<VarId, const Slot*> slots;
  for (const Program::Port& port : program.inputs) {
    if (port.slot.kind == SlotKind::kStat) slots.emplace(port.var, &port.slot);
  }
  SlotValues values;
  for (const Equation& eqn : program.eqns) {
    const CompositeOp* op = std::get_if<CompositeOp>(&eqn.op);
    if (op == nullptr) continue;
    const std::vector<std::optional<Array>> initial = op->impl->InitialStatistics();
    for (size_t i = 0; i < initial.size(); ++i) {
      const auto slot = slots.find(eqn.in[i]);
      if (initial[i].has_value() && slot != slots.end()) values.emplace(*slot->second, *initial[i]);
    }
  }
  return values;
}

}  // namespace aqt
