#include "aqt/runtime/packed_weights.h"

#include <cstddef>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/depends_on.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/op.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/ops/fp8/fp8_packed_dot.h"
#include "aqt/runtime/packed_product.h"

namespace aqt {
namespace {

// The equations of aqt_pack and pack_rhs: what they compute depends only on their text and their operands.
bool Packs(const Op& op) {
  const auto* const composite = std::get_if<CompositeOp>(&op);
  return composite != nullptr && (composite->impl->Name() == "aqt_pack" || composite->impl->Name() == "pack_rhs");
}

bool IsReleased(const Array& array) { return array.data() == nullptr && array.num_bytes() > 0; }

absl::Status WasReleased(const Slot& slot, const Aval& aval) {
  return absl::FailedPreconditionError(
      absl::StrCat("prepare: ", slot.ToString(), " ", aval.ToString(),
                   " was released after it was packed, and this program reads it in another form"));
}

// For each variable, the input that it is if that has a value; otherwise null.
std::vector<const Program::Port*> GivenInputs(const Program& program, const SlotValues& values) {
  std::vector<const Program::Port*> inputs(program.vars.size());
  for (const Program::Port& port : program.inputs) {
    if (values.contains(port.slot)) inputs[port.var] = &port;
  }
  return inputs;
}

}  // namespace

namespace internal {

absl::StatusOr<Program> WithPackedOperands(const Program& program, const SlotValues& values) {
  const std::vector<bool> fixed = DependsOnlyOn(program, [&](const Slot& slot) { return values.contains(slot); });
  return Rewrite(program,
                 [&](const Equation& eqn, absl::Span<const Value> operands) -> absl::StatusOr<std::vector<Value>> {
                   absl::InlinedVector<bool, 8> is_fixed;
                   for (const VarId var : eqn.in) is_fixed.push_back(fixed[var]);
                   std::optional<std::vector<Value>> packed = BindPacked(eqn.op, operands, is_fixed, eqn.where);
                   if (!packed.has_value()) packed = BindPackedFp8Dot(eqn.op, operands, is_fixed, eqn.where);
                   if (!packed.has_value()) packed = BindPackedProduct(eqn.op, operands, is_fixed, eqn.where);
                   return packed.has_value() ? *std::move(packed) : BindAgain(eqn, operands);
                 });
}

}  // namespace internal

absl::StatusOr<Program> PackedWeights::WithPanels(const Program& given, const SlotValues& values) {
  AQT_ASSIGN_OR_RETURN(const Program program, internal::WithPackedOperands(given, values));
  const std::vector<const Program::Port*> inputs = GivenInputs(program, values);
  Program result = program;
  result.eqns.clear();
  std::vector<bool> is_read(program.vars.size());
  for (const Program::Port& port : program.outputs) is_read[port.var] = true;
  for (const Equation& eqn : program.eqns) {
    std::string key;
    std::vector<Array> operands;
    for (const VarId var : eqn.in) {
      if (inputs[var] == nullptr) break;
      absl::StrAppend(&key, inputs[var]->slot.ToString(), ", ");
      operands.push_back(values.at(inputs[var]->slot));
    }
    if (!Packs(eqn.op) || operands.size() != eqn.in.size()) {
      for (const VarId var : eqn.in) is_read[var] = true;
      result.eqns.push_back(eqn);
      continue;
    }
    const Composite& pack = *std::get<CompositeOp>(eqn.op).impl;
    absl::StrAppend(&key, pack.Name(), ": ", pack.Attributes());
    std::optional<Array> panels;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto it = panels_.find(key); it != panels_.end()) panels = it->second;
    }
    if (!panels.has_value()) {
      for (size_t i = 0; i < operands.size(); ++i) {
        if (IsReleased(operands[i])) return WasReleased(inputs[eqn.in[i]]->slot, operands[i].aval());
      }
      absl::StatusOr<std::vector<Array>> packed = pack.Eval(operands, {true});
      if (!packed.ok()) return DescribeError(packed.status(), program, eqn);
      const std::lock_guard<std::mutex> lock(mutex_);
      panels = panels_.emplace(std::move(key), std::move((*packed)[0])).first->second;
      for (const VarId var : eqn.in) packed_.insert(inputs[var]->slot);
    }
    result.consts.emplace(eqn.out[0], *std::move(panels));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(result.inputs, [&](const Program::Port& port) { return inputs[port.var] && !is_read[port.var]; });
  for (const Program::Port& port : result.inputs) {
    if (inputs[port.var] == nullptr) continue;
    const Array& value = values.at(port.slot);
    if (IsReleased(value)) return WasReleased(port.slot, value.aval());
    read_.insert(port.slot);
  }
  return result;
}

void PackedWeights::Release(SlotValues& values) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Slot& slot : packed_) {
    const auto it = values.find(slot);
    if (it != values.end() && !read_.contains(slot)) it->second = Array(it->second.aval(), nullptr);
  }
}

}  // namespace aqt
