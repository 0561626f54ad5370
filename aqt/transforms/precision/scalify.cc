#include "aqt/transforms/precision/scalify.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/interpret.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/einsum_values.h"
#include "aqt/quant/contraction/einsum_lowering.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/precision/scalify_rules.h"

namespace aqt {
namespace {

using internal::Lane;

absl::Status CheckScaleDType(const ScalifyRules& rules) {
  switch (rules.scale_dtype.value_or(DType::kF32)) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64: return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("scalify: scale_dtype is ", ToString(*rules.scale_dtype), ", expected f16, bf16, f32 or f64"));
  }
}

absl::Status CheckInputs(const Program& program, const ScalifyOptions& options) {
  for (const auto& [slot, dtype] : options.scaled_inputs) {
    const auto is_it = [&, &own = slot](const Program::Port& port) { return port.slot == own; };
    const auto port = std::find_if(program.inputs.begin(), program.inputs.end(), is_it);
    if (port == program.inputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("scalify: the program has no input ", slot.ToString()));
    }
    const DType own = program.aval(port->var).dtype;
    if (!IsFloat(own) || !IsFloat(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("scalify: ", slot.ToString(), " is ", ToString(own),
                                                     " with a scale of ", ToString(dtype), "; expected floats"));
    }
  }
  return absl::OkStatus();
}

// The program with each einsum replaced by a dot_general and its surrounding operations.
absl::StatusOr<Program> WithoutEinsums(const Program& program) {
  return Rewrite(program, [](const Equation& eqn, absl::Span<const Value> in) {
    const std::optional<ContractionDims> dims = ContractionOf(eqn.op);
    const EinsumDims* einsum = dims.has_value() ? std::get_if<EinsumDims>(&*dims) : nullptr;
    if (einsum == nullptr) return BindAgain(eqn, in);
    const absl::StatusOr<internal::EinsumLowering> lowering =
        internal::LowerEinsum(einsum->equation, in[0].aval(), in[1].aval());
    if (!lowering.ok()) return BindAgain(eqn, in);
    return std::vector<Value>{internal::EinsumValue(
        *lowering, in[0], in[1],
        [](const Value& lhs, const Value& rhs, const DotDims& own) { return ops::DotGeneral(lhs, rhs, own); })};
  });
}

// The next state of a training is scaled if the state is, with a scale of the same dtype.
void LikeInputs(const Program& program, const ScalifyOptions& options, std::vector<Lane>& outputs) {
  absl::btree_set<Slot> inputs;
  for (const Program::Port& port : program.inputs) {
    if (port.slot.kind == SlotKind::kParam || port.slot.kind == SlotKind::kStat) inputs.insert(port.slot);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Slot& slot = program.outputs[i].slot;
    if (!inputs.contains(slot)) continue;
    Lane& lane = outputs[i];
    const auto scaled = options.scaled_inputs.find(slot);
    if (scaled == options.scaled_inputs.end()) {
      lane = {.data = internal::Unscaled(lane)};
    } else {
      lane.scale = lane.scaled() ? ops::Cast(*lane.scale, scaled->second) : ValueOrNumber(1.0).As(scaled->second);
    }
  }
}

}  // namespace

Slot ScaleSlot(const Slot& slot) { return {slot.kind, absl::StrCat(slot.path, ":scale")}; }

absl::StatusOr<Program> Scalify(const Program& original, const ScalifyOptions& options) {
  AQT_RETURN_IF_ERROR(CheckScaleDType(options.rules));
  AQT_RETURN_IF_ERROR(CheckInputs(original, options));
  AQT_ASSIGN_OR_RETURN(const Program called, Expand(original, {"call", "attention"}));
  AQT_ASSIGN_OR_RETURN(const Program program, WithoutEinsums(called));
  std::vector<Input> inputs = InputsOf(program);
  std::vector<std::pair<size_t, size_t>> scales;  // positions of the data and of the scale
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const auto it = options.scaled_inputs.find(program.inputs[i].slot);
    if (it == options.scaled_inputs.end()) continue;
    scales.emplace_back(i, inputs.size());
    inputs.push_back({ScaleSlot(program.inputs[i].slot), Aval{it->second, {}}});
  }
  std::vector<Lane> outputs;
  const auto run = [&](absl::Span<const Value> args) -> absl::Status {
    std::vector<Lane> lanes;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      lanes.push_back({.data = args[i]});
      lanes.back().scalar = args[i].shape().num_elements() == 1;
    }
    for (const auto& [data, scale] : scales) lanes[data].scale = args[scale];
    AQT_ASSIGN_OR_RETURN(outputs, Interpret<Lane>(program, lanes, internal::LaneOfConstant,
                                                  [&](const Equation& eqn, absl::Span<const Lane> in) {
                                                    const Provenance provenance(program.scope(eqn), eqn.where);
                                                    return internal::ScaledEquation(eqn, in, options.rules);
                                                  }));
    return absl::OkStatus();
  };
  return Trace(
      [&](absl::Span<const Value> args) {
        std::vector<Value> values;
        if (const absl::Status status = run(args); !status.ok()) {
          internal::ReportError(status);  // kept only if it is the first failure
          return values;
        }
        LikeInputs(program, options, outputs);
        for (size_t i = 0; i < outputs.size(); ++i) {
          WriteSlot(program.outputs[i].slot, outputs[i].data);
        }
        for (size_t i = 0; i < outputs.size(); ++i) {
          if (outputs[i].scaled()) WriteSlot(ScaleSlot(program.outputs[i].slot), *outputs[i].scale);
        }
        return values;
      },
      inputs);
}

}  // namespace aqt
