#include "aqt/ops/contraction/aqt_dot_ops.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/ops/contraction/aqt_dot_kernels.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/ops/quant_math.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/numerics/numerics_rows.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;

class BackwardOp : public DotOp, public HasFields<DotBackwardFields> {
 public:
  BackwardOp(std::shared_ptr<const Impl> dot, bool has_key)
      : dot_(std::move(dot)), has_key_(has_key), updated_(dot_->UpdatedPositions(dot_->plan().backward_state())) {}

  std::string Name() const override { return absl::StrCat(dot_->name, "_bwd"); }
  std::string Attributes() const override { return dot_->attributes; }
  const Impl& dot() const override { return *dot_; }
  DotBackwardFields fields() const override { return {FieldsOfDot(*dot_), has_key_}; }
  std::optional<ScalePassing> scales() const override { return BackwardScales(*dot_, num_operands(), updated_.size()); }
  std::optional<ContractionOfRows> OfRows(absl::Span<const std::optional<int64_t>> divided,
                                          int64_t parts) const override {
    return GradientOfRows(*dot_, has_key_, divided, parts);
  }
  int num_outputs() const override { return 2 + static_cast<int>(updated_.size()); }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial(num_operands());
    for (size_t i = 0; i < dot_->plan().backward_state().size(); ++i) {
      initial[state_at() + i] = dot_->plan().backward_state()[i].initial;
    }
    return initial;
  }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const absl::Span<const ResidualSlot> residuals = dot_->plan().residuals();
    const absl::Span<const StateSlot> slots = dot_->plan().backward_state();
    if (in.size() != num_operands()) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", num_operands(), " operands, got ", in.size()));
    }
    AQT_RETURN_IF_ERROR(ExpectAval("the gradient of the output", in[0], dot_->plan().out_aval()));
    for (size_t i = 0; i < residuals.size(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectAval("a residual", in[1 + i], residuals[i].aval));
    }
    if (has_groups()) AQT_RETURN_IF_ERROR(CheckGroupSizesAval(*dot_, in[groups_at()]));
    for (size_t i = 0; i < slots.size(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectAval("a statistic", in[state_at() + i], slots[i].initial.aval()));
    }
    if (has_key_) AQT_RETURN_IF_ERROR(ExpectAval("the key", in.back(), KeyAval()));
    std::vector<Aval> out = {dot_->plan().lhs_aval(), dot_->plan().rhs_aval()};
    for (const size_t position : updated_) out.push_back(slots[position].initial.aval());
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    AQT_ASSIGN_OR_RETURN(const std::vector<Aval> outputs, Infer(AvalsOf(in)));
    return MakeBackwardKernel(dot_, has_key_, updated_, in, outputs, needed);
  }

  bool has_expansion() const override {
    return !HasMidAlphas(dot_->config.dlhs) && !HasMidAlphas(dot_->config.drhs) && !ClipsAtBound(*dot_);
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    std::vector<Value> out(2), next;
    for (const Side side : kSides) out[static_cast<int>(side)] = Gradient(side, in, next);
    for (const size_t position : updated_) out.push_back(next[position]);
    return out;
  }

 private:
  bool has_groups() const { return dot_->ragged() != nullptr; }
  size_t groups_at() const { return 1 + dot_->plan().residuals().size(); }
  size_t state_at() const { return groups_at() + (has_groups() ? 1 : 0); }
  size_t num_operands() const { return state_at() + dot_->plan().backward_state().size() + (has_key_ ? 1 : 0); }

  const Value* Residual(Side side, ResidualKind kind, absl::Span<const Value> in) const {
    const absl::Span<const ResidualSlot> slots = dot_->plan().residuals();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].side == side && slots[i].kind == kind) return &in[1 + i];
    }
    return nullptr;
  }

  // The gradient of one side: the product of g with the other side, then through the quantization of this side. Appends
  // the updated statistics to `next`.
  Value Gradient(Side side, absl::Span<const Value> in, std::vector<Value>& next) const {
    const bool lhs = side == Side::kLhs;
    const Side other = Other(side);
    const DotGeneralRawConfig& raw = lhs ? dot_->config.dlhs : dot_->config.drhs;
    const DType dtype = dot_->plan().out_aval().dtype;
    const GradientPlan& plan = dot_->engine().gradient(side);
    if (plan.is_zero) return Zeros(dot_->aval(side));
    ExpandedMeeting meeting{plan.product.geometry, SumTypesOf(plan.product),
                            GroupEndsOf(*dot_, has_groups() ? &in[groups_at()] : nullptr)};
    meeting.geometry.dims = plan.dims;
    ProductSide g, y;
    g.x = TileProductGradient(*dot_, in[0]);
    switch (plan.other) {
      case OtherOperand::kFloat: y.x = TileOperand(*dot_, other, *Residual(other, ResidualKind::kValue, in)); break;
      case OtherOperand::kForwardQvalue: {
        const Value scale = ScaleToOther(*Residual(other, ResidualKind::kScale, in), Side::kRhs, plan.dims, g.x.rank());
        g.x = FromF32(MulIn(dtype, ToF32(g.x), RoundTo(dtype, ToF32(scale))), dtype);
        y.x = ops::Cast(ToF32(*Residual(other, ResidualKind::kQvalue, in)), dtype);
        break;
      }
      case OtherOperand::kDequantized:
        y.x = Dequantized(dot_->forward(other).quantizer, *Residual(other, ResidualKind::kQvalue, in),
                          *Residual(other, ResidualKind::kScale, in), dtype);
        break;
    }
    if (dot_->plan().BackwardNeedsKey()) {
      const Value* key = has_key_ ? &in.back() : nullptr;
      g.key = KeyFor(*dot_, key, lhs ? Pass::kDlhs : Pass::kDrhs, Side::kLhs);
      y.key = KeyFor(*dot_, key, lhs ? Pass::kDlhs : Pass::kDrhs, Side::kRhs);
    }
    const absl::Span<const StateSlot> slots = dot_->plan().backward_state();
    const absl::Span<const Value> statistics = in.subspan(state_at(), slots.size());
    g.statistics = StatisticsOf(lhs ? "dlhs.lhs" : "drhs.lhs", slots, statistics);
    g.mode = dot_->mode(Side::kLhs);
    y.statistics = StatisticsOf(lhs ? "dlhs.rhs" : "drhs.rhs", slots, statistics);
    y.mode = dot_->mode(Side::kRhs);
    const ExpandedProduct result = ExpandGradientProduct(raw, g, y, meeting, dtype, dot_->semantics());
    for (const QuantizedValue* operand : {&result.lhs, &result.rhs}) {
      next.insert(next.end(), operand->statistics.begin(), operand->statistics.end());
    }
    const Value& product = result.out;
    Axes permutation(plan.to_operand.size());
    for (size_t j = 0; j < permutation.size(); ++j) permutation[plan.to_operand[j]] = static_cast<int64_t>(j);
    Value gradient = ops::Transpose(product, permutation);

    const Quantizer& quantizer = dot_->forward(side).quantizer;
    // The gradient is taken of the rotated operand, if the product has its qvalue, or a mask is applied. Then it is
    // rotated back.
    const SidePlan& own = dot_->engine().forward().side(side);
    const bool is_rotated = plan.other == OtherOperand::kForwardQvalue;
    const auto rotated = [&](const Value& x) { return Rotated(dot_->config.fwd.hadamard, x, own.axes); };
    if (!GradientBound(quantizer.numerics, DType::kF32).has_value()) {
      return UntileOperandGradient(*dot_, side, is_rotated ? rotated(gradient) : gradient);
    }
    if (!is_rotated) gradient = rotated(gradient);
    const Value* kept = Residual(side, ResidualKind::kClipMask, in);
    const Value mask =
        kept != nullptr
            ? *kept
            : NotClipped(quantizer.numerics,
                         ScaleValue(quantizer, TileOperand(*dot_, side, *Residual(side, ResidualKind::kValue, in)),
                                    *Residual(side, ResidualKind::kScale, in), dot_->semantics()));
    const Value clipped = ClipMaskChooses(dtype, dot_->semantics())
                              ? ops::Select(ops::Equal(ToF32(mask), 0.0), 0.0, ToF32(gradient))
                              : MulIn(dtype, ToF32(gradient), ToF32(mask));
    return UntileOperandGradient(*dot_, side, rotated(FromF32(clipped, dtype)));
  }

  const std::shared_ptr<const Impl> dot_;
  const bool has_key_;
  const std::vector<size_t> updated_;  // positions in the plan's backward_state(): outputs after dlhs and drhs
};

}  // namespace

std::shared_ptr<const Composite> MakeBackwardOp(std::shared_ptr<const AqtDot::Impl> dot, bool has_key) {
  return std::make_shared<BackwardOp>(std::move(dot), has_key);
}

}  // namespace aqt::internal
