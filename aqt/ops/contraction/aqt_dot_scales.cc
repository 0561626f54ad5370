#include "aqt/ops/contraction/aqt_dot_scales.h"

#include <algorithm>
#include <variant>

#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/ops/contraction/aqt_dot_ops.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;

// A calibration without an overload does not follow.
template <class C>
bool Follows(const C&) {
  return false;
}
bool Follows(const AbsMax& c) { return !c.po2_scale; }
bool Follows(const Percentile& c) { return !c.po2_scale; }
bool Follows(const SnrSearch& c) { return !c.po2_scale; }
bool Follows(const AbsMean& c) { return !c.po2_scale && c.p == 1; }

int64_t Extents(const Shape& shape, const Axes& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= shape[axis];
  return count;
}

// The number of products in each sum of a dot_general: of the forward pass, or of the gradient of a side. Null for
// other kinds.
std::optional<int64_t> TermsOf(const Impl& dot, std::optional<Side> gradient_of) {
  const DotDims* dims = std::get_if<DotDims>(&dot.dims);
  if (dims == nullptr) return std::nullopt;
  if (!gradient_of.has_value()) return Extents(dot.aval(Side::kLhs).shape, dims->lhs_contracting);
  const Side other = Other(*gradient_of);
  const bool lhs = other == Side::kLhs;
  const Shape& shape = dot.aval(other).shape;
  const Axes &contracting = lhs ? dims->lhs_contracting : dims->rhs_contracting,
             &batch = lhs ? dims->lhs_batch : dims->rhs_batch;
  int64_t count = 1;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    const auto is_axis = [&](int64_t own) { return own == axis; };
    const bool remains = std::none_of(contracting.begin(), contracting.end(), is_axis) &&
                         std::none_of(batch.begin(), batch.end(), is_axis);
    if (remains) count *= shape[axis];
  }
  return count;
}

}  // namespace

bool FollowsItsTensor(const Quantizer& quantizer, const Compat& compat) {
  if (!IsQuantized(quantizer.numerics)) return true;
  if (compat.small_scales_are_one) return false;
  return std::visit([](const auto& c) { return Follows(c); }, *quantizer.calibration);
}

ScalePassing ForwardScales(const Impl& dot, const OperandOrder& order, size_t num_updated, bool with_residuals) {
  const Compat& compat = dot.semantics().compat;
  ScalePassing result{.keeps = std::vector<bool>(order.size(), false), .quantizes = !dot.is_float()};
  for (const Side side : kSides) {
    const int i = static_cast<int>(side);
    const bool replaced = order.has_scale[i] || order.packed[i];
    result.keeps[order.at(side)] =
        !replaced && !HasMidAlphas(dot.config.fwd) && FollowsItsTensor(dot.forward(side).quantizer, compat);
  }
  result.outputs.push_back({{order.at(Side::kLhs), order.at(Side::kRhs)}, TermsOf(dot, std::nullopt)});
  result.outputs.resize(1 + num_updated);
  if (!with_residuals) return result;
  for (const ResidualSlot& slot : dot.plan().residuals()) {
    ScalePassing::Output& out = result.outputs.emplace_back();
    if (slot.kind == ResidualKind::kValue || slot.kind == ResidualKind::kScale) out.factors = {order.at(slot.side)};
  }
  return result;
}

ScalePassing BackwardScales(const Impl& dot, size_t num_operands, size_t num_updated) {
  const Compat& compat = dot.semantics().compat;
  constexpr size_t kG = 0;
  ScalePassing result{.keeps = std::vector<bool>(num_operands, false), .quantizes = !dot.is_float()};
  bool keeps_g = true, keeps_side[] = {true, true};
  for (const Side side : kSides) {
    const DotGeneralRawConfig& raw = side == Side::kLhs ? dot.config.dlhs : dot.config.drhs;
    bool& keeps_other = keeps_side[static_cast<int>(Other(side))];
    const bool uses_qvalue = dot.engine().gradient(side).other == OtherOperand::kForwardQvalue;
    const bool g_follows = FollowsItsTensor(raw.lhs.quantizer, compat) && !HasMidAlphas(raw);
    // The qvalue has no scale; g is multiplied by the scale before it is quantized.
    const bool other_follows =
        (uses_qvalue ? g_follows : FollowsItsTensor(raw.rhs.quantizer, compat)) && !HasMidAlphas(raw);
    keeps_g = keeps_g && g_follows;
    keeps_other = keeps_other && other_follows;
  }
  result.keeps[kG] = keeps_g;
  result.outputs.resize(2 + num_updated);
  const absl::Span<const ResidualSlot> slots = dot.plan().residuals();
  std::optional<size_t> scaled[2];  // the residual that has the scale of a side
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind != ResidualKind::kValue && slots[i].kind != ResidualKind::kScale) continue;
    result.keeps[1 + i] = keeps_side[static_cast<int>(slots[i].side)];
    scaled[static_cast<int>(slots[i].side)] = 1 + i;
  }
  for (const Side side : kSides) {
    ScalePassing::Output& out = result.outputs[static_cast<int>(side)];
    out = {{kG}, TermsOf(dot, side)};
    if (const auto& other = scaled[static_cast<int>(Other(side))]; other.has_value()) out.factors.push_back(*other);
  }
  return result;
}

std::optional<ScalePassing> ScalePassingOf(const Op& op) {
  const DotOp* const dot = DotOpOf(op);
  return dot == nullptr ? std::nullopt : dot->scales();
}

}  // namespace aqt::internal
