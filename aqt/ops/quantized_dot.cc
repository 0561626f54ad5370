#include "aqt/ops/quantized_dot.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/aqt_dot_general.h"
#include "aqt/ops/aqt_parts.h"

namespace aqt {
namespace {

// FNV-1a: stable over machines and versions.
uint32_t Hash(absl::string_view text) {
  uint32_t hash = 0x811c9dc5u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  return hash;
}

Value KeyOf(const QuantizedDotOptions& options, absl::string_view name) {
  if (options.key_slot.has_value()) return InputSlot({SlotKind::kKey, *options.key_slot}, KeyAval());
  return ops::FoldInKey(InputSlot({SlotKind::kKey, options.shared_key_slot}, KeyAval()), Hash(name));
}

// What the contraction receives for one side.
AqtDot::Operand OperandOf(const AqtDot& dot, Side side, QuantMode mode, const Value& x, const std::optional<Value>& key,
                          absl::string_view name, const SourceLine& where) {
  const Slot value_slot = FrozenSlot(name, side, FrozenPart::kValue), scale_slot = FrozenSlot(name, side, FrozenPart::kScale);
  if (mode == QuantMode::kConvert) {
    AqtDot::Operand quantized = dot.Quantize(side, x, key, where);
    WriteSlot(value_slot, quantized.value);
    WriteSlot(scale_slot, *quantized.scale);
    return quantized;
  }
  if (mode == QuantMode::kServe) {
    const absl::StatusOr<AqtDot::QuantizedAvals> avals = dot.QuantizedAvalsOf(side);
    if (!avals.ok()) {
      const Value refused = Refuse(avals.status(), "aqt_dot_general", {x}, where);
      return {refused, refused};
    }
    return {InputSlot(value_slot, avals->qvalue), InputSlot(scale_slot, avals->scale)};
  }
  return {x};
}

}  // namespace

std::string ContractionName(absl::string_view scope, int ordinal) {
  if (ordinal == 0) return std::string(scope);
  return absl::StrCat(scope, scope.empty() ? "" : "/", "dot_", ordinal);
}

Slot FrozenSlot(absl::string_view name, Side side, FrozenPart part) {
  return {SlotKind::kFrozen, absl::StrCat(name, name.empty() ? "" : "/", side == Side::kLhs ? "qlhs" : "qrhs", "/",
                                          part == FrozenPart::kValue ? "value" : "scale")};
}

Value QuantizedDot(const Value& lhs, const Value& rhs, const DotDims& dims, const QuantizedDotOptions& options,
                   absl::string_view name, const SourceLine& where) {
  for (const Value& operand : {lhs, rhs}) {
    if (!operand.status().ok()) return operand;
  }
  if (options.lhs_mode == QuantMode::kCalibrate || options.rhs_mode == QuantMode::kCalibrate) {
    return Refuse(absl::UnimplementedError("QUANT_MODE_CALIBRATE needs a calibration with state; AbsMax has none: use TRAIN"),
                  "aqt_dot_general", {lhs, rhs}, where);
  }
  const absl::StatusOr<AqtDot> dot = AqtDot::Make(options.config, lhs.aval(), rhs.aval(), dims, options.rules);
  if (!dot.ok()) return Refuse(dot.status(), "aqt_dot_general", {lhs, rhs}, where);
  const bool trains = options.with_gradient && options.lhs_mode == QuantMode::kTrain && options.rhs_mode == QuantMode::kTrain;
  std::optional<Value> key;
  if (trains ? dot->NeedsKey() : dot->ForwardNeedsKey()) key = KeyOf(options, name);
  const AqtDot::Operand left = OperandOf(*dot, Side::kLhs, options.lhs_mode, lhs, key, name, where);
  const AqtDot::Operand right = OperandOf(*dot, Side::kRhs, options.rhs_mode, rhs, key, name, where);
  return dot->Apply(left, right, key, where);
}

}  // namespace aqt
