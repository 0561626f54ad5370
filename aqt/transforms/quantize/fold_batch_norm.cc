#include "aqt/transforms/quantize/fold_batch_norm.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <variant>

#include "absl/types/span.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/depends_on.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/transforms/dce.h"

namespace aqt {
namespace {

using kernels::BinaryKind;

// A step of a chain after a contraction: a binary operation with a number for each channel.
struct Step {
  BinaryKind kind;
  int eqn;
  VarId channels;  // [channels], or a scalar
};

// Whether the last axis of the contraction's result is the last one of rhs.
bool EndsWithAxisOfRhs(const Op& op, int64_t rhs_rank) {
  const std::optional<ContractionDims> dims = ContractionOf(op);
  if (!dims.has_value()) return false;
  if (std::holds_alternative<ConvDims>(*dims)) return true;
  const DotDims* dot = std::get_if<DotDims>(&*dims);
  return rhs_rank > 0 && dot != nullptr && std::holds_alternative<DotGeneralOp>(op) && dot->lhs_batch.empty() &&
         std::find(dot->rhs_contracting.begin(), dot->rhs_contracting.end(), rhs_rank - 1) ==
             dot->rhs_contracting.end();
}

class Folder {
 public:
  explicit Folder(const Program& program) : program_(program) {
    const auto is_known = [](const Slot& slot) {
      return slot.kind == SlotKind::kParam || slot.kind == SlotKind::kStat || slot.kind == SlotKind::kFrozen;
    };
    known_ = DependsOnlyOn(program_, is_known);
    // Known equations come first, so that their results can become part of a kernel.
    std::stable_partition(program_.eqns.begin(), program_.eqns.end(), [&](const Equation& eqn) {
      return std::all_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return known_[var]; });
    });
    uses_.resize(program_.vars.size());
    maker_.assign(program_.vars.size(), -1);
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      for (const VarId var : program_.eqns[i].in) uses_[var].push_back(static_cast<int>(i));
      for (const VarId var : program_.eqns[i].out) maker_[var] = static_cast<int>(i);
    }
    for (const Program::Port& port : program_.outputs) uses_[port.var].push_back(-1);
  }

  absl::StatusOr<Program> Run(std::vector<std::string>* folded) {
    FindChains();
    if (folded != nullptr) {
      for (const auto& [eqn, chain] : chains_) folded->push_back(program_.scope(program_.eqns[eqn]));
    }
    // The operands of broadcasts, by variable: a kernel absorbs the channels of its chain.
    std::map<VarId, Value> values;
    int next = 0;
    absl::StatusOr<Program> rewritten =
        Rewrite(program_, [&](const Equation& eqn, absl::Span<const Value> in) -> absl::StatusOr<std::vector<Value>> {
          const int number = next++;
          if (const auto it = chains_.find(number); it != chains_.end()) return Folded(eqn, in, it->second, values);
          if (const auto it = passes_.find(number); it != passes_.end()) return std::vector<Value>{in[it->second]};
          // The value that a broadcast repeats over the other axes.
          if (std::holds_alternative<BroadcastOp>(eqn.op)) values.try_emplace(eqn.in[0], in[0]);
          return BindAgain(eqn, in);
        });
    if (!rewritten.ok()) return rewritten.status();
    return Dce(*rewritten);
  }

 private:
  // The channels that a known operand repeats over all other axes of `shape`; null if it is anything else.
  std::optional<VarId> ChannelsOf(VarId operand, const Shape& shape) const {
    if (!known_[operand] || maker_[operand] < 0) return std::nullopt;
    const Equation& eqn = program_.eqns[maker_[operand]];
    const BroadcastOp* broadcast = std::get_if<BroadcastOp>(&eqn.op);
    if (broadcast == nullptr) return std::nullopt;
    const Shape& from = program_.aval(eqn.in[0]).shape;
    const bool by_channel =
        from.rank() == 1 && broadcast->axes == Axes{shape.rank() - 1} && from[0] == shape[shape.rank() - 1];
    return from.rank() == 0 || by_channel ? std::optional(eqn.in[0]) : std::nullopt;
  }

  // The step that is the only use of `var`, if there is one.
  std::optional<Step> StepBehind(VarId var) const {
    if (uses_[var].size() != 1 || uses_[var][0] < 0) return std::nullopt;
    const Equation& eqn = program_.eqns[uses_[var][0]];
    const BinaryOp* op = std::get_if<BinaryOp>(&eqn.op);
    if (op == nullptr) return std::nullopt;
    const bool commutes = op->kind == BinaryKind::kAdd || op->kind == BinaryKind::kMul;
    if (!commutes && op->kind != BinaryKind::kSub && op->kind != BinaryKind::kDiv) return std::nullopt;
    const int position = eqn.in[0] == var ? 0 : 1;
    if (position == 1 && !commutes) return std::nullopt;
    const std::optional<VarId> channels = ChannelsOf(eqn.in[1 - position], program_.aval(var).shape);
    if (!channels.has_value()) return std::nullopt;
    return Step{op->kind, uses_[var][0], *channels};
  }

  void FindChains() {
    for (size_t i = 0; i < program_.eqns.size(); ++i) {
      const Equation& eqn = program_.eqns[i];
      if (eqn.in.size() != 2 || !known_[eqn.in[1]] || known_[eqn.in[0]]) continue;
      if (!EndsWithAxisOfRhs(eqn.op, program_.aval(eqn.in[1]).shape.rank())) continue;
      std::vector<Step> chain;
      bool scales = false;
      VarId var = eqn.out[0];
      while (const std::optional<Step> step = StepBehind(var)) {
        chain.push_back(*step);
        scales = scales || step->kind == BinaryKind::kMul || step->kind == BinaryKind::kDiv;
        var = program_.eqns[step->eqn].out[0];
      }
      if (!scales) continue;
      var = eqn.out[0];
      for (const Step& step : chain) {
        passes_[step.eqn] = program_.eqns[step.eqn].in[0] == var ? 0 : 1;
        var = program_.eqns[step.eqn].out[0];
      }
      chains_.emplace(static_cast<int>(i), std::move(chain));
    }
  }

  static std::vector<Value> Folded(const Equation& eqn, absl::Span<const Value> in, const std::vector<Step>& chain,
                                   const std::map<VarId, Value>& values) {
    std::optional<Value> factor, shift;
    for (const Step& step : chain) {
      const Value& channels = values.at(step.channels);
      switch (step.kind) {
        case BinaryKind::kAdd: shift = shift.has_value() ? *shift + channels : channels; break;
        case BinaryKind::kSub: shift = shift.has_value() ? *shift - channels : -channels; break;
        case BinaryKind::kMul:
          factor = factor.has_value() ? *factor * channels : channels;
          if (shift.has_value()) shift = *shift * channels;
          break;
        default:  // kDiv
          factor = (factor.has_value() ? *factor : ValueOrNumber(1.0).As(channels.dtype())) / channels;
          if (shift.has_value()) shift = *shift / channels;
          break;
      }
    }
    std::vector<Value> result = Bind(eqn.op, {in[0], in[1] * *factor}, eqn.where);
    if (shift.has_value()) result[0] = result[0] + *shift;
    return result;
  }

  Program program_;
  std::vector<bool> known_;
  std::vector<std::vector<int>> uses_;       // by variable: equations, -1 for an output
  std::vector<int> maker_;                   // by variable: its equation, or -1
  std::map<int, std::vector<Step>> chains_;  // by the equation of the contraction
  std::map<int, int> passes_;                // equations of chains, and the position of their operand on the chain
};

}  // namespace

absl::StatusOr<Program> FoldBatchNorm(const Program& program, std::vector<std::string>* folded) {
  if (folded != nullptr) folded->clear();
  return Folder(program).Run(folded);
}

}  // namespace aqt
