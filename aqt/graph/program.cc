#include "aqt/graph/program.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/checked_extents.h"

namespace aqt {
namespace {

std::string AvalList(absl::Span<const Aval> avals) {
  return absl::StrJoin(avals, ", ", [](std::string* out, const Aval& aval) { out->append(aval.ToString()); });
}

std::vector<Aval> AvalsOf(const Program& program, absl::Span<const VarId> vars) {
  std::vector<Aval> avals;
  avals.reserve(vars.size());
  for (VarId var : vars) avals.push_back(program.aval(var));
  return avals;
}

absl::Status CheckSlots(absl::string_view what, absl::Span<const Program::Port> ports) {
  absl::flat_hash_set<std::string> seen;
  for (const Program::Port& port : ports) {
    if (!seen.insert(port.slot.ToString()).second) {
      return absl::InternalError(absl::StrCat("two ", what, "s are named ", port.slot.ToString()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ToString(SlotKind kind) {
  switch (kind) {
    case SlotKind::kParam: return "param";
    case SlotKind::kStat: return "stat";
    case SlotKind::kFrozen: return "frozen";
    case SlotKind::kKey: return "key";
    case SlotKind::kData: return "data";
  }
  return "?";
}

std::optional<SlotKind> SlotKindFromString(absl::string_view text) {
  for (const SlotKind kind : {SlotKind::kParam, SlotKind::kStat, SlotKind::kFrozen, SlotKind::kKey, SlotKind::kData}) {
    if (ToString(kind) == text) return kind;
  }
  return std::nullopt;
}

std::string Slot::ToString() const { return absl::StrCat(aqt::ToString(kind), " \"", path, "\""); }

ScopeTable::Id ScopeTable::Intern(absl::string_view name) {
  const auto [it, inserted] = ids_.try_emplace(std::string(name), size());
  if (inserted) names_.emplace_back(name);
  return it->second;
}

std::vector<Aval> Program::InputAvals() const {
  std::vector<Aval> avals;
  for (const Port& port : inputs) avals.push_back(aval(port.var));
  return avals;
}

std::vector<int> Program::InputsOfKind(SlotKind kind) const {
  std::vector<int> positions;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].slot.kind == kind) positions.push_back(static_cast<int>(i));
  }
  return positions;
}

absl::Status DescribeError(const absl::Status& status, absl::string_view op, absl::string_view scope,
                           absl::Span<const Aval> operands, const SourceLine& where) {
  return absl::Status(
      status.code(),
      absl::StrCat(op, scope.empty() ? "" : absl::StrCat(" [", scope, "]"), ": ", status.message(), "; operands ",
                   operands.empty() ? "none" : AvalList(operands), "; at ", where.ToString()));
}

absl::Status DescribeError(const absl::Status& status, const Program& program, const Equation& eqn) {
  return DescribeError(status, OpName(eqn.op), program.scope(eqn), AvalsOf(program, eqn.in), eqn.where);
}

absl::Status Check(const Program& program) {
  std::vector<bool> bound(program.vars.size(), false);
  const auto in_range = [&](VarId var) { return var >= 0 && static_cast<size_t>(var) < program.vars.size(); };
  const auto bind = [&](VarId var) {
    if (!in_range(var) || bound[var])
      return absl::InternalError(absl::StrCat("variable ", var, " is bound twice or unknown"));
    bound[var] = true;
    return absl::OkStatus();
  };
  const auto use = [&](VarId var) {
    return in_range(var) && bound[var]
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("variable ", var, " is used before it is bound"));
  };
  for (const Program::Port& port : program.inputs) {
    if (absl::Status s = bind(port.var); !s.ok()) return s;
    if (absl::Status s = CheckShape(program.aval(port.var).shape); !s.ok()) return absl::InternalError(s.message());
  }
  for (const auto& [var, array] : program.consts) {
    if (absl::Status s = bind(var); !s.ok()) return s;
    if (array.aval() != program.aval(var)) {
      return absl::InternalError(absl::StrCat("constant ", var, " is ", array.aval().ToString(), ", declared as ",
                                              program.aval(var).ToString()));
    }
  }
  for (const Equation& eqn : program.eqns) {
    if (eqn.scope < 0 || eqn.scope >= program.scopes.size()) return absl::InternalError("unknown scope");
    for (VarId var : eqn.in) {
      if (absl::Status s = use(var); !s.ok()) return s;
    }
    absl::StatusOr<std::vector<Aval>> out = InferOp(eqn.op, AvalsOf(program, eqn.in));
    if (!out.ok()) return DescribeError(absl::InternalError(out.status().message()), program, eqn);
    if (out->size() != eqn.out.size()) {
      return DescribeError(
          absl::InternalError(absl::StrCat("has ", eqn.out.size(), " outputs instead of ", out->size())), program, eqn);
    }
    for (size_t i = 0; i < out->size(); ++i) {
      if (absl::Status s = bind(eqn.out[i]); !s.ok()) return DescribeError(s, program, eqn);
      if ((*out)[i] != program.aval(eqn.out[i])) {
        return DescribeError(
            absl::InternalError(absl::StrCat("output ", i, " is declared as ", program.aval(eqn.out[i]).ToString(),
                                             " and inferred as ", (*out)[i].ToString())),
            program, eqn);
      }
    }
  }
  for (const Program::Port& port : program.outputs) {
    if (absl::Status s = use(port.var); !s.ok()) return s;
  }
  if (absl::Status s = CheckSlots("input", program.inputs); !s.ok()) return s;
  return CheckSlots("output", program.outputs);
}

}  // namespace aqt
