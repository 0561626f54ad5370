#include "aqt/ops/quantized_dot.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/name_key.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/aqt_dot_general.h"
#include "aqt/ops/opaque_ops.h"
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

// The statistics as inputs of the trace. `forward` has nothing for a side that is served: its scale is frozen.
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

// What the contraction receives for one side.
AqtDot::Operand OperandOf(const AqtDot& dot, Side side, const QuantizedDotOptions& options, const Value& x,
                          const std::optional<Value>& key, const AqtDot::State& state, absl::string_view name,
                          const SourceLine& where) {
  const Slot value_slot = FrozenSlot(name, side, FrozenPart::kValue),
             scale_slot = FrozenSlot(name, side, FrozenPart::kScale);
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
      const Value refused = Refuse(avals.status(), "aqt_dot_general", {x}, where);
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

Slot FrozenSlot(absl::string_view name, Side side, FrozenPart part) {
  return {SlotKind::kFrozen, PathOf(name, absl::StrCat(side == Side::kLhs ? "qlhs" : "qrhs", "/",
                                                       part == FrozenPart::kValue ? "value" : "scale"))};
}

Slot StatSlot(absl::string_view name, const StateSlot& slot) {
  return {SlotKind::kStat, PathOf(name, absl::StrCat(slot.operand, "/", slot.name))};
}

Value QuantizedDot(const Value& lhs, const Value& rhs, const DotDims& dims, const QuantizedDotOptions& options,
                   absl::string_view name, const SourceLine& where) {
  for (const Value& operand : {lhs, rhs}) {
    if (!operand.status().ok()) return operand;
  }
  if (const absl::Status status = CheckModes(options); !status.ok()) {
    return Refuse(status, "aqt_dot_general", {lhs, rhs}, where);
  }
  if (!TakeName(name)) {
    return Refuse(
        absl::AlreadyExistsError(absl::StrCat("a contraction named \"", name,
                                              "\" already exists, and the two would share noise, statistics and "
                                              "frozen tensors; NextContractionName() gives each its own")),
        "aqt_dot_general", {lhs, rhs}, where);
  }
  const absl::StatusOr<AqtDot> dot = AqtDot::Make(options.config, lhs.aval(), rhs.aval(), dims, options.semantics,
                                                  {options.lhs_mode, options.rhs_mode});
  if (!dot.ok()) return Refuse(dot.status(), "aqt_dot_general", {lhs, rhs}, where);
  const bool trains =
      options.with_gradient && options.lhs_mode == QuantMode::kTrain && options.rhs_mode == QuantMode::kTrain;
  std::optional<Value> key;
  if (trains ? dot->NeedsKey() : dot->ForwardNeedsKey()) key = KeyOf(options, name);
  const AqtDot::State state = StateOf(*dot, options, trains, name);
  const AqtDot::Operand left = OperandOf(*dot, Side::kLhs, options, lhs, key, state, name, where);
  const AqtDot::Operand right = OperandOf(*dot, Side::kRhs, options, rhs, key, state, name, where);
  const AqtDot::Result result = dot->ApplyWithState(left, right, key, state, where);
  for (size_t i = 0; i < result.forward_state.size(); ++i) {
    if (result.forward_state[i].has_value())
      WriteSlot(StatSlot(name, dot->plan().forward_state()[i]), *result.forward_state[i]);
  }
  return result.out;
}

}  // namespace aqt
