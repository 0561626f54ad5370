#include "aqt/transforms/row_dependence.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/trace.h"
#include "aqt/transforms/expand.h"

namespace aqt {
namespace {

// Two traces of one model, equation by equation.
class Pair {
 public:
  Pair(const Program& one, const Program& other) : one_(one), other_(other) {}

  // Why the traces have different equations; "" if they match.
  std::string WhyDifferent() const {
    if (one_.eqns.size() != other_.eqns.size() || one_.vars.size() != other_.vars.size()) {
      return absl::StrCat("the programs have ", one_.eqns.size(), " and ", other_.eqns.size(), " equations");
    }
    for (size_t i = 0; i < one_.eqns.size(); ++i) {
      const Equation &a = one_.eqns[i], &b = other_.eqns[i];
      if (OpName(a.op) == OpName(b.op) && a.in == b.in && a.out == b.out) continue;
      return absl::StrCat(Describe(a), " is ", OpName(b.op), " in another program");
    }
    for (VarId var = 0; var < static_cast<VarId>(one_.vars.size()); ++var) {
      if (one_.aval(var).shape.rank() != other_.aval(var).shape.rank()) return "the programs have other ranks";
    }
    return "";
  }

  // Whether the extent of the axis differs.
  bool Varies(VarId var, int64_t axis) const { return one_.aval(var).shape[axis] != other_.aval(var).shape[axis]; }
  std::vector<int64_t> VaryingAxes(VarId var) const {
    std::vector<int64_t> axes;
    for (int64_t axis = 0; axis < one_.aval(var).shape.rank(); ++axis) {
      if (Varies(var, axis)) axes.push_back(axis);
    }
    return axes;
  }
  bool Varies(VarId var) const { return !VaryingAxes(var).empty(); }

  // Whether the equation computes each element along a varying axis from the elements at the same place.
  bool IsAlong(const Equation& eqn) const {
    return std::visit([&](const auto& op) { return Along(op, eqn); }, eqn.op);
  }

  std::string Describe(const Equation& eqn) const {
    std::vector<std::string> operands;
    for (const VarId var : eqn.in) operands.push_back(one_.aval(var).ToString());
    const std::string& scope = one_.scope(eqn);
    return absl::StrCat(OpName(eqn.op), " of ", absl::StrJoin(operands, ", "), scope.empty() ? "" : " in ", scope);
  }

 private:
  template <class Axes>
  bool NoneVaries(VarId var, const Axes& axes) const {
    return std::none_of(axes.begin(), axes.end(), [&](int64_t axis) { return Varies(var, axis); });
  }

  // Elementwise operations, and those that only copy.
  template <class AnyOp>
  bool Along(const AnyOp&, const Equation&) const {
    return true;
  }
  bool Along(const ReduceOp& op, const Equation& eqn) const { return NoneVaries(eqn.in[0], op.axes); }
  bool Along(const ArgReduceOp& op, const Equation& eqn) const { return !Varies(eqn.in[0], op.axis); }
  bool Along(const CumulativeSumOp& op, const Equation& eqn) const { return !Varies(eqn.in[0], op.axis); }
  bool Along(const ReverseOp& op, const Equation& eqn) const { return NoneVaries(eqn.in[0], op.axes); }
  bool Along(const IotaOp& op, const Equation& eqn) const { return !Varies(eqn.out[0], op.axis); }
  bool Along(const TakeOp& op, const Equation& eqn) const { return !Varies(eqn.in[0], op.axis); }
  bool Along(const ScatterAddOp& op, const Equation& eqn) const {
    return !Varies(eqn.in[0]) && !Varies(eqn.out[0], op.axis);
  }
  bool Along(const ConcatenateOp& op, const Equation& eqn) const { return !Varies(eqn.out[0], op.axis); }
  bool Along(const RandomBitsOp&, const Equation& eqn) const { return !Varies(eqn.out[0]); }
  bool Along(const DotGeneralOp& op, const Equation& eqn) const {
    return NoneVaries(eqn.in[0], op.dims.lhs_contracting);
  }
  bool Along(const CompositeOp&, const Equation& eqn) const {
    return std::none_of(eqn.in.begin(), eqn.in.end(), [&](VarId var) { return Varies(var); }) &&
           std::none_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return Varies(var); });
  }
  bool Along(const SliceOp& op, const Equation& eqn) const {
    for (const int64_t axis : VaryingAxes(eqn.in[0])) {
      if (op.start[axis] != 0 || op.stride[axis] != 1 || op.limit[axis] != one_.aval(eqn.in[0]).shape[axis])
        return false;
    }
    return true;
  }
  bool Along(const PadOp& op, const Equation& eqn) const {
    for (const int64_t axis : VaryingAxes(eqn.in[0])) {
      if (op.low[axis] != 0 || op.high[axis] != 0 || op.interior[axis] != 0) return false;
    }
    return true;
  }
  bool AlongWindows(const WindowDims& dims, const Equation& eqn) const {
    for (const int64_t axis : VaryingAxes(eqn.in[0])) {
      if (dims.window[axis] != 1 || dims.stride[axis] != 1 || dims.low[axis] != 0 || dims.high[axis] != 0) return false;
    }
    return true;
  }
  bool Along(const ReduceWindowOp& op, const Equation& eqn) const { return AlongWindows(op.dims, eqn); }
  // The result counts elements of the whole operand.
  bool Along(const ArgReduceWindowOp&, const Equation& eqn) const { return !Varies(eqn.in[0]); }
  // A batch axis may be joined with axes after it, or be split from them: then the elements before it are as many.
  bool Along(const ReshapeOp&, const Equation& eqn) const {
    const std::vector<int64_t> from = VaryingAxes(eqn.in[0]), to = VaryingAxes(eqn.out[0]);
    if (from.empty() && to.empty()) return true;
    if (from.size() != 1 || to.size() != 1) return one_.aval(eqn.in[0]).shape == one_.aval(eqn.out[0]).shape;
    return Before(eqn.in[0], from[0]) == Before(eqn.out[0], to[0]);
  }
  int64_t Before(VarId var, int64_t axis) const {
    int64_t elements = 1;
    for (int64_t i = 0; i < axis; ++i) elements *= one_.aval(var).shape[i];
    return elements;
  }

  const Program& one_;
  const Program& other_;
};

// The operations that do not only move elements, and the numbers that they use.
std::vector<std::string> ArithmeticOf(const Program& program) {
  std::vector<std::string> names;
  for (const Equation& eqn : program.eqns) {
    const bool moves = std::holds_alternative<BroadcastOp>(eqn.op) || std::holds_alternative<ReshapeOp>(eqn.op) ||
                       std::holds_alternative<TransposeOp>(eqn.op);
    if (!moves)
      names.push_back(absl::StrCat(OpName(eqn.op), program.scope(eqn).empty() ? "" : " in ", program.scope(eqn)));
  }
  return names;
}

std::string WhyArithmeticDiffers(const Program& one, const Program& other) {
  const std::vector<std::string> a = ArithmeticOf(one), b = ArithmeticOf(other);
  const auto [at, to] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at == a.end() && to == b.end()) return "";
  return absl::StrCat("a batch of one row has other arithmetic: ", at == a.end() ? "nothing" : *at, " instead of ",
                      to == b.end() ? "nothing" : *to);
}

std::string WhyRowsDependBetween(const Program& one, const Program& other) {
  const Pair pair(one, other);
  if (std::string why = pair.WhyDifferent(); !why.empty()) return why;
  for (const Program::Port& port : one.inputs) {
    const std::vector<int64_t> varying = pair.VaryingAxes(port.var);
    const bool expected = port.slot.kind == SlotKind::kData ? varying == std::vector<int64_t>{0} : varying.empty();
    if (!expected) return absl::StrCat("input ", port.slot.ToString(), " does not have one batch axis, the first");
  }
  for (const auto& [var, array] : one.consts) {
    if (pair.Varies(var)) return absl::StrCat("a constant ", array.aval().ToString(), " depends on the batch");
  }
  for (const Equation& eqn : one.eqns) {
    if (!pair.IsAlong(eqn)) return pair.Describe(eqn);
  }
  for (const Program::Port& port : one.outputs) {
    if (pair.VaryingAxes(port.var) == std::vector<int64_t>{0}) continue;
    return absl::StrCat("output ", port.slot.ToString(), " does not have one batch axis, the first");
  }
  return "";
}

bool Quantizes(const std::string& name) { return absl::StartsWith(name, "aqt_") || absl::StartsWith(name, "fp8_"); }

// All composites but those that quantize are replaced.
absl::StatusOr<Program> ExpandModel(const Program& program) {
  Program out = program;
  while (true) {
    std::set<std::string> names;
    for (const Equation& eqn : out.eqns) {
      const auto* op = std::get_if<CompositeOp>(&eqn.op);
      if (op != nullptr && op->impl->has_expansion() && !Quantizes(op->impl->Name())) names.insert(op->impl->Name());
    }
    if (names.empty()) return out;
    AQT_ASSIGN_OR_RETURN(out, Expand(out, {names.begin(), names.end()}));
  }
}

// The expansion of one equation, as a program.
absl::StatusOr<Program> ExpansionOf(const Program& program, const Equation& eqn) {
  std::vector<Input> inputs;
  for (size_t i = 0; i < eqn.in.size(); ++i) {
    inputs.push_back({Slot{SlotKind::kData, absl::StrCat(i)}, program.aval(eqn.in[i])});
  }
  AQT_ASSIGN_OR_RETURN(const Program whole,
                       Trace([&](absl::Span<const Value> in) { return Bind(eqn.op, in, eqn.where); }, inputs));
  return Expand(whole);
}

}  // namespace

absl::StatusOr<std::string> WhyRowsDepend(absl::Span<const Program> programs) {
  if (programs.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", programs.size(), " programs, expected a model for at least two batches"));
  }
  std::vector<Program> expanded;
  for (const Program& program : programs) {
    AQT_ASSIGN_OR_RETURN(Program one, Expand(program));
    expanded.push_back(std::move(one));
  }
  // A batch of 1 may have fewer broadcasts than the others, so the axes are those of the largest batches.
  std::string why = WhyRowsDependBetween(expanded[expanded.size() - 2], expanded.back());
  for (size_t i = 0; why.empty() && i + 1 < expanded.size(); ++i) {
    why = WhyArithmeticDiffers(expanded[i], expanded.back());
  }
  return why;
}

absl::StatusOr<std::string> WhyPaddingCounts(const Program& one, const Program& other) {
  AQT_ASSIGN_OR_RETURN(const Program a, ExpandModel(one));
  AQT_ASSIGN_OR_RETURN(const Program b, ExpandModel(other));
  const Pair pair(a, b);
  if (std::string why = pair.WhyDifferent(); !why.empty()) return why;
  for (size_t i = 0; i < a.eqns.size(); ++i) {
    const auto* op = std::get_if<CompositeOp>(&a.eqns[i].op);
    if (op == nullptr || pair.IsAlong(a.eqns[i])) continue;  // IsAlong of a composite: no operand has the axis
    if (!op->impl->has_expansion()) return pair.Describe(a.eqns[i]);
    AQT_ASSIGN_OR_RETURN(const Program inner_a, ExpansionOf(a, a.eqns[i]));
    AQT_ASSIGN_OR_RETURN(const Program inner_b, ExpansionOf(b, b.eqns[i]));
    const Pair inner(inner_a, inner_b);
    if (const std::string why = inner.WhyDifferent(); !why.empty()) return pair.Describe(a.eqns[i]);
    for (const Equation& eqn : inner_a.eqns) {
      const bool is_product = std::holds_alternative<DotGeneralOp>(eqn.op);  // padding adds products with 0
      if (!is_product && !inner.IsAlong(eqn)) return pair.Describe(a.eqns[i]);
    }
  }
  return "";
}

}  // namespace aqt
