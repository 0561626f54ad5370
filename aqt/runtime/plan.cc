#include "aqt/runtime/plan.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/ceil_div.h"
#include "aqt/core/status_macros.h"
#include "aqt/runtime/fusion/elementwise_op.h"
#include "aqt/runtime/fusion/fused_kernel.h"
#include "aqt/runtime/fusion/fusion.h"
#include "aqt/runtime/fusion/op_kernels.h"
#include "aqt/runtime/fusion/strided_copy.h"
#include "aqt/runtime/memory/arena_layout.h"

namespace aqt::internal {
namespace {

// A smaller product is still in the caches when a group reads it.
constexpr int64_t kMinEpilogueBytes = 256 << 10;

// Whether the result equals the operand, element by element and in the same order.
bool GivesOperand(const Program& program, const Equation& eqn) {
  if (eqn.in.size() != 1 || eqn.out.size() != 1) return false;
  const Aval &in = program.aval(eqn.in[0]), &out = program.aval(eqn.out[0]);
  if (std::holds_alternative<ReshapeOp>(eqn.op) || std::holds_alternative<StopGradientOp>(eqn.op)) return true;
  if (std::holds_alternative<BitcastOp>(eqn.op)) return true;  // the same bits
  if (std::holds_alternative<CastOp>(eqn.op)) return in.dtype == out.dtype;
  if (in.shape.num_elements() != out.shape.num_elements()) return false;
  const std::optional<StridedCopy> copy = StridedCopy::Of(eqn.op, in, out);
  return copy.has_value() && copy->IsIdentity();
}

class Planner {
 public:
  Planner(const Program& program, bool fuse, bool epilogues) : program_(program), fuse_(fuse), epilogues_(epilogues) {}

  absl::StatusOr<Plan> Make() && {
    plan_.program = program_;
    plan_.variables.resize(program_.vars.size());
    FindLive();
    AQT_RETURN_IF_ERROR(MakeCompositeKernels());
    FindRoots();
    AddSteps();
    PlaceAll();
    LayOut();
    return std::move(plan_);
  }

 private:
  Variable& variable(VarId var) { return plan_.variables[var]; }
  Variable& root(VarId var) { return plan_.variables[plan_.variables[var].root]; }

  void FindLive() {
    live_.assign(program_.vars.size(), false);
    for (const Program::Port& port : program_.outputs) live_[port.var] = true;
    for (auto eqn = program_.eqns.rbegin(); eqn != program_.eqns.rend(); ++eqn) {
      if (IsLive(*eqn)) {
        for (const VarId var : eqn->in) live_[var] = true;
      }
    }
  }
  bool IsLive(const Equation& eqn) const {
    return std::any_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return live_[var]; });
  }

  // Those of live equations.
  absl::Status MakeCompositeKernels() {
    composite_kernels_.resize(program_.eqns.size());
    absl::flat_hash_map<VarId, Array> constants(program_.consts.begin(), program_.consts.end());
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (!IsLive(eqn)) continue;
      if (GivesOperand(program_, eqn)) {
        const auto it = constants.find(eqn.in[0]);
        if (it != constants.end())
          constants.insert({eqn.out[0], Array(program_.aval(eqn.out[0]), it->second.buffer())});
      }
      const auto* composite = std::get_if<CompositeOp>(&eqn.op);
      if (composite == nullptr) continue;
      std::vector<KernelInput> operands;
      for (const VarId var : eqn.in) {
        const auto it = constants.find(var);
        operands.push_back({program_.aval(var), it != constants.end() ? std::optional(it->second) : std::nullopt});
      }
      absl::InlinedVector<bool, 4> needed;
      for (const VarId var : eqn.out) needed.push_back(live_[var]);
      absl::StatusOr<OpKernel> kernel = composite->impl->MakeKernel(operands, needed);
      if (!kernel.ok()) return DescribeError(kernel.status(), program_, eqn);
      composite_kernels_[i] = *std::move(kernel);
    }
    return absl::OkStatus();
  }

  void FindRoots() {
    for (size_t var = 0; var < plan_.variables.size(); ++var) {
      variable(static_cast<VarId>(var)).root = static_cast<VarId>(var);
    }
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (GivesOperand(program_, eqn)) variable(eqn.out[0]).root = variable(eqn.in[0]).root;
      if (!composite_kernels_[i].has_value()) continue;
      for (const auto& [operand, output] : composite_kernels_[i]->same) {
        variable(eqn.out[output]).root = variable(eqn.in[operand]).root;
      }
    }
  }

  // Whether the equation writes a live result, and does not merely alias its operand.
  bool Runs(const Equation& eqn) {
    return std::any_of(eqn.out.begin(), eqn.out.end(),
                       [&](VarId var) { return live_[var] && variable(var).root == var; });
  }

  void AddSteps() {
    for (const Variable& own : plan_.variables) roots_.push_back(own.root);
    std::vector<bool> runs;
    for (const Equation& eqn : program_.eqns) {
      runs.push_back(Runs(eqn));
      for (const VarId var : eqn.in) num_reads_[roots_[var]] += runs.back();
    }
    for (const Program::Port& port : program_.outputs) ++num_reads_[roots_[port.var]];
    if (!fuse_) {
      for (size_t i = 0; i < runs.size(); ++i) {
        if (runs[i]) AddStep(static_cast<int>(i));
      }
      return;
    }
    const std::vector<FusedGroup> groups = FuseEquations(program_, roots_, runs);
    const std::vector<bool> is_read = ReadByOthers(groups);
    for (const FusedGroup& group : groups) {
      if (AddAsEpilogue(group, is_read)) continue;
      if (group.members.size() == 1) AddStep(group.members[0].eqn);
      else AddStep(group, is_read);
    }
    std::erase_if(plan_.steps, [](const PlannedStep& step) { return step.eqns.empty(); });
  }

  // For each variable, whether the program returns it, or a group other than its producer reads it.
  std::vector<bool> ReadByOthers(absl::Span<const FusedGroup> groups) {
    std::vector<bool> is_read(program_.vars.size(), false);
    std::vector<int> made_by(program_.vars.size(), -1);
    for (const Program::Port& port : program_.outputs) is_read[variable(port.var).root] = true;
    for (size_t i = 0; i < groups.size(); ++i) {
      for (const FusedMember& member : groups[i].members) {
        for (const VarId var : program_.eqns[member.eqn].out) made_by[var] = static_cast<int>(i);
      }
      for (const FusedMember& member : groups[i].members) {
        for (const VarId var : program_.eqns[member.eqn].in) {
          if (made_by[variable(var).root] != static_cast<int>(i)) is_read[variable(var).root] = true;
        }
      }
    }
    return is_read;
  }

  void AddStep(int index) {
    const Equation& eqn = program_.eqns[index];
    PlannedStep step;
    for (const VarId var : eqn.out) step.out.push_back(live_[var] && variable(var).root == var ? var : -1);
    for (const VarId var : eqn.in) step.in.push_back(variable(var).root);
    step.eqns = {index};
    std::optional<OpKernel>& composite = composite_kernels_[index];
    step.kernel = composite.has_value() ? *std::move(composite)
                                        : KernelOf(eqn.op, OperandAvals(program_, eqn), program_.aval(eqn.out[0]));
    step.may_share = step.kernel.may_share;
    step.scratch_bytes = step.kernel.scratch_bytes;
    Append(std::move(step));
  }

  // The equations of a group, with the variables that it reads and writes.
  PlannedStep StepOf(const FusedGroup& group, const std::vector<bool>& is_read) {
    PlannedStep step;
    absl::flat_hash_set<VarId> made, read;
    for (const FusedMember& member : group.members) {
      const Equation& eqn = program_.eqns[member.eqn];
      step.eqns.push_back(member.eqn);
      for (const VarId var : eqn.in) {
        const VarId operand = variable(var).root;
        if (!made.contains(operand) && read.insert(operand).second) step.in.push_back(operand);
      }
      made.insert(eqn.out[0]);
      // A broadcast that other groups read has its own step.
      if (is_read[eqn.out[0]] && !std::holds_alternative<BroadcastOp>(eqn.op)) step.out.push_back(eqn.out[0]);
    }
    return step;
  }

  void AddStep(const FusedGroup& group, const std::vector<bool>& is_read) {
    PlannedStep step = StepOf(group, is_read);
    step.kernel = FusedKernel(program_, roots_, group, step.in, step.out);
    step.may_share = step.kernel.may_share;
    step.scratch_bytes = step.kernel.scratch_bytes;
    Append(std::move(step));
  }

  // The last step that computes one of these variables by a product of which the group can be the epilogue; -1 if there
  // is none. No step has read its result, so it can run in the group's place.
  int ProductBefore(const FusedGroup& group, absl::Span<const VarId> read) const {
    int last = -1;
    for (const VarId var : read) {
      const int index = made_by_[var];
      if (index <= last) continue;
      const PlannedStep& step = plan_.steps[index];
      const auto is_read = [&](VarId out) { return out >= 0 && was_read_[out]; };
      if (step.eqns.size() != 1 || step.out[0] != var || !step.kernel.has_blocks ||
          std::any_of(step.out.begin(), step.out.end(), is_read)) {
        continue;
      }
      const Aval& aval = program_.aval(var);
      if (aval.shape.num_elements() == group.elements && aval.num_bytes() >= kMinEpilogueBytes) last = index;
    }
    return last;
  }

  // Makes the group the epilogue of a product that it reads, if possible.
  bool AddAsEpilogue(const FusedGroup& group, const std::vector<bool>& is_read) {
    if (!epilogues_ || group.elements == 0) return false;
    const PlannedStep own = StepOf(group, is_read);
    const int index = ProductBefore(group, own.in);
    if (index < 0) return false;
    const VarId product = plan_.steps[index].out[0];
    const Shape& shape = program_.aval(product).shape;
    std::optional<StripKernel> strip = StripOfBlocks(program_, roots_, group, shape[shape.rank() - 1], own.in, own.out);
    if (!strip.has_value()) return false;
    PlannedStep step = std::move(plan_.steps[index]);
    plan_.steps[index] = {};                                 // left without equations
    const absl::InlinedVector<VarId, 3> operands = step.in;  // of the product
    const int first_out = static_cast<int>(step.out.size());
    StepEpilogue epilogue{.fused = std::move(strip->fused),
                          .in = {own.in.begin(), own.in.end()},
                          .out = {own.out.begin(), own.out.end()},
                          .product = product,
                          .memory = product};
    step.out.insert(step.out.end(), own.out.begin(), own.out.end());
    // The product is computed in the memory of a result, unless others read it, too.
    for (const auto& [operand, result] : strip->may_share) {
      if (own.in[operand] != product || IsReadOutside(product, group)) continue;
      epilogue.memory = own.out[result];
      step.out[0] = -1;
      break;
    }
    for (size_t i = 0; i < own.in.size(); ++i) {
      const VarId var = own.in[i];
      if (var == product) continue;
      step.in.push_back(var);
      // A result overwrites no operand of the product, and nothing that is read after the product is written there.
      if (std::find(operands.begin(), operands.end(), var) != operands.end()) continue;
      for (const auto& [operand, result] : strip->may_share) {
        if (operand != static_cast<int>(i) || own.out[result] == epilogue.memory) continue;
        step.may_share.emplace_back(static_cast<int>(step.in.size()) - 1, first_out + result);
      }
    }
    step.eqns.insert(step.eqns.end(), own.eqns.begin(), own.eqns.end());
    epilogue.scratch_at = RoundUp(step.scratch_bytes, 64);  // after the product's, whose threads run the epilogue
    step.scratch_bytes = epilogue.scratch_at + epilogue.fused->scratch_bytes;
    step.epilogue = std::move(epilogue);
    Append(std::move(step));
    return true;
  }

  // Whether the program returns the variable, or an equation outside the group reads it.
  bool IsReadOutside(VarId var, const FusedGroup& group) const {
    int reads = 0;
    for (const FusedMember& member : group.members) {
      for (const VarId operand : program_.eqns[member.eqn].in) reads += roots_[operand] == var;
    }
    return reads != num_reads_[var];
  }

  void Append(PlannedStep step) {
    for (const VarId var : step.in) was_read_[var] = true;
    for (const VarId var : step.out) {
      if (var >= 0) made_by_[var] = static_cast<int>(plan_.steps.size());
    }
    plan_.steps.push_back(std::move(step));
  }

  void PlaceAll() {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      Variable& own = variable(program_.inputs[i].var);
      own.place = Place::kArgument;
      own.index = static_cast<int64_t>(i);
    }
    for (const auto& [var, array] : program_.consts) variable(var).place = Place::kConstant;
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      const PlannedStep& step = plan_.steps[i];
      for (const VarId var : step.in) variable(var).last = static_cast<int>(i);
      for (const VarId var : step.out) {
        if (var < 0) continue;
        Variable& own = variable(var);
        own.place = Place::kArena;
        own.bytes = program_.aval(var).num_bytes();
        own.first = own.last = static_cast<int>(i);
      }
    }
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      Variable& own = root(program_.outputs[i].var);
      own.last = static_cast<int>(plan_.steps.size());
      if (own.place == Place::kArena) {
        own.place = Place::kOutput;
        own.index = static_cast<int64_t>(i);
      }
      plan_.primary.push_back(own.place == Place::kOutput ? static_cast<int>(own.index) : -1);
      if (own.place == Place::kOutput && own.index == static_cast<int64_t>(i)) plan_.output_bytes += own.bytes;
    }
  }

  // Assigns offsets in the arena, step by step.
  void LayOut() {
    ArenaLayout layout;
    std::vector<std::vector<VarId>> ends(plan_.steps.size());  // by the step that reads them last
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      PlannedStep& step = plan_.steps[i];
      const int now = static_cast<int>(i);
      for (const VarId var : step.out) {
        if (var < 0) continue;
        Variable& own = variable(var);
        if (own.last < static_cast<int>(plan_.steps.size())) ends[own.last].push_back(var);
        if (own.place != Place::kArena) continue;
        for (const auto& [operand, result] : step.may_share) {
          if (step.out[result] != var) continue;
          Variable& other = variable(step.in[operand]);
          if (other.place != Place::kArena || other.last != now || other.bytes != own.bytes ||
              taken_over_[step.in[operand]]) {
            continue;
          }
          own.in_place = taken_over_[step.in[operand]] = true;
          own.offset = other.offset;
          break;
        }
        if (!own.in_place) own.offset = layout.Take(own.bytes);
      }
      plan_.array_bytes = std::max(plan_.array_bytes, step.kernel.array_bytes);
      if (step.scratch_bytes > 0) {
        step.scratch_offset = layout.Take(step.scratch_bytes);
        layout.Give(step.scratch_offset, step.scratch_bytes);
      }
      for (const VarId var : ends[i]) {
        const Variable& own = variable(var);
        if (own.place == Place::kArena && !taken_over_[var]) layout.Give(own.offset, own.bytes);
      }
    }
    plan_.arena_bytes = layout.num_bytes();
  }

  const Program& program_;
  const bool fuse_, epilogues_;
  Plan plan_;
  std::vector<bool> live_;
  std::vector<std::optional<OpKernel>> composite_kernels_;  // by equation
  std::vector<VarId> roots_;
  // By root: the number of its uses as an operand or output of the program, the step that computes it, and whether a
  // step so far reads it.
  std::vector<int> num_reads_ = std::vector<int>(program_.vars.size());
  std::vector<int> made_by_ = std::vector<int>(program_.vars.size(), -1);
  std::vector<bool> was_read_ = std::vector<bool>(program_.vars.size());
  std::vector<bool> taken_over_ = std::vector<bool>(program_.vars.size(), false);
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const Program& program, bool fuse, bool epilogues) {
  return Planner(program, fuse, epilogues).Make();
}

bool Plan::MayUpdate(size_t argument, size_t output) const {
  if (argument >= program.inputs.size() || output >= program.outputs.size()) return false;
  if (primary[output] != static_cast<int>(output)) return false;  // written after the last step
  const VarId from = program.inputs[argument].var, to = variables[program.outputs[output].var].root;
  const int written = variables[to].first, read = variables[from].last;
  if (program.aval(from).num_bytes() != program.aval(to).num_bytes()) return false;
  if (read > written) return false;
  if (read < written) return true;
  const PlannedStep& step = steps[written];
  return std::any_of(step.may_share.begin(), step.may_share.end(),
                     [&](const auto& share) { return step.in[share.first] == from && step.out[share.second] == to; });
}

std::string Plan::ToString() const {
  const auto name = [&](VarId var) { return absl::StrCat("%", var); };
  const auto place = [&](VarId var) -> std::string {
    const Variable& own = at(var);
    switch (own.place) {
      case Place::kNone: return "nowhere";
      case Place::kArgument: return program.inputs[own.index].slot.ToString();
      case Place::kConstant: return "constant";
      case Place::kArena:
        return absl::StrCat("arena ", own.offset, " .. ", own.offset + own.bytes, own.in_place ? " in place" : "",
                            ", steps ", own.first, " .. ", own.last);
      case Place::kOutput: return absl::StrCat("output ", program.outputs[own.index].slot.ToString());
    }
    return "";
  };
  std::string text;
  for (size_t i = 0; i < steps.size(); ++i) {
    const PlannedStep& step = steps[i];
    absl::StrAppend(&text, "step ", i, step.eqns.size() > 1 ? " fused" : "",
                    step.kernel.array_bytes > 0 ? " by Eval" : "");
    if (step.scratch_bytes > 0) absl::StrAppend(&text, ", scratch ", step.scratch_bytes, " bytes");
    text += "\n";
    for (const int index : step.eqns) {
      const Equation& eqn = program.eqns[index];
      absl::StrAppend(&text, "  ", absl::StrJoin(eqn.out, ", ", [&](std::string* out, VarId var) {
        absl::StrAppend(out, name(var), ": ", program.aval(var).ToString());
      }));
      absl::StrAppend(&text, " = ", OpName(eqn.op), "(", absl::StrJoin(eqn.in, ", ", [&](std::string* out, VarId var) {
        absl::StrAppend(out, name(variables[var].root));
      }));
      absl::StrAppend(&text, ")", eqn.scope != 0 ? " @" : "", program.scope(eqn), "\n");
    }
    for (const VarId var : step.out) {
      if (var >= 0) absl::StrAppend(&text, "  -> ", name(var), ": ", place(var), "\n");
    }
  }
  for (const Program::Port& port : program.outputs) {
    absl::StrAppend(&text, "out ", name(variables[port.var].root), " ", port.slot.ToString(), ": ", place(port.var),
                    "\n");
  }
  absl::StrAppend(&text, "arena ", arena_bytes, " bytes, outputs ", output_bytes, ", arrays of operations ",
                  array_bytes, "\n");
  return text;
}

}  // namespace aqt::internal
