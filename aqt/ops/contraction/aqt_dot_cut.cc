#include "aqt/ops/contraction/aqt_dot_cut.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/ops/contraction/aqt_dot_ops.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/engine/quantize_side.h"

namespace aqt::internal {
namespace {

bool Contains(absl::Span<const int64_t> axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Whether an operand's rows along `axis` are quantized independently, also in a part.
bool RowsAreApart(const SidePlan& side, int64_t axis, int64_t parts, const Semantics& semantics) {
  if (!side.is_quantized() || parts == 1) return !side.draws() && !side.has_state();
  const QuantizeSpec& spec = *side.spec;
  if (side.draws() || side.has_state() || !std::holds_alternative<AbsMax>(spec.calibration)) return false;
  if (Contains(spec.shared_axes, axis)) return false;
  return semantics.arithmetic == Arithmetic::kIeee || spec.num_scales() / parts > 1;
}

// Null if the contraction cannot be cut.
const DotDims* DimsToCut(const AqtDot::Impl& dot) {
  const bool plain = !dot.is_float() && !dot.tiled().has_value() && !HasMidAlphas(dot.config.fwd) &&
                     !HasMidAlphas(dot.config.dlhs) && dot.plan().forward_state().empty() &&
                     dot.plan().backward_state().empty();
  return plain ? std::get_if<DotDims>(&dot.dims) : nullptr;
}

bool AllWhole(absl::Span<const std::optional<int64_t>> divided) {
  return std::none_of(divided.begin(), divided.end(), [](const auto& axis) { return axis.has_value(); });
}

// Null if it cannot be cut there.
std::shared_ptr<const AqtDot::Impl> DotOfRows(const AqtDot::Impl& dot, int64_t axis, int64_t parts) {
  if (DimsToCut(dot) == nullptr) return nullptr;
  if (!RowsAreApart(dot.engine().forward().side(Side::kLhs), axis, parts, dot.semantics())) return nullptr;
  Aval lhs = dot.aval(Side::kLhs);
  lhs.shape[axis] /= parts;
  absl::StatusOr<std::shared_ptr<const AqtDot::Impl>> made =
      AqtDot::Impl::Make(dot.config, lhs, dot.aval(Side::kRhs), dot.dims, dot.semantics(), dot.modes);
  return made.ok() ? *std::move(made) : nullptr;
}

// The output's axis for an axis of lhs; nullopt if that is not one of its rows.
std::optional<int64_t> OutAxisOfRow(const AqtDot::Impl& dot, int64_t lhs_axis) {
  const DotDims* dims = DimsToCut(dot);
  if (dims == nullptr) return std::nullopt;
  const Axes rows = RemainingAxes(dot.aval(Side::kLhs).shape.rank(), dims->lhs_contracting, dims->lhs_batch);
  const auto at = std::find(rows.begin(), rows.end(), lhs_axis);
  if (at == rows.end()) return std::nullopt;
  return static_cast<int64_t>(dims->lhs_batch.size()) + (at - rows.begin());
}

}  // namespace

std::optional<ContractionOfRows> ForwardOfRows(const AqtDot::Impl& dot, const OperandOrder& order, bool with_residuals,
                                               absl::Span<const std::optional<int64_t>> divided, int64_t parts,
                                               const std::optional<std::string>& name) {
  const bool only_lhs = divided[0].has_value() && AllWhole(divided.subspan(1));
  if (!only_lhs || order.has_scale[0] || order.packed[0] || order.packed[1] || dot.plan().ForwardNeedsKey()) {
    return std::nullopt;
  }
  const std::optional<int64_t> out_axis = OutAxisOfRow(dot, *divided[0]);
  if (!out_axis.has_value()) return std::nullopt;
  const std::shared_ptr<const AqtDot::Impl> part = DotOfRows(dot, *divided[0], parts);
  if (part == nullptr) return std::nullopt;
  ContractionOfRows result{{MakeForwardOp(part, order, with_residuals, {}, name)}, {out_axis}, {true}};
  for (const ResidualSlot& slot : dot.plan().residuals()) {
    if (!with_residuals) break;
    result.axes.push_back(slot.side == Side::kLhs ? divided[0] : std::nullopt);
    result.valid.push_back(true);
  }
  return result;
}

std::optional<ContractionOfRows> GradientOfRows(const AqtDot::Impl& dot, bool has_key,
                                                absl::Span<const std::optional<int64_t>> divided, int64_t parts) {
  const DotDims* dims = DimsToCut(dot);
  if (dims == nullptr || !divided[0].has_value()) return std::nullopt;
  std::optional<int64_t> axis;
  for (int64_t i = 0; i < dot.aval(Side::kLhs).shape.rank(); ++i) {
    if (OutAxisOfRow(dot, i) == divided[0]) axis = i;
  }
  if (!axis.has_value()) return std::nullopt;
  const absl::Span<const ResidualSlot> residuals = dot.plan().residuals();
  for (size_t i = 0; i < residuals.size(); ++i) {
    const std::optional<int64_t> want = residuals[i].side == Side::kLhs ? axis : std::nullopt;
    if (divided[1 + i] != want) return std::nullopt;
  }
  if (!AllWhole(divided.subspan(1 + residuals.size()))) return std::nullopt;
  const ProductPlan& product = dot.engine().gradient(Side::kLhs).product;
  if (product.tiled.has_value() || !RowsAreApart(product.side(Side::kLhs), *divided[0], parts, dot.semantics())) {
    return std::nullopt;
  }
  const std::shared_ptr<const AqtDot::Impl> part = DotOfRows(dot, *axis, parts);
  if (part == nullptr) return std::nullopt;
  return ContractionOfRows{{MakeBackwardOp(part, has_key)}, {axis, std::nullopt}, {true, false}};
}

bool IsQuantizedContraction(const Op& op) { return DotOpOf(op) != nullptr; }

std::optional<ContractionOfRows> OfRows(const Op& op, absl::Span<const std::optional<int64_t>> divided, int64_t parts) {
  const DotOp* const dot = DotOpOf(op);
  return dot == nullptr ? std::nullopt : dot->OfRows(divided, parts);
}

}  // namespace aqt::internal
