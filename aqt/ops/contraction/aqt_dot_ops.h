#ifndef AQT_OPS_CONTRACTION_AQT_DOT_OPS_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_OPS_H_

// The composites of an AqtDot and the code that they share. Internal to the library of aqt_dot_general.h.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/aqt_dot_cut.h"
#include "aqt/ops/contraction/aqt_dot_fields.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction/aqt_dot_scales.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/engine/dot_tiling.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/planned_contraction.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt {

struct AqtDot::Impl {
  std::variant<DotGeneralPlan, ConvGeneralPlan, RaggedDotPlan> door;
  PlannedDims dims;
  DotGeneralConfig config;
  AqtDot::Modes modes;
  std::string name;  // of the operation without gradient
  std::string attributes;

  const PlannedContraction& plan() const {
    return std::visit([](const PlannedContraction& own) -> const PlannedContraction& { return own; }, door);
  }
  const internal::ContractionPlan& engine() const { return internal::EngineOf(plan()); }
  const RaggedDotPlan* ragged() const { return std::get_if<RaggedDotPlan>(&door); }
  bool is_conv() const { return std::holds_alternative<ConvGeneralPlan>(door); }
  bool is_float() const { return config == DotGeneralConfig{}; }

  // AqtDot::Make and MakeFloat.
  static absl::StatusOr<std::shared_ptr<const Impl>> Make(const DotGeneralConfig& config, const Aval& lhs,
                                                          const Aval& rhs, const PlannedDims& dims,
                                                          const Semantics& semantics, const AqtDot::Modes& modes,
                                                          PlanPasses passes = PlanPasses::kForwardAndBackward);
  static absl::StatusOr<std::shared_ptr<const Impl>> MakeFloat(const Aval& lhs, const Aval& rhs,
                                                               const PlannedDims& dims);

  const Semantics& semantics() const { return plan().options().semantics; }
  QuantMode mode(Side side) const { return side == Side::kLhs ? modes.lhs : modes.rhs; }
  bool Updates(const StateSlot& slot) const { return slot.UpdatedIn(mode(slot.side)); }
  // The positions of the statistics that a call updates.
  std::vector<size_t> UpdatedPositions(absl::Span<const StateSlot> slots) const {
    std::vector<size_t> positions;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (Updates(slots[i])) positions.push_back(i);
    }
    return positions;
  }

  const Aval& aval(Side side) const { return side == Side::kLhs ? plan().lhs_aval() : plan().rhs_aval(); }
  const TensorConfig& forward(Side side) const { return side == Side::kLhs ? config.fwd.lhs : config.fwd.rhs; }
  const std::optional<internal::TiledDot>& tiled() const { return engine().forward().tiled; }
  // The aval that is quantized: the tiled one if there is a tiling.
  const Aval& inner_aval(Side side) const { return engine().forward().side(side).x; }
  // The axes of one side, in its tiled shape, that share a scale. The side is quantized.
  const Axes& shared_axes(Side side) const { return engine().forward().side(side).spec->shared_axes; }

  // That of the plan; `group_sizes` is null unless the contraction is ragged.
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, const Array* group_sizes, const Context& context,
                        const std::optional<MutableArrayRef>& dlhs, const std::optional<MutableArrayRef>& drhs,
                        const Runtime& runtime, const StateArrays& state) const;
};

namespace internal {

// Tiling in basic operations: an operand tiled, its gradient untiled, the product untiled, and its gradient tiled.
Value TileOperand(const AqtDot::Impl& dot, Side side, const Value& x);
// An operand as the forward pass calibrates and quantizes it: tiled, then rotated.
Value RotatedOperand(const AqtDot::Impl& dot, Side side, const Value& x);
Value UntileOperandGradient(const AqtDot::Impl& dot, Side side, const Value& gradient);
Value UntileProduct(const AqtDot::Impl& dot, const Value& product);
Value TileProductGradient(const AqtDot::Impl& dot, const Value& g);

// Mid scales have no expansion in basic operations.
inline bool HasMidAlphas(const DotGeneralRawConfig& raw) {
  return raw.lhs_mid_alpha.has_value() || raw.rhs_mid_alpha.has_value();
}

// Nor has a gradient that is masked by the bounds of a calibration (Compat::clip_gradient_at_bound).
bool ClipsAtBound(const AqtDot::Impl& dot);

absl::Status ExpectAval(const char* name, const Aval& got, const Aval& want);
// The context of an evaluation: with the key u32[2] if there is one.
Context ContextOf(const AqtDot::Impl& dot, const Array* key);
Runtime CurrentRuntime();
// The role of one operand, and its key in an expansion.
KeyRole RoleOf(const AqtDot::Impl& dot, Pass pass, Side side);
std::optional<Value> KeyFor(const AqtDot::Impl& dot, const Value* key, Pass pass, Side side);
// The group ends of an expansion, from the operand group_sizes; poisoned unless the contraction is ragged.
Value GroupEndsOf(const AqtDot::Impl& dot, const Value* group_sizes);
absl::Status CheckGroupSizesAval(const AqtDot::Impl& dot, const Aval& group_sizes);

// The operands of an equation, in order: one or two for each side, the first of which may be packed (aqt_pack);
// optionally group_sizes; the statistics of sides without a scale; optionally those of the gradient; optionally a key.
struct OperandOrder {
  bool has_scale[2] = {false, false};
  bool quantized[2] = {false, false};  // has a scale, and the operand is a qvalue
  bool packed[2] = {false, false};     // the result of aqt_pack on a qvalue, or on the operand of a float side
  bool has_groups = false;
  std::vector<size_t> forward_state;  // positions in the plan's forward_state()
  size_t backward_state = 0;          // number of statistics
  bool has_key = false;

  size_t at(Side side) const { return side == Side::kLhs ? 0 : has_scale[0] ? 2 : 1; }
  size_t groups_at() const { return at(Side::kRhs) + (has_scale[1] ? 2 : 1); }
  size_t forward_at() const { return groups_at() + (has_groups ? 1 : 0); }
  size_t backward_at() const { return forward_at() + forward_state.size(); }
  size_t key_at() const { return backward_at() + backward_state; }
  size_t size() const { return key_at() + (has_key ? 1 : 0); }
};

// The statistics of one operand ("fwd.lhs"), picked from the values for `slots`.
std::vector<Value> StatisticsOf(absl::string_view operand, absl::Span<const StateSlot> slots,
                                absl::Span<const Value> values);

// An operation of an AqtDot.
class DotOp : public CompositeBase {
 public:
  virtual const AqtDot::Impl& dot() const = 0;
  // Implements ScalePassingOf.
  virtual std::optional<ScalePassing> scales() const { return std::nullopt; }
  // Implements internal::OfRows.
  virtual std::optional<ContractionOfRows> OfRows(absl::Span<const std::optional<int64_t>>, int64_t) const {
    return std::nullopt;
  }
};
// OfRows for the forward operation and for the gradient.
std::optional<ContractionOfRows> ForwardOfRows(const AqtDot::Impl& dot, const OperandOrder& order, bool with_residuals,
                                               absl::Span<const std::optional<int64_t>> divided, int64_t parts,
                                               const std::optional<std::string>& name);
std::optional<ContractionOfRows> GradientOfRows(const AqtDot::Impl& dot, bool has_key,
                                                absl::Span<const std::optional<int64_t>> divided, int64_t parts);
// Scale passing of the forward operation and of the gradient; they update `num_updated` statistics.
ScalePassing ForwardScales(const AqtDot::Impl& dot, const OperandOrder& order, size_t num_updated, bool with_residuals);
ScalePassing BackwardScales(const AqtDot::Impl& dot, size_t num_operands, size_t num_updated);
// Null for any other operation.
const DotOp* DotOpOf(const Op& op);
ContractionFields FieldsOfDot(const AqtDot::Impl& dot);
OperandForm FormOf(const OperandOrder& order, Side side);

// The operation <name>, such as aqt_dot_general. When a gradient is taken, it becomes <name>_fwd, which also outputs
// the residuals. `backward_slots` are the names of the gradient's statistics.
std::shared_ptr<const Composite> MakeForwardOp(std::shared_ptr<const AqtDot::Impl> dot, OperandOrder order,
                                               bool with_residuals, std::vector<Slot> backward_slots,
                                               std::optional<std::string> name);
// The contraction of a forward operation whose lhs is a float array, without residuals, statistics, groups or a key.
// Null for any other operation.
std::shared_ptr<const AqtDot::Impl> DotOfFloatLhs(const Op& op);
// Binds such an operation again, with `lhs` (panels and a scale) in the place of lhs.
std::vector<Value> BindWithLhs(const Op& op, absl::Span<const Value> lhs, absl::Span<const Value> others,
                               const SourceLine& where);
// <name>_bwd: (g, residuals[, group_sizes], statistics[, key]) -> dlhs, drhs, and the statistics that it updates.
std::shared_ptr<const Composite> MakeBackwardOp(std::shared_ptr<const AqtDot::Impl> dot, bool has_key);
// aqt_quantize: (x[, scale][, key]) -> qvalue, scale.
std::shared_ptr<const Composite> MakeQuantizeOp(std::shared_ptr<const AqtDot::Impl> dot, Side side, bool has_scale,
                                                bool has_key);
// aqt_pack: (qvalue, scale) or (x) -> u8[bytes], the operand in the layout that the kernels of this machine read. The
// engine must pack this side.
std::shared_ptr<const Composite> MakePackOp(std::shared_ptr<const AqtDot::Impl> dot, Side side, bool has_scale);

}  // namespace internal
}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_OPS_H_
