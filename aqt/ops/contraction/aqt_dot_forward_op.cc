#include "aqt/ops/contraction/aqt_dot_ops.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/aqt_dot_kernels.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/numerics/arith.h"

namespace aqt::internal {
namespace {

using Impl = AqtDot::Impl;

class ForwardOp : public DotOp, public HasFields<DotForwardFields> {
 public:
  // `backward_slots` are the names of the gradient's statistics.
  ForwardOp(std::shared_ptr<const Impl> dot, OperandOrder order, bool with_residuals, std::vector<Slot> backward_slots,
            std::optional<std::string> name)
      : dot_(std::move(dot)),
        order_(std::move(order)),
        with_residuals_(with_residuals),
        backward_slots_(std::move(backward_slots)),
        name_(std::move(name)) {
    for (const size_t position : order_.forward_state) {
      if (dot_->Updates(dot_->plan().forward_state()[position])) updated_.push_back(position);
    }
  }

  std::string Name() const override { return with_residuals_ ? absl::StrCat(dot_->name, "_fwd") : dot_->name; }
  std::string Attributes() const override {
    std::string text = dot_->attributes;
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      if (!order_.has_scale[i] || order_.quantized[i]) continue;
      absl::StrAppend(&text, ", ", side == Side::kLhs ? "lhs" : "rhs", " by a given scale");
    }
    for (const Side side : kSides) {
      if (order_.packed[static_cast<int>(side)]) absl::StrAppend(&text, ", ", internal::Name(side), " packed");
    }
    return text;
  }
  std::optional<std::string> instance_name() const override { return name_; }
  const Impl& dot() const override { return *dot_; }
  DotForwardFields fields() const override {
    return {.contraction = FieldsOfDot(*dot_),
            .with_residuals = with_residuals_,
            .lhs = FormOf(order_, Side::kLhs),
            .rhs = FormOf(order_, Side::kRhs),
            .has_backward_state = order_.backward_state > 0,
            .has_key = order_.has_key,
            .backward_slots = backward_slots_,
            .name = name_};
  }
  std::optional<ScalePassing> scales() const override {
    return ForwardScales(*dot_, order_, updated_.size(), with_residuals_);
  }
  std::optional<ContractionOfRows> OfRows(absl::Span<const std::optional<int64_t>> divided,
                                          int64_t parts) const override {
    return ForwardOfRows(*dot_, order_, with_residuals_, divided, parts, name_);
  }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial(order_.size());
    for (size_t i = 0; i < order_.forward_state.size(); ++i) {
      initial[order_.forward_at() + i] = dot_->plan().forward_state()[order_.forward_state[i]].initial;
    }
    for (size_t i = 0; i < order_.backward_state; ++i) {
      initial[order_.backward_at() + i] = dot_->plan().backward_state()[i].initial;
    }
    return initial;
  }
  // out, updated statistics, residuals.
  int num_outputs() const override {
    return static_cast<int>(1 + updated_.size() + (with_residuals_ ? dot_->plan().residuals().size() : 0));
  }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != order_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", order_.size(), " operands, got ", in.size()));
    }
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      if (order_.packed[i]) {
        const Aval panels{DType::kU8, {*dot_->engine().PanelBytesOf(side)}};
        AQT_RETURN_IF_ERROR(ExpectAval("a packed operand", in[order_.at(side)], panels));
      } else if (!order_.quantized[i]) {
        AQT_RETURN_IF_ERROR(ExpectAval(side == Side::kLhs ? "lhs" : "rhs", in[order_.at(side)], dot_->aval(side)));
      }
      if (order_.has_scale[i]) AQT_RETURN_IF_ERROR(CheckScale(side, in));
    }
    if (order_.has_groups) AQT_RETURN_IF_ERROR(CheckGroupSizesAval(*dot_, in[order_.groups_at()]));
    const std::vector<std::optional<Array>> initial = InitialStatistics();
    for (size_t i = order_.forward_at(); i < order_.key_at(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectAval("a statistic", in[i], initial[i]->aval()));
    }
    if (order_.has_key) AQT_RETURN_IF_ERROR(ExpectAval("the key", in.back(), KeyAval()));
    std::vector<Aval> out = {dot_->plan().out_aval()};
    for (const size_t position : updated_) out.push_back(dot_->plan().forward_state()[position].initial.aval());
    if (with_residuals_) {
      for (const ResidualSlot& slot : dot_->plan().residuals()) out.push_back(slot.aval);
    }
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    AQT_ASSIGN_OR_RETURN(const std::vector<Aval> outputs, Infer(AvalsOf(in)));
    return MakeForwardKernel(dot_, order_, with_residuals_, updated_, in, outputs, needed);
  }

  // Checks that the scale of a side, and its qvalue if it has one, fit the values that the plan quantizes.
  absl::Status CheckScale(Side side, absl::Span<const Aval> in) const {
    const int i = static_cast<int>(side);
    const char* const name = side == Side::kLhs ? "lhs" : "rhs";
    const ProductPlan& product = dot_->engine().forward();
    const Shape& values = product.side(side).x.shape;
    const Aval &value = in[order_.at(side)], &scale = in[order_.at(side) + 1];
    if (order_.quantized[i] && !order_.packed[i] && value.shape != values) {
      return absl::InvalidArgumentError(
          absl::StrCat("the qvalue of ", name, " is ", value.ToString(), ", expected the shape ", values.ToString()));
    }
    bool fits = scale.shape.rank() == values.rank();
    // The scale of a convolution kernel has the axes of the convolution's result.
    for (int64_t axis = 0; fits && !product.geometry.windows.has_value() && axis < values.rank(); ++axis) {
      fits = scale.shape[axis] == 1 || scale.shape[axis] == values[axis];
    }
    if (fits && IsArithmeticFloat(scale.dtype)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the scale of ", name, " is ", scale.ToString(),
                                                   ", expected f32, bf16 or f16 that broadcasts to ",
                                                   values.ToString()));
  }

  // The dims, if this is a float operation of its own.
  std::optional<PlannedDims> float_dims() const {
    if (with_residuals_ || is_packed() || dot_->name != KindOf(dot_->dims)) return std::nullopt;
    return dot_->dims;
  }

  // Binds the operation again with packed operands: those that replace a side and are `is_fixed`. Null if there are
  // none.
  std::optional<std::vector<Value>> BindPacked(absl::Span<const Value> in, absl::Span<const bool> is_fixed,
                                               const SourceLine& where) const {
    if (with_residuals_ || order_.backward_state > 0) return std::nullopt;
    OperandOrder order = order_;
    std::vector<Value> operands(in.begin(), in.end());
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      const size_t at = order_.at(side), count = order_.has_scale[i] ? 2 : 1;
      const bool replaces_side =
          order_.quantized[i] || (!order_.has_scale[i] && !dot_->engine().forward().side(side).is_quantized());
      const absl::Span<const bool> fixed = is_fixed.subspan(at, count);
      const bool all_fixed = std::all_of(fixed.begin(), fixed.end(), [](bool own) { return own; });
      if (order_.packed[i] || !replaces_side || !all_fixed || !dot_->engine().PanelBytesOf(side).has_value()) continue;
      const CompositeOp pack{MakePackOp(dot_, side, order_.has_scale[i])};
      operands[at] = BindOne(pack, in.subspan(at, count), where);
      order.packed[i] = true;
    }
    if (!order.packed[0] && !order.packed[1]) return std::nullopt;
    const CompositeOp op{std::make_shared<ForwardOp>(dot_, order, false, backward_slots_, name_)};
    return Bind(op, operands, where);
  }

  // DotOfFloatLhs and BindWithLhs.
  std::shared_ptr<const Impl> dot_of_float_lhs() const {
    const bool is_plain = !with_residuals_ && !order_.has_scale[0] && !order_.packed[0] && !order_.has_groups &&
                          order_.forward_state.empty() && order_.backward_state == 0 && !order_.has_key;
    return is_plain ? dot_ : nullptr;
  }
  std::vector<Value> BindWithLhs(absl::Span<const Value> lhs, absl::Span<const Value> others,
                                 const SourceLine& where) const {
    OperandOrder order = order_;
    order.has_scale[0] = order.quantized[0] = order.packed[0] = true;
    std::vector<Value> operands(lhs.begin(), lhs.end());
    operands.insert(operands.end(), others.begin(), others.end());
    return Bind(CompositeOp{std::make_shared<ForwardOp>(dot_, order, false, backward_slots_, name_)}, operands, where);
  }

  bool is_packed() const { return order_.packed[0] || order_.packed[1]; }
  bool has_expansion() const override {
    return !is_packed() && !HasMidAlphas(dot_->config.fwd) && !(with_residuals_ && ClipsAtBound(*dot_));
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const absl::Span<const StateSlot> slots = dot_->plan().forward_state();
    std::vector<Value> statistics(slots.size());
    for (size_t i = 0; i < order_.forward_state.size(); ++i) {
      statistics[order_.forward_state[i]] = in[order_.forward_at() + i];
    }
    ProductSide sides[2];
    for (const Side side : kSides) {
      ProductSide& own = sides[static_cast<int>(side)];
      const Value& value = in[order_.at(side)];
      if (order_.quantized[static_cast<int>(side)]) {
        own.prepared = QuantizedValue{value, in[order_.at(side) + 1]};
      } else {
        own.x = TileOperand(*dot_, side, value);
        if (order_.has_scale[static_cast<int>(side)]) own.scale = in[order_.at(side) + 1];
        own.statistics = StatisticsOf(side == Side::kLhs ? "fwd.lhs" : "fwd.rhs", slots, statistics);
        own.mode = dot_->mode(side);
        if (dot_->plan().ForwardNeedsKey()) {
          own.key = KeyFor(*dot_, order_.has_key ? &in.back() : nullptr, Pass::kFwd, side);
        }
      }
    }
    const ProductPlan& product = dot_->engine().forward();
    const ExpandedMeeting meeting{product.geometry, SumTypesOf(product),
                                  GroupEndsOf(*dot_, order_.has_groups ? &in[order_.groups_at()] : nullptr)};
    const ExpandedProduct result =
        ExpandProduct(dot_->config.fwd, sides[0], sides[1], meeting, dot_->plan().out_aval().dtype, dot_->semantics());
    std::vector<Value> out = {UntileProduct(*dot_, result.out)};
    for (const Side side : kSides) {
      const std::vector<Value>& next = (side == Side::kLhs ? result.lhs : result.rhs).statistics;
      size_t i = 0;
      for (const size_t position : updated_) {
        if (slots[position].side == side) out.push_back(next[i++]);
      }
    }
    if (!with_residuals_) return out;
    for (const ResidualSlot& slot : dot_->plan().residuals()) {
      const QuantizedValue& quantized = slot.side == Side::kLhs ? result.lhs : result.rhs;
      const Value& x = in[order_.at(slot.side)];
      switch (slot.kind) {
        case ResidualKind::kValue: out.push_back(x); break;
        case ResidualKind::kQvalue: out.push_back(quantized.qvalue); break;
        case ResidualKind::kScale: out.push_back(*quantized.scale); break;
        case ResidualKind::kClipMask:
          out.push_back(ops::Cast(ClipMask(slot.side, x, *quantized.scale), DType::kS8));
          break;
      }
    }
    return out;
  }

  // A contraction that quantizes nothing has second derivatives: those of the expansions.
  bool has_gradient() const override { return !(with_residuals_ && dot_->is_float()); }
  Forward GradForward(absl::Span<const Value> in) const override;
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override;

 private:
  Value ClipMask(Side side, const Value& x, const Value& scale) const {
    const Quantizer& quantizer = dot_->forward(side).quantizer;
    return NotClipped(quantizer.numerics,
                      ScaleValue(quantizer, RotatedOperand(*dot_, side, x), scale, dot_->semantics()));
  }

  const std::shared_ptr<const Impl> dot_;
  const OperandOrder order_;
  const bool with_residuals_;
  const std::vector<Slot> backward_slots_;
  const std::optional<std::string> name_;
  std::vector<size_t> updated_;  // positions in the plan's forward_state()
};

Composite::Forward ForwardOp::GradForward(absl::Span<const Value> in) const {
  const SourceLine here = std::source_location::current();
  if (with_residuals_) {
    const absl::Status status = absl::UnimplementedError(
        "is part of a gradient, and a quantized contraction has no second derivative; differentiate once, or leave the "
        "contraction in float");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  if (order_.has_scale[0] || order_.has_scale[1] || is_packed()) {
    const absl::Status status = absl::FailedPreconditionError(
        "an operand is already quantized (mode CONVERT or SERVE) and has no gradient; train with float operands");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  if (dot_->plan().BackwardNeedsKey() && !order_.has_key) {
    const absl::Status status = absl::FailedPreconditionError(
        "the gradient rounds stochastically and draws random numbers, but the operation has no key; give it one");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  if (order_.backward_state != dot_->plan().backward_state().size()) {
    const absl::Status status = absl::FailedPreconditionError(
        "the gradient has calibrations with state, but the operation has no statistics for it; both sides must be in "
        "mode TRAIN");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  const auto op = std::make_shared<ForwardOp>(dot_, order_, /*with_residuals=*/true, backward_slots_, name_);
  std::vector<Value> out = Bind(CompositeOp{op}, in, here);
  const auto residuals = out.begin() + num_outputs();
  Forward forward{.outputs = {out.begin(), residuals}, .residuals = {residuals, out.end()}};
  if (order_.has_groups) forward.residuals.push_back(in[order_.groups_at()]);
  forward.residuals.insert(forward.residuals.end(), in.begin() + order_.backward_at(), in.end());
  return forward;
}

std::vector<std::optional<Value>> ForwardOp::GradBackward(absl::Span<const Value> residuals,
                                                          absl::Span<const Value> cotangents) const {
  std::vector<std::optional<Value>> out(order_.size());
  std::vector<Value> operands = {cotangents[0]};
  operands.insert(operands.end(), residuals.begin(), residuals.end());
  const std::vector<Value> results =
      Bind(CompositeOp{MakeBackwardOp(dot_, order_.has_key)}, operands, std::source_location::current());
  out[0] = results[0];
  out[1] = results[1];
  size_t next = 2;
  for (const size_t position : dot_->UpdatedPositions(dot_->plan().backward_state())) {
    WriteSlot(backward_slots_[position], results[next++]);
  }
  return out;
}

}  // namespace

std::shared_ptr<const Composite> MakeForwardOp(std::shared_ptr<const AqtDot::Impl> dot, OperandOrder order,
                                               bool with_residuals, std::vector<Slot> backward_slots,
                                               std::optional<std::string> name) {
  return std::make_shared<ForwardOp>(std::move(dot), std::move(order), with_residuals, std::move(backward_slots),
                                     std::move(name));
}

}  // namespace aqt::internal

namespace aqt {

namespace {

const internal::ForwardOp* ForwardOpOf(const Op& op) {
  const CompositeOp* composite = std::get_if<CompositeOp>(&op);
  return composite != nullptr ? dynamic_cast<const internal::ForwardOp*>(composite->impl.get()) : nullptr;
}

}  // namespace

std::shared_ptr<const AqtDot::Impl> internal::DotOfFloatLhs(const Op& op) {
  const internal::ForwardOp* forward = ForwardOpOf(op);
  return forward != nullptr ? forward->dot_of_float_lhs() : nullptr;
}

std::vector<Value> internal::BindWithLhs(const Op& op, absl::Span<const Value> lhs, absl::Span<const Value> others,
                                         const SourceLine& where) {
  return ForwardOpOf(op)->BindWithLhs(lhs, others, where);
}

std::optional<PlannedDims> FloatDimsOf(const Op& op) {
  const internal::ForwardOp* forward = ForwardOpOf(op);
  return forward != nullptr ? forward->float_dims() : std::nullopt;
}

std::optional<std::vector<Value>> BindPacked(const Op& op, absl::Span<const Value> operands,
                                             absl::Span<const bool> is_fixed, const SourceLine& where) {
  const internal::ForwardOp* forward = ForwardOpOf(op);
  return forward != nullptr ? forward->BindPacked(operands, is_fixed, where) : std::nullopt;
}

}  // namespace aqt
