#include "aqt/graph/interpret/grad.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/interpret/vjp.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

const Composite* CompositeOf(const Equation& eqn) {
  const CompositeOp* op = std::get_if<CompositeOp>(&eqn.op);
  return op == nullptr ? nullptr : op->impl.get();
}

bool LetsGradientsThrough(const Equation& eqn) {
  if (const Composite* composite = CompositeOf(eqn)) return composite->has_gradient() || composite->has_expansion();
  return !std::holds_alternative<StopGradientOp>(eqn.op);
}

// For each variable, whether it depends on a wrt input through floats.
std::vector<bool> ActiveVars(const Program& program, absl::Span<const int> wrt) {
  std::vector<bool> active(program.vars.size(), false);
  for (int position : wrt) active[program.inputs[position].var] = true;
  for (const Equation& eqn : program.eqns) {
    bool any = false;
    for (VarId var : eqn.in) any = any || active[var];
    if (!any || !LetsGradientsThrough(eqn)) continue;
    for (VarId var : eqn.out) active[var] = IsFloat(program.aval(var).dtype);
  }
  return active;
}

bool AnyActive(const std::vector<bool>& active, absl::Span<const VarId> vars) {
  for (VarId var : vars) {
    if (active[var]) return true;
  }
  return false;
}

absl::Status CheckArguments(const Program& program, absl::Span<const int> wrt) {
  const auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("grad: ", parts...));
  };
  if (program.outputs.empty()) return invalid("the program has no output; output 0 must be the loss");
  const Aval& loss = program.aval(program.outputs[0].var);
  if (loss.shape.rank() != 0 || !kernels::IsArithmetic(loss.dtype) || !IsFloat(loss.dtype)) {
    return invalid("output 0, the loss, is ", loss.ToString(),
                   " instead of a scalar of f16, bf16, f32 or f64; reduce it first");
  }
  std::vector<bool> seen(program.inputs.size(), false);
  for (int position : wrt) {
    if (position < 0 || position >= static_cast<int>(program.inputs.size())) {
      return invalid("no input ", position, "; the program has ", program.inputs.size());
    }
    const Program::Port& port = program.inputs[position];
    if (seen[position]) return invalid("input ", port.slot.ToString(), " is named twice");
    seen[position] = true;
    const DType dtype = program.aval(port.var).dtype;
    if (!IsFloat(dtype)) return invalid("input ", port.slot.ToString(), " is ", ToString(dtype), ", no float");
  }
  return absl::OkStatus();
}

// Repeatedly replaces composites that need a gradient and have none of their own by their expansions.
absl::StatusOr<Program> ExpandWithoutGradient(Program program, absl::Span<const int> wrt) {
  constexpr int kMaxDepth = 100;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const std::vector<bool> active = ActiveVars(program, wrt);
    const auto expands = [&](const Equation& eqn) {
      const Composite* composite = CompositeOf(eqn);
      return composite != nullptr && !composite->has_gradient() && composite->has_expansion() &&
             AnyActive(active, eqn.in);
    };
    bool any = false;
    for (const Equation& eqn : program.eqns) any = any || expands(eqn);
    if (!any) return program;
    AQT_ASSIGN_OR_RETURN(program, Rewrite(program, [&](const Equation& eqn, absl::Span<const Value> operands) {
                           return expands(eqn) ? CompositeOf(eqn)->Expand(operands) : BindAgain(eqn, operands);
                         }));
  }
  return absl::InvalidArgumentError(absl::StrCat("grad: expansions are nested more than ", kMaxDepth, " deep"));
}

// Slices of one variable, in their order along the axis that they cut. They are the only equations through which it has
// a gradient, so its cotangent is the concatenation of theirs.
struct SliceGroup {
  int64_t axis = 0;
  std::vector<const Equation*> slices;
  const Equation* first = nullptr;  // in the order of the program, so the last one of a backward walk
};

// The axis that a slice cuts, keeping all elements of the others; nullopt if there is no such axis or if it skips
// elements.
std::optional<int64_t> CutAxis(const SliceOp& op, const Shape& shape) {
  std::optional<int64_t> cut;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    if (op.stride[i] != 1) return std::nullopt;
    if (op.start[i] == 0 && op.limit[i] == shape[i]) continue;
    if (cut.has_value()) return std::nullopt;
    cut = i;
  }
  return cut;
}

// The group formed by these equations, if they are one. They must be all equations through which a variable of this
// shape has a gradient.
std::optional<SliceGroup> GroupOf(const std::vector<const Equation*>& uses, const Shape& shape) {
  if (uses.size() < 2) return std::nullopt;
  SliceGroup group{.slices = uses, .first = uses[0]};
  for (const Equation* eqn : uses) {
    const SliceOp* slice = std::get_if<SliceOp>(&eqn->op);
    const std::optional<int64_t> axis = slice == nullptr ? std::nullopt : CutAxis(*slice, shape);
    if (!axis.has_value() || (eqn != uses[0] && *axis != group.axis)) return std::nullopt;
    group.axis = *axis;
  }
  const auto start = [&](const Equation* eqn) { return std::get<SliceOp>(eqn->op).start[group.axis]; };
  std::sort(group.slices.begin(), group.slices.end(),
            [&](const Equation* a, const Equation* b) { return start(a) < start(b); });
  int64_t end = 0;
  for (const Equation* eqn : group.slices) {
    if (start(eqn) != end) return std::nullopt;
    end = std::get<SliceOp>(eqn->op).limit[group.axis];
  }
  return end == shape[group.axis] ? std::make_optional(std::move(group)) : std::nullopt;
}

// Groups by the variable that is sliced.
absl::flat_hash_map<VarId, SliceGroup> SliceGroups(const Program& program, const std::vector<bool>& active) {
  absl::flat_hash_map<VarId, std::vector<const Equation*>> uses;
  for (const Equation& eqn : program.eqns) {
    if (!AnyActive(active, eqn.out)) continue;
    for (const VarId var : eqn.in) {
      if (active[var]) uses[var].push_back(&eqn);
    }
  }
  absl::flat_hash_map<VarId, SliceGroup> groups;
  for (const auto& [var, eqns] : uses) {
    std::optional<SliceGroup> group = GroupOf(eqns, program.aval(var).shape);
    if (group.has_value()) groups.emplace(var, *std::move(group));
  }
  return groups;
}

// Reverse mode over one program, inside a trace.
class Differentiator {
 public:
  Differentiator(const Program& program, absl::Span<const int> wrt)
      : program_(program),
        active_(ActiveVars(program, wrt)),
        groups_(SliceGroups(program, active_)),
        cotangents_(program.vars.size()) {}

  absl::StatusOr<std::vector<Value>> Forward(absl::Span<const Value> args) {
    return RewriteValues(program_, args, [&](const Equation& eqn, absl::Span<const Value> operands) {
      return ForwardRule(eqn, operands);
    });
  }

  // Seeds output 0 with 1 and walks back.
  absl::Status Backward() {
    const VarId loss = program_.outputs[0].var;
    cotangents_[loss] = ValueOrNumber(1.0).As(program_.aval(loss).dtype);
    for (auto entry = tape_.rbegin(); entry != tape_.rend(); ++entry) {
      const Provenance provenance(absl::StrCat("grad(", program_.scope(*entry->eqn), ")"), entry->eqn->where);
      if (absl::Status status = Step(*entry); !status.ok()) return DescribeError(status, program_, *entry->eqn);
    }
    return absl::OkStatus();
  }

  Value CotangentOf(VarId var) const {
    if (cotangents_[var].has_value()) return *cotangents_[var];
    const Aval& aval = program_.aval(var);
    return ops::BroadcastTo(ValueOrNumber(0.0).As(aval.dtype), aval.shape);
  }

 private:
  struct Entry {
    const Equation* eqn;
    std::vector<Value> saved;  // operands, then outputs; for a composite, its residuals
  };

  absl::StatusOr<std::vector<Value>> ForwardRule(const Equation& eqn, absl::Span<const Value> operands) {
    if (!AnyActive(active_, eqn.out)) return BindAgain(eqn, operands);
    if (const Composite* composite = CompositeOf(eqn)) {
      Composite::Forward forward = composite->GradForward(operands);
      tape_.push_back({&eqn, std::move(forward.residuals)});
      return std::move(forward.outputs);
    }
    std::vector<Value> outputs = BindAgain(eqn, operands);
    Entry entry{&eqn, {operands.begin(), operands.end()}};
    entry.saved.push_back(outputs[0]);
    tape_.push_back(std::move(entry));
    return outputs;
  }

  // Whether this is a slice of a group. The first one has the cotangents of all slices, concatenated: the same as
  // summing them padded with zeros.
  bool IsGrouped(const Equation& eqn) {
    const auto it = std::holds_alternative<SliceOp>(eqn.op) ? groups_.find(eqn.in[0]) : groups_.end();
    if (it == groups_.end()) return false;
    const SliceGroup& group = it->second;
    if (group.first != &eqn) return true;
    std::vector<Value> parts;
    bool any = false;
    for (const Equation* slice : group.slices) {
      const VarId part = slice->out[0];
      any = any || cotangents_[part].has_value();
      parts.push_back(CotangentOf(part));
      cotangents_[part].reset();
    }
    if (any) cotangents_[eqn.in[0]] = ops::Concatenate(parts, group.axis);
    return true;
  }

  absl::Status Step(const Entry& entry) {
    const Equation& eqn = *entry.eqn;
    if (IsGrouped(eqn)) return absl::OkStatus();
    bool any = false;
    for (VarId var : eqn.out) any = any || cotangents_[var].has_value();
    if (!any) return absl::OkStatus();
    std::vector<std::optional<Value>> out;
    if (const Composite* composite = CompositeOf(eqn)) {
      std::vector<Value> cotangents;
      for (VarId var : eqn.out) cotangents.push_back(CotangentOf(var));
      out = composite->GradBackward(entry.saved, cotangents);
    } else {
      absl::InlinedVector<bool, 4> wanted;
      for (VarId var : eqn.in) wanted.push_back(active_[var]);
      const absl::Span<const Value> saved = entry.saved;
      out = internal::Vjp(eqn.op, saved.subspan(0, eqn.in.size()), saved.back(), *cotangents_[eqn.out[0]], wanted);
    }
    if (out.size() != eqn.in.size()) {
      return absl::InternalError(
          absl::StrCat("the gradient has ", out.size(), " cotangents for ", eqn.in.size(), " operands"));
    }
    for (VarId var : eqn.out) cotangents_[var].reset();
    for (size_t i = 0; i < out.size(); ++i) {
      const VarId var = eqn.in[i];
      if (!active_[var] || !out[i].has_value()) continue;
      if (out[i]->status().ok() && out[i]->aval() != program_.aval(var)) {
        return absl::InternalError(absl::StrCat("the cotangent of operand ", i, " is ", out[i]->aval().ToString(),
                                                " instead of ", program_.aval(var).ToString()));
      }
      cotangents_[var] = cotangents_[var].has_value() ? internal::AddCotangents(*cotangents_[var], *out[i]) : *out[i];
    }
    return absl::OkStatus();
  }

  const Program& program_;
  const std::vector<bool> active_;
  const absl::flat_hash_map<VarId, SliceGroup> groups_;
  std::vector<Entry> tape_;
  std::vector<std::optional<Value>> cotangents_;  // by variable; reset once consumed
};

absl::StatusOr<Program> Differentiate(const Program& original, absl::Span<const int> wrt, bool keep_data) {
  AQT_RETURN_IF_ERROR(CheckArguments(original, wrt));
  AQT_ASSIGN_OR_RETURN(const Program program, ExpandWithoutGradient(original, wrt));
  std::vector<Slot> slots;
  std::vector<size_t> kept;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    if (!keep_data && program.outputs[i].slot.kind == SlotKind::kData) continue;
    kept.push_back(i);
    slots.push_back(program.outputs[i].slot);
  }
  for (int position : wrt) {
    slots.push_back({SlotKind::kData, absl::StrCat("grad(", program.inputs[position].slot.path, ")")});
  }
  return Trace(
      [&](absl::Span<const Value> args) {
        Differentiator differentiator(program, wrt);
        std::vector<Value> results;
        absl::StatusOr<std::vector<Value>> outputs = differentiator.Forward(args);
        absl::Status status = outputs.status();
        // The placeholder of a failed operation has no shape that a rule could rely on.
        for (size_t i = 0; status.ok() && i < outputs->size(); ++i) status = (*outputs)[i].status();
        if (status.ok()) status = differentiator.Backward();
        if (!status.ok()) {
          internal::ReportError(status);  // kept only if nothing has failed before
          return results;
        }
        for (size_t i : kept) results.push_back((*outputs)[i]);
        for (int position : wrt) results.push_back(differentiator.CotangentOf(program.inputs[position].var));
        return results;
      },
      InputsOf(program), slots);
}

}  // namespace

absl::StatusOr<Program> ValueAndGrad(const Program& program, absl::Span<const int> wrt) {
  return Differentiate(program, wrt, /*keep_data=*/true);
}

absl::StatusOr<Program> Grad(const Program& program, absl::Span<const int> wrt) {
  return Differentiate(program, wrt, /*keep_data=*/false);
}

}  // namespace aqt
