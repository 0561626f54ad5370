#include "aqt/ops/contraction/quantized_dot.h"

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/name_key.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/einsum_values.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/einsum_lowering.h"
#include "aqt/quant/tensor/calibration.h"

namespace aqt {
namespace {

Value KeyOf(const QuantizedDotOptions& options, absl::string_view name) {
  if (options.key_slot.has_value()) return InputSlot({SlotKind::kKey, *options.key_slot}, KeyAval());
  return ops::FoldInKey(InputSlot({SlotKind::kKey, options.shared_key_slot}, KeyAval()), HashOfName(name));
}

std::string PathOf(absl::string_view name, absl::string_view rest) {
  return absl::StrCat(name, name.empty() ? "" : "/", rest);
}

QuantMode ModeOf(const QuantizedDotOptions& options, Side side) {
  return side == Side::kLhs ? options.lhs_mode : options.rhs_mode;
}
FreezerMode FreezerOf(const QuantizedDotOptions& options, Side side) {
  return side == Side::kLhs ? options.lhs_freezer : options.rhs_freezer;
}
const Quantizer& QuantizerOf(const QuantizedDotOptions& options, Side side) {
  return (side == Side::kLhs ? options.config.fwd.lhs : options.config.fwd.rhs).quantizer;
}
bool IsFrozen(const QuantizedDotOptions& options, Side side, QuantMode mode) {
  return ModeOf(options, side) == mode && FreezerOf(options, side) != FreezerMode::kNothing;
}

// No gradient flows through an operand that is quantized ahead of time.
PlanPasses PassesOf(const QuantizedDotOptions& options) {
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    for (const QuantMode mode : {QuantMode::kConvert, QuantMode::kServe}) {
      if (IsFrozen(options, side, mode)) return PlanPasses::kForwardOnly;
    }
  }
  return PlanPasses::kForwardAndBackward;
}

absl::Status CheckModes(const QuantizedDotOptions& options) {
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    if (HasState(QuantizerOf(options, side))) continue;
    const char* name = side == Side::kLhs ? "fwd.lhs" : "fwd.rhs";
    if (ModeOf(options, side) == QuantMode::kCalibrate) {
      return absl::InvalidArgumentError(
          absl::StrCat("QUANT_MODE_CALIBRATE updates statistics, but the calibration of ", name,
                       " has none: use QUANT_MODE_TRAIN, or a calibration such as MeanOfAbsMax"));
    }
    if (FreezerOf(options, side) == FreezerMode::kScale && ModeOf(options, side) != QuantMode::kTrain) {
      return absl::InvalidArgumentError(
          absl::StrCat("the scale of ", name,
                       " cannot be frozen by itself: its calibration has no "
                       "statistics that hold one; use a calibration such as MeanOfAbsMax"));
    }
  }
  return absl::OkStatus();
}

// The statistics as inputs of the trace. `forward` has none for a side that is served: its scale is frozen.
AqtDot::State StateOf(const AqtDot& dot, const QuantizedDotOptions& options, bool with_gradient,
                      absl::string_view name) {
  AqtDot::State state{.name = std::string(name)};
  for (const StateSlot& slot : dot.plan().forward_state()) {
    const bool reads = !IsFrozen(options, slot.side, QuantMode::kServe);
    state.forward.push_back(reads ? InputSlot(StatSlot(name, slot), slot.initial.aval()) : Value());
  }
  if (!with_gradient) return state;
  for (const StateSlot& slot : dot.plan().backward_state()) {
    state.backward_slots.push_back(StatSlot(name, slot));
    state.backward.push_back(InputSlot(state.backward_slots.back(), slot.initial.aval()));
  }
  return state;
}

// The operand that the contraction receives for one side.
AqtDot::Operand OperandOf(const AqtDot& dot, Side side, const QuantizedDotOptions& options, const Value& x,
                          const std::optional<Value>& key, const AqtDot::State& state, absl::string_view name,
                          const SourceLine& where) {
  const std::optional<Hadamard>& hadamard = options.config.fwd.hadamard;
  const Slot value_slot = FrozenSlot(name, side, FrozenPart::kValue, hadamard),
             scale_slot = FrozenSlot(name, side, FrozenPart::kScale, hadamard);
  const bool scale_only = FreezerOf(options, side) == FreezerMode::kScale;
  if (IsFrozen(options, side, QuantMode::kConvert)) {
    std::optional<Value> scale;
    if (HasState(QuantizerOf(options, side))) {
      std::vector<Value> statistics;
      for (size_t i = 0; i < state.forward.size(); ++i) {
        if (dot.plan().forward_state()[i].side == side) statistics.push_back(state.forward[i]);
      }
      scale = dot.StaticScale(side, statistics);
    }
    const AqtDot::Operand operand =
        scale_only ? AqtDot::Operand{x, scale, /*is_quantized=*/false} : dot.Quantize(side, x, key, where, scale);
    if (!scale_only) WriteSlot(value_slot, operand.value);
    WriteSlot(scale_slot, *operand.scale);
    return operand;
  }
  if (IsFrozen(options, side, QuantMode::kServe)) {
    const absl::StatusOr<AqtDot::QuantizedAvals> avals = dot.QuantizedAvalsOf(side);
    if (!avals.ok()) {
      const Value refused = Refuse(avals.status(), dot.name(), {x}, where);
      return {refused, refused};
    }
    if (scale_only) return {x, InputSlot(scale_slot, avals->scale), /*is_quantized=*/false};
    return {InputSlot(value_slot, avals->qvalue), InputSlot(scale_slot, avals->scale)};
  }
  return {x};
}

}  // namespace

std::string ContractionName(absl::string_view scope, int ordinal) {
  if (ordinal == 0) return std::string(scope);
  return absl::StrCat(scope, scope.empty() ? "" : "/", "dot_", ordinal);
}

std::string NextContractionName() {
  int ordinal = 0;
  while (IsNameTaken(ContractionName(CurrentScope(), ordinal))) ++ordinal;
  return ContractionName(CurrentScope(), ordinal);
}

Side SideInProduct(const ContractionDims& dims, const Aval& lhs, const Aval& rhs, Side side) {
  const EinsumDims* einsum = std::get_if<EinsumDims>(&dims);
  if (einsum == nullptr) return side;
  const absl::StatusOr<internal::EinsumLowering> lowering = internal::LowerEinsum(einsum->equation, lhs, rhs);
  return lowering.ok() ? lowering->InProduct(side) : side;
}

Slot FrozenSlot(absl::string_view name, Side side, FrozenPart part, const std::optional<Hadamard>& hadamard) {
  const std::string rotation = hadamard.has_value() ? absl::StrCat("hadamard_", hadamard->block, "/") : "";
  return {SlotKind::kFrozen, PathOf(name, absl::StrCat(side == Side::kLhs ? "qlhs" : "qrhs", "/", rotation,
                                                       part == FrozenPart::kValue ? "value" : "scale"))};
}

Slot StatSlot(absl::string_view name, const StateSlot& slot) {
  return {SlotKind::kStat, PathOf(name, absl::StrCat(slot.operand, "/", slot.name))};
}

namespace {

absl::Status NameIsTaken(absl::string_view name) {
  return absl::AlreadyExistsError(absl::StrCat("a contraction named \"", name,
                                               "\" already exists, and the two would share noise, statistics and "
                                               "frozen tensors; NextContractionName() gives each its own"));
}

// A contraction that has a plan. `context` is put before its messages.
Value Planned(absl::Span<const Value> operands, const PlannedDims& dims, const QuantizedDotOptions& options,
              absl::string_view name, const SourceLine& where, absl::string_view context = "") {
  const std::string op = absl::StrCat("aqt_", KindOf(dims));
  const auto refuse = [&](const absl::Status& status) {
    return Refuse(context.empty() ? status : Annotate(status, context), op, operands, where);
  };
  if (const absl::Status status = CheckModes(options); !status.ok()) return refuse(status);
  if (!TakeName(name)) return refuse(NameIsTaken(name));
  const absl::StatusOr<AqtDot> dot =
      AqtDot::Make(options.config, operands[0].aval(), operands[1].aval(), dims, options.semantics,
                   {options.lhs_mode, options.rhs_mode}, PassesOf(options));
  if (!dot.ok()) return refuse(dot.status());
  const bool trains =
      options.with_gradient && options.lhs_mode == QuantMode::kTrain && options.rhs_mode == QuantMode::kTrain;
  AqtDot::Arguments arguments;
  if (trains ? dot->NeedsKey() : dot->ForwardNeedsKey()) arguments.key = KeyOf(options, name);
  arguments.state = StateOf(*dot, options, trains, name);
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    (side == Side::kLhs ? arguments.lhs : arguments.rhs) = OperandOf(
        *dot, side, options, operands[side == Side::kLhs ? 0 : 1], arguments.key, arguments.state, name, where);
  }
  if (operands.size() > 2) arguments.group_sizes = operands[2];
  const AqtDot::Result result = dot->ApplyWithState(arguments, where);
  for (size_t i = 0; i < result.forward_state.size(); ++i) {
    if (result.forward_state[i].has_value())
      WriteSlot(StatSlot(name, dot->plan().forward_state()[i]), *result.forward_state[i]);
  }
  return result.out;
}

// The options for a product whose operands are exchanged.
QuantizedDotOptions Swapped(QuantizedDotOptions options) {
  options.config = SwapOperands(std::move(options.config), options.semantics.compat.einsum_keeps_mid_alphas);
  std::swap(options.lhs_mode, options.rhs_mode);
  std::swap(options.lhs_freezer, options.rhs_freezer);
  return options;
}

Value Einsum(absl::Span<const Value> operands, const std::string& equation, const QuantizedDotOptions& options,
             absl::string_view name, const SourceLine& where) {
  const absl::StatusOr<internal::EinsumLowering> lowering =
      internal::LowerEinsum(equation, operands[0].aval(), operands[1].aval());
  if (!lowering.ok()) return Refuse(lowering.status(), "einsum", operands, where);
  const QuantizedDotOptions in_product = lowering->swapped ? Swapped(options) : options;
  const CallSite site(where);
  return internal::EinsumValue(
      *lowering, operands[0], operands[1],
      [&](const Value& lhs, const Value& rhs, const DotDims& dims) {
        return Planned({lhs, rhs}, dims, in_product, name, where, internal::ProductOf(equation, *lowering));
      },
      options.semantics.compat.einsum_sums_in_dtype);
}

}  // namespace

Value QuantizedContraction(absl::Span<const Value> operands, const ContractionDims& dims,
                           const QuantizedDotOptions& options, absl::string_view name, const SourceLine& where) {
  for (const Value& operand : operands) {
    if (!operand.status().ok()) return operand;
  }
  const size_t expected = std::holds_alternative<RaggedDims>(dims) ? 3 : 2;
  if (operands.size() != expected) {
    return Refuse(absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", operands.size())),
                  KindOf(dims), operands, where);
  }
  return std::visit(
      [&]<class D>(const D& own) {
        if constexpr (std::is_same_v<D, EinsumDims>) return Einsum(operands, own.equation, options, name, where);
        else return Planned(operands, own, options, name, where);
      },
      dims);
}

Value QuantizedDot(const Value& lhs, const Value& rhs, const DotDims& dims, const QuantizedDotOptions& options,
                   absl::string_view name, const SourceLine& where) {
  return QuantizedContraction({lhs, rhs}, dims, options, name, where);
}

}  // namespace aqt
