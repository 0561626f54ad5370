#include "aqt/ops/aqt_dot_general.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/aqt_expand.h"
#include "aqt/ops/describe.h"
#include "aqt/ops/opaque_ops.h"
#include "aqt/ops/quant_math.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_tiling.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {

using internal::KeyRole;
using internal::QuantizedValue;
using internal::RawSide;

struct AqtDot::Impl {
  DotGeneralPlan plan;
  AqtDot::Modes modes;
  std::string attributes;
  std::optional<internal::TiledDot> tiled;

  const Semantics& semantics() const { return plan.options().semantics; }
  QuantMode mode(Side side) const { return side == Side::kLhs ? modes.lhs : modes.rhs; }
  bool Updates(const StateSlot& slot) const { return slot.UpdatedIn(mode(slot.side)); }

  const Aval& aval(Side side) const { return side == Side::kLhs ? plan.lhs_aval() : plan.rhs_aval(); }
  const Tensor& forward(Side side) const { return side == Side::kLhs ? plan.config().fwd.lhs : plan.config().fwd.rhs; }
  // The dims of the contraction of the tiled operands.
  const DotDims& inner_dims() const { return tiled.has_value() ? tiled->dims : plan.dims(); }
  int64_t inner_rank(Side side) const {
    return tiled.has_value() ? tiled->operand(side).shape.rank() : aval(side).shape.rank();
  }
  Aval inner_aval(Side side) const {
    return {aval(side).dtype, tiled.has_value() ? tiled->operand(side).shape : aval(side).shape};
  }
  // The axes of one side, in its tiled shape, that share a scale.
  Axes shared_axes(Side side) const {
    const DotDims own = side == Side::kLhs ? inner_dims() : inner_dims().Swapped();
    const int64_t rank = inner_rank(side);
    return internal::SharedAxesOf(forward(side).quantizer, internal::CalibrationAxes(forward(side), own, rank), rank);
  }
};

namespace {

// In basic operations: an operand tiled, its gradient untiled, the product untiled, and its gradient tiled.
Value TileOperand(const AqtDot::Impl& dot, Side side, const Value& x) {
  if (!dot.tiled.has_value()) return x;
  const internal::TiledOperand& operand = dot.tiled->operand(side);
  const Value tiled = ops::Reshape(x, operand.tiling.tiled_shape);
  Axes axes;
  for (int64_t axis = operand.num_other; axis < operand.shape.rank(); ++axis) axes.push_back(axis);
  return operand.num_other == 0 ? tiled : ops::BroadcastInDim(tiled, operand.shape, axes);
}

Value UntileOperandGradient(const AqtDot::Impl& dot, Side side, const Value& gradient) {
  if (!dot.tiled.has_value()) return gradient;
  const int64_t num_other = dot.tiled->operand(side).num_other;
  return ops::Reshape(num_other == 0 ? gradient : internal::SumLeading(gradient, num_other), dot.aval(side).shape);
}

Value UntileProduct(const AqtDot::Impl& dot, const Value& product) {
  if (!dot.tiled.has_value()) return product;
  const internal::TiledDot& tiled = *dot.tiled;
  const Value sum = tiled.num_sums == 0 ? product : internal::SumLeading(product, tiled.num_sums);
  Axes permutation(tiled.out_axes.size());
  for (size_t i = 0; i < permutation.size(); ++i) permutation[tiled.out_axes[i]] = static_cast<int64_t>(i);
  return ops::Reshape(ops::Transpose(sum, permutation), dot.plan.out_aval().shape);
}

Value TileProductGradient(const AqtDot::Impl& dot, const Value& g) {
  if (!dot.tiled.has_value()) return g;
  const internal::TiledDot& tiled = *dot.tiled;
  const Value parts = ops::Transpose(ops::Reshape(g, tiled.out.tiled_shape), tiled.out_axes);
  if (tiled.num_sums == 0) return parts;
  Shape shape;
  for (int64_t i = 0; i < tiled.num_sums; ++i) shape.push_back(tiled.lhs.shape[tiled.dims.lhs_batch[i]]);
  Axes axes;
  for (const int64_t extent : parts.shape()) {
    axes.push_back(shape.rank());
    shape.push_back(extent);
  }
  return ops::BroadcastInDim(parts, shape, axes);
}

// Mid scales have no expansion in basic operations.
bool HasMidAlphas(const DotGeneralRaw& raw) { return raw.lhs_mid_alpha.has_value() || raw.rhs_mid_alpha.has_value(); }

using Impl = AqtDot::Impl;
constexpr Side kSides[] = {Side::kLhs, Side::kRhs};

absl::Status ExpectAval(const char* name, const Aval& got, const Aval& want) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", got.ToString(), ", expected ", want.ToString()));
}

Context ContextOf(const Impl& dot, const Array* key) {
  Context context{.quant_mode = dot.modes.lhs, .rhs_quant_mode = dot.modes.rhs};
  if (key != nullptr) context.key = Key{key->View<uint32_t>()[0], key->View<uint32_t>()[1]};
  return context;
}

Runtime CurrentRuntime() { return {.executor = CurrentExecutor()}; }

std::optional<Value> KeyFor(const Impl& dot, const Value* key, KeyRole role) {
  if (key == nullptr) return std::nullopt;
  return internal::OperandKey(*key, role, dot.semantics().prng_layout);
}

// ---- aqt_dot_general and aqt_dot_general_fwd

// Which operands an equation has: for each side one or two; the statistics of sides without a scale; optionally those
// of the gradient; optionally a key.
struct OperandOrder {
  bool has_scale[2] = {false, false};
  bool quantized[2] = {false, false};  // has a scale, and the operand is a qvalue
  std::vector<size_t> forward_state;   // positions in the plan's forward_state()
  size_t backward_state = 0;           // number of statistics
  bool has_key = false;

  size_t at(Side side) const { return side == Side::kLhs ? 0 : has_scale[0] ? 2 : 1; }
  size_t forward_at() const { return at(Side::kRhs) + (has_scale[1] ? 2 : 1); }
  size_t backward_at() const { return forward_at() + forward_state.size(); }
  size_t key_at() const { return backward_at() + backward_state; }
  size_t size() const { return key_at() + (has_key ? 1 : 0); }
};

// The statistics of one operand ("fwd.lhs"), picked from the values for `slots`.
std::vector<Value> StatisticsOf(absl::string_view operand, absl::Span<const StateSlot> slots,
                                absl::Span<const Value> values) {
  std::vector<Value> statistics;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].operand == operand) statistics.push_back(values[i]);
  }
  return statistics;
}

// Arrays for the statistics of a call that updates some of them.
struct UpdatedState {
  explicit UpdatedState(absl::Span<const StateSlot> slots) : refs(slots.size()) { builders.reserve(slots.size()); }
  void Add(const StateSlot& slot, size_t position) {
    builders.emplace_back(slot.initial.aval());
    refs[position] = builders.back().ref();
  }
  std::vector<ArrayBuilder> builders;
  std::vector<MutableArrayRef> refs;  // by slot
};

class ForwardOp : public CompositeBase {
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
      if (dot_->Updates(dot_->plan.forward_state()[position])) updated_.push_back(position);
    }
  }

  std::string Name() const override { return with_residuals_ ? "aqt_dot_general_fwd" : "aqt_dot_general"; }
  std::string Attributes() const override {
    std::string text = dot_->attributes;
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      if (!order_.has_scale[i] || order_.quantized[i]) continue;
      absl::StrAppend(&text, ", ", side == Side::kLhs ? "lhs" : "rhs", " by a given scale");
    }
    return text;
  }
  std::optional<std::string> instance_name() const override { return name_; }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial(order_.size());
    for (size_t i = 0; i < order_.forward_state.size(); ++i) {
      initial[order_.forward_at() + i] = dot_->plan.forward_state()[order_.forward_state[i]].initial;
    }
    for (size_t i = 0; i < order_.backward_state; ++i) {
      initial[order_.backward_at() + i] = dot_->plan.backward_state()[i].initial;
    }
    return initial;
  }
  // out, updated statistics, residuals.
  int num_outputs() const override {
    return static_cast<int>(1 + updated_.size() + (with_residuals_ ? dot_->plan.residuals().size() : 0));
  }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != order_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", order_.size(), " operands, got ", in.size()));
    }
    for (const Side side : kSides) {
      if (!order_.quantized[static_cast<int>(side)]) {
        AQT_RETURN_IF_ERROR(ExpectAval(side == Side::kLhs ? "lhs" : "rhs", in[order_.at(side)], dot_->aval(side)));
      }
    }
    const std::vector<std::optional<Array>> initial = InitialStatistics();
    for (size_t i = order_.forward_at(); i < order_.key_at(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectAval("a statistic", in[i], initial[i]->aval()));
    }
    if (order_.has_key) AQT_RETURN_IF_ERROR(ExpectAval("the key", in.back(), KeyAval()));
    std::vector<Aval> out = {dot_->plan.out_aval()};
    for (const size_t position : updated_) out.push_back(dot_->plan.forward_state()[position].initial.aval());
    if (with_residuals_) {
      for (const ResidualSlot& slot : dot_->plan.residuals()) out.push_back(slot.aval);
    }
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    std::vector<PreparedOperand> prepared;
    prepared.reserve(2);
    std::vector<DotOperand> operands;
    for (const Side side : kSides) {
      const Array& value = in[order_.at(side)];
      if (!order_.has_scale[static_cast<int>(side)]) {
        operands.emplace_back(value);
        continue;
      }
      QTensor qtensor{.scale = {in[order_.at(side) + 1]}, .dequant_dtype = dot_->aval(side).dtype};
      const bool quantized = order_.quantized[static_cast<int>(side)];
      if (quantized) qtensor.qvalue = value;
      AQT_ASSIGN_OR_RETURN(PreparedOperand operand, dot_->plan.Prepare(side, std::move(qtensor)));
      prepared.push_back(std::move(operand));
      operands.push_back(quantized ? DotOperand(prepared.back()) : DotOperand(value, prepared.back()));
    }
    const absl::Span<const StateSlot> slots = dot_->plan.forward_state();
    std::vector<ArrayRef> old(slots.size());
    for (size_t i = 0; i < order_.forward_state.size(); ++i) {
      old[order_.forward_state[i]] = in[order_.forward_at() + i];
    }
    UpdatedState updated(slots);
    for (const size_t position : updated_) updated.Add(slots[position], position);
    ArrayBuilder out(dot_->plan.out_aval());
    Residuals residuals(Residuals::Operands::kBorrow);
    AQT_RETURN_IF_ERROR(
        dot_->plan.Forward(operands[0], operands[1], ContextOf(*dot_, order_.has_key ? &in.back() : nullptr), out.ref(),
                           with_residuals_ ? &residuals : nullptr, CurrentRuntime(), {old, updated.refs}));
    std::vector<Array> results = {std::move(out).Build()};
    for (ArrayBuilder& builder : updated.builders) results.push_back(std::move(builder).Build());
    if (with_residuals_) AppendResiduals(in, std::move(residuals), results);
    return results;
  }

  bool has_expansion() const override { return !HasMidAlphas(dot_->plan.config().fwd); }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const absl::Span<const StateSlot> slots = dot_->plan.forward_state();
    std::vector<Value> statistics(slots.size());
    for (size_t i = 0; i < order_.forward_state.size(); ++i) {
      statistics[order_.forward_state[i]] = in[order_.forward_at() + i];
    }
    RawSide sides[2];
    for (const Side side : kSides) {
      RawSide& raw = sides[static_cast<int>(side)];
      const Value& value = in[order_.at(side)];
      if (order_.quantized[static_cast<int>(side)]) {
        raw.given = QuantizedValue{value, in[order_.at(side) + 1]};
      } else {
        raw.x = TileOperand(*dot_, side, value);
        if (order_.has_scale[static_cast<int>(side)]) raw.scale = in[order_.at(side) + 1];
        raw.statistics = StatisticsOf(side == Side::kLhs ? "fwd.lhs" : "fwd.rhs", slots, statistics);
        raw.mode = dot_->mode(side);
        if (dot_->plan.ForwardNeedsKey()) {
          raw.key = KeyFor(*dot_, order_.has_key ? &in.back() : nullptr,
                           side == Side::kLhs ? KeyRole::kFwdLhs : KeyRole::kFwdRhs);
        }
      }
    }
    const internal::RawResult result = internal::RawDot(dot_->plan.config().fwd, sides[0], sides[1], dot_->inner_dims(),
                                                        dot_->plan.out_aval().dtype, dot_->semantics());
    std::vector<Value> out = {UntileProduct(*dot_, result.out)};
    for (const Side side : kSides) {
      const std::vector<Value>& next = (side == Side::kLhs ? result.lhs : result.rhs).statistics;
      size_t i = 0;
      for (const size_t position : updated_) {
        if (slots[position].side == side) out.push_back(next[i++]);
      }
    }
    if (!with_residuals_) return out;
    for (const ResidualSlot& slot : dot_->plan.residuals()) {
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

  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override;
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override;

 private:
  Value ClipMask(Side side, const Value& x, const Value& scale) const {
    const Quantizer& quantizer = dot_->forward(side).quantizer;
    return internal::NotClipped(quantizer.numerics,
                                internal::ScaleValue(quantizer, TileOperand(*dot_, side, x), scale));
  }

  // Kept float operands are the operands themselves, not copies.
  void AppendResiduals(absl::Span<const Array> in, Residuals residuals, std::vector<Array>& results) const;

  const std::shared_ptr<const Impl> dot_;
  const OperandOrder order_;
  const bool with_residuals_;
  const std::vector<Slot> backward_slots_;
  const std::optional<std::string> name_;
  std::vector<size_t> updated_;  // positions in the plan's forward_state()
};

// ---- aqt_dot_general_bwd

class BackwardOp : public CompositeBase {
 public:
  BackwardOp(std::shared_ptr<const Impl> dot, bool has_key) : dot_(std::move(dot)), has_key_(has_key) {
    const absl::Span<const StateSlot> slots = dot_->plan.backward_state();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (dot_->Updates(slots[i])) updated_.push_back(i);
    }
  }

  // Positions in the plan's backward_state() of the statistics that are outputs after dlhs and drhs.
  const std::vector<size_t>& updated() const { return updated_; }

  std::string Name() const override { return "aqt_dot_general_bwd"; }
  std::string Attributes() const override { return dot_->attributes; }
  int num_outputs() const override { return 2 + static_cast<int>(updated_.size()); }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial(state_at() + dot_->plan.backward_state().size() + (has_key_ ? 1 : 0));
    for (size_t i = 0; i < dot_->plan.backward_state().size(); ++i) {
      initial[state_at() + i] = dot_->plan.backward_state()[i].initial;
    }
    return initial;
  }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const absl::Span<const ResidualSlot> residuals = dot_->plan.residuals();
    const absl::Span<const StateSlot> slots = dot_->plan.backward_state();
    const size_t expected = state_at() + slots.size() + (has_key_ ? 1 : 0);
    if (in.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", in.size()));
    }
    AQT_RETURN_IF_ERROR(ExpectAval("the gradient of the output", in[0], dot_->plan.out_aval()));
    for (size_t i = 0; i < residuals.size(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectAval("a residual", in[1 + i], residuals[i].aval));
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      AQT_RETURN_IF_ERROR(ExpectAval("a statistic", in[state_at() + i], slots[i].initial.aval()));
    }
    if (has_key_) AQT_RETURN_IF_ERROR(ExpectAval("the key", in.back(), KeyAval()));
    std::vector<Aval> out = {dot_->plan.lhs_aval(), dot_->plan.rhs_aval()};
    for (const size_t position : updated_) out.push_back(slots[position].initial.aval());
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    const Residuals residuals = Residuals::FromArrays(in.subspan(1, dot_->plan.residuals().size()));
    std::optional<ArrayBuilder> out[2];
    std::optional<MutableArrayRef> refs[2];
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      if (!needed[i]) continue;
      out[i].emplace(dot_->aval(side));
      refs[i] = out[i]->ref();
    }
    const absl::Span<const StateSlot> slots = dot_->plan.backward_state();
    const std::vector<ArrayRef> old(in.begin() + state_at(), in.begin() + state_at() + slots.size());
    UpdatedState updated(slots);
    for (const size_t position : updated_) updated.Add(slots[position], position);
    AQT_RETURN_IF_ERROR(dot_->plan.Backward(in[0], residuals, ContextOf(*dot_, has_key_ ? &in.back() : nullptr),
                                            refs[0], refs[1], CurrentRuntime(), {old, updated.refs}));
    std::vector<Array> results;
    for (std::optional<ArrayBuilder>& builder : out) {
      results.push_back(builder.has_value() ? std::move(*builder).Build() : Array());
    }
    for (ArrayBuilder& builder : updated.builders) results.push_back(std::move(builder).Build());
    return results;
  }

  bool has_expansion() const override {
    return !HasMidAlphas(dot_->plan.config().dlhs) && !HasMidAlphas(dot_->plan.config().drhs);
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    std::vector<Value> out(2), next;
    for (const Side side : kSides) out[static_cast<int>(side)] = Gradient(side, in, next);
    for (const size_t position : updated_) out.push_back(next[position]);
    return out;
  }

 private:
  size_t state_at() const { return 1 + dot_->plan.residuals().size(); }

  const Value* Residual(Side side, ResidualKind kind, absl::Span<const Value> in) const {
    const absl::Span<const ResidualSlot> slots = dot_->plan.residuals();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].side == side && slots[i].kind == kind) return &in[1 + i];
    }
    return nullptr;
  }

  // The gradient of one side: the product of g with the other side, then through the quantization of this side. Appends
  // the statistics after it to `next`.
  Value Gradient(Side side, absl::Span<const Value> in, std::vector<Value>& next) const {
    const bool lhs = side == Side::kLhs;
    const Side other = Other(side);
    const DotGeneral& config = dot_->plan.config();
    const DotGeneralRaw& raw = lhs ? config.dlhs : config.drhs;
    const DType dtype = dot_->plan.out_aval().dtype;
    const BackwardDotDims backward =
        MakeBackwardDotDims(dot_->inner_dims(), dot_->inner_rank(Side::kLhs), dot_->inner_rank(Side::kRhs), side);
    RawSide g, y;
    g.x = TileProductGradient(*dot_, in[0]);
    if (raw.rhs.use_fwd_quant) {
      const Value scale =
          internal::ScaleToOther(*Residual(other, ResidualKind::kScale, in), Side::kRhs, backward.dims, g.x.rank());
      g.x = internal::FromF32(
          internal::MulIn(dtype, internal::ToF32(g.x), internal::RoundTo(dtype, internal::ToF32(scale))), dtype);
      y.x = ops::Cast(internal::ToF32(*Residual(other, ResidualKind::kQvalue, in)), dtype);
    } else {
      y.x = TileOperand(*dot_, other, *Residual(other, ResidualKind::kValue, in));
    }
    if (dot_->plan.BackwardNeedsKey()) {
      const Value* key = has_key_ ? &in.back() : nullptr;
      g.key = KeyFor(*dot_, key, lhs ? KeyRole::kDlhsLhs : KeyRole::kDrhsLhs);
      y.key = KeyFor(*dot_, key, lhs ? KeyRole::kDlhsRhs : KeyRole::kDrhsRhs);
    }
    const absl::Span<const StateSlot> slots = dot_->plan.backward_state();
    const absl::Span<const Value> statistics = in.subspan(state_at(), slots.size());
    g.statistics = StatisticsOf(lhs ? "dlhs.lhs" : "drhs.lhs", slots, statistics);
    g.mode = dot_->mode(Side::kLhs);
    y.statistics = StatisticsOf(lhs ? "dlhs.rhs" : "drhs.rhs", slots, statistics);
    y.mode = dot_->mode(Side::kRhs);
    const internal::RawResult result = internal::LocalRawDot(raw, g, y, backward.dims, dtype, dot_->semantics());
    for (const QuantizedValue* operand : {&result.lhs, &result.rhs}) {
      next.insert(next.end(), operand->statistics.begin(), operand->statistics.end());
    }
    const Value& product = result.out;
    Axes permutation(backward.to_operand.size());
    for (size_t j = 0; j < permutation.size(); ++j) permutation[backward.to_operand[j]] = static_cast<int64_t>(j);
    const Value gradient = ops::Transpose(product, permutation);

    const Quantizer& quantizer = dot_->forward(side).quantizer;
    if (!internal::GradientBound(quantizer.numerics, DType::kF32).has_value()) {
      return UntileOperandGradient(*dot_, side, gradient);
    }
    const Value* kept = Residual(side, ResidualKind::kClipMask, in);
    const Value mask =
        kept != nullptr
            ? *kept
            : internal::NotClipped(
                  quantizer.numerics,
                  internal::ScaleValue(quantizer, TileOperand(*dot_, side, *Residual(side, ResidualKind::kValue, in)),
                                       *Residual(side, ResidualKind::kScale, in)));
    const Value clipped = internal::ClipMaskChooses(dtype, dot_->semantics().arithmetic)
                              ? ops::Select(ops::Equal(internal::ToF32(mask), 0.0), 0.0, internal::ToF32(gradient))
                              : internal::MulIn(dtype, internal::ToF32(gradient), internal::ToF32(mask));
    return UntileOperandGradient(*dot_, side, internal::FromF32(clipped, dtype));
  }

  const std::shared_ptr<const Impl> dot_;
  const bool has_key_;
  std::vector<size_t> updated_;
};

void ForwardOp::AppendResiduals(absl::Span<const Array> in, Residuals residuals, std::vector<Array>& results) const {
  const absl::Span<const ResidualSlot> slots = dot_->plan.residuals();
  std::vector<Array> arrays = std::move(residuals).Release();
  for (size_t i = 0; i < slots.size(); ++i) {
    results.push_back(slots[i].kind == ResidualKind::kValue ? in[order_.at(slots[i].side)] : std::move(arrays[i]));
  }
}

Composite::Forward ForwardOp::GradForward(absl::Span<const Value> in) const {
  const SourceLine here = std::source_location::current();
  if (with_residuals_) {
    const absl::Status status = absl::UnimplementedError(
        "is part of a gradient, and a quantized contraction has no second derivative; differentiate once, or leave the "
        "contraction in float");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  if (order_.has_scale[0] || order_.has_scale[1]) {
    const absl::Status status = absl::FailedPreconditionError(
        "an operand is already quantized (mode CONVERT or SERVE) and has no gradient; train with float operands");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  if (dot_->plan.BackwardNeedsKey() && !order_.has_key) {
    const absl::Status status = absl::FailedPreconditionError(
        "the gradient rounds stochastically and draws random numbers, but the operation has no key; give it one");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  if (order_.backward_state != dot_->plan.backward_state().size()) {
    const absl::Status status = absl::FailedPreconditionError(
        "the gradient has calibrations with state, but the operation has no statistics for it; both sides must be in "
        "mode TRAIN");
    return {.outputs = {Refuse(status, Name(), in, here)}, .residuals = {}};
  }
  const auto op = std::make_shared<ForwardOp>(dot_, order_, /*with_residuals=*/true, backward_slots_, name_);
  std::vector<Value> out = Bind(CompositeOp{op}, in, here);
  const auto residuals = out.begin() + num_outputs();
  Forward forward{.outputs = {out.begin(), residuals}, .residuals = {residuals, out.end()}};
  forward.residuals.insert(forward.residuals.end(), in.begin() + order_.backward_at(), in.end());
  return forward;
}

std::vector<std::optional<Value>> ForwardOp::GradBackward(absl::Span<const Value> residuals,
                                                          absl::Span<const Value> cotangents) const {
  std::vector<std::optional<Value>> out(order_.size());
  std::vector<Value> operands = {cotangents[0]};
  operands.insert(operands.end(), residuals.begin(), residuals.end());
  const auto op = std::make_shared<BackwardOp>(dot_, order_.has_key);
  const std::vector<Value> results = Bind(CompositeOp{op}, operands, std::source_location::current());
  out[0] = results[0];
  out[1] = results[1];
  for (size_t i = 0; i < op->updated().size(); ++i) WriteSlot(backward_slots_[op->updated()[i]], results[2 + i]);
  return out;
}

// ---- aqt_quantize

class QuantizeOp : public CompositeBase {
 public:
  // (x[, scale][, key])
  QuantizeOp(std::shared_ptr<const Impl> dot, Side side, bool has_scale, bool has_key)
      : dot_(std::move(dot)), side_(side), has_scale_(has_scale), has_key_(has_key) {}

  std::string Name() const override { return "aqt_quantize"; }
  std::string Attributes() const override {
    return absl::StrCat(DescribeQuantizer(quantizer()), " axes=[", absl::StrJoin(dot_->shared_axes(side_), ","), "]",
                        internal::ArithmeticText(dot_->semantics()));
  }
  int num_outputs() const override { return 2; }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const size_t expected = 1 + (has_scale_ ? 1 : 0) + (has_key_ ? 1 : 0);
    if (in.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", in.size()));
    }
    AQT_ASSIGN_OR_RETURN(const AqtDot::QuantizedAvals out, dot_->plan.quantized_avals(side_));
    AQT_RETURN_IF_ERROR(ExpectAval("the operand", in[0], dot_->aval(side_)));
    if (has_scale_) AQT_RETURN_IF_ERROR(ExpectAval("the scale", in[1], out.scale));
    if (has_key_) AQT_RETURN_IF_ERROR(ExpectAval("the key", in.back(), KeyAval()));
    return std::vector<Aval>{out.qvalue, out.scale};
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    Context context = ContextOf(*dot_, has_key_ ? &in.back() : nullptr);
    if (has_scale_) {
      if (context.key.has_value()) {
        const OperandKeys keys = SplitContextKey(*context.key, dot_->semantics().prng_layout);
        context.key = side_ == Side::kLhs ? keys.fwd_lhs : keys.fwd_rhs;
      }
      const ArrayRef x = dot_->tiled.has_value() ? dot_->tiled->operand(side_).View(in[0]) : in[0].ref();
      QTensor scaled{.scale = {in[1]}, .dequant_dtype = x.dtype};
      AQT_ASSIGN_OR_RETURN(const QTensor qtensor,
                           CalculateQvalue(quantizer(), x, std::move(scaled), context, dot_->semantics()));
      return std::vector<Array>{*qtensor.qvalue, in[1]};
    }
    AQT_ASSIGN_OR_RETURN(const PreparedOperand prepared, dot_->plan.Prepare(side_, in[0], context, CurrentRuntime()));
    return std::vector<Array>{*prepared.qtensor().qvalue, prepared.qtensor().scale[0]};
  }

  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const KeyRole role = side_ == Side::kLhs ? KeyRole::kFwdLhs : KeyRole::kFwdRhs;
    RawSide raw{.x = TileOperand(*dot_, side_, in[0]), .key = KeyFor(*dot_, has_key_ ? &in.back() : nullptr, role)};
    if (has_scale_) raw.scale = in[1];
    const QuantizedValue out = internal::QuantizeValue(quantizer(), raw, dot_->shared_axes(side_), dot_->semantics());
    return {out.qvalue, *out.scale};
  }

 private:
  const Quantizer& quantizer() const { return dot_->forward(side_).quantizer; }

  const std::shared_ptr<const Impl> dot_;
  const Side side_;
  const bool has_scale_, has_key_;
};

bool HasBias(const Quantizer& quantizer) {
  const Constant* constant =
      quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
  return constant != nullptr && constant->bias.has_value();
}

}  // namespace

absl::StatusOr<AqtDot> AqtDot::Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs, const DotDims& dims,
                                    const Semantics& semantics, const Modes& modes) {
  AQT_ASSIGN_OR_RETURN(DotGeneralPlan plan, DotGeneralPlan::Make(config, lhs, rhs, dims, {.semantics = semantics}));
  std::string attributes = absl::StrCat("dims=", dims.ToString(), ", ", DescribeConfig(config));
  if (semantics.prng_layout == PrngLayout::kOriginal) attributes += ", original_layout";
  attributes += internal::ArithmeticText(semantics);
  std::optional<internal::TiledDot> tiled;
  if (config.tiling.has_value()) {
    AQT_ASSIGN_OR_RETURN(tiled, internal::MakeTiledDot(*config.tiling, dims, lhs.shape, rhs.shape));
  }
  const bool has_state = !plan.forward_state().empty() || !plan.backward_state().empty();
  for (const Side side : kSides) {
    const QuantMode mode = side == Side::kLhs ? modes.lhs : modes.rhs;
    if (!has_state || mode == QuantMode::kTrain) continue;
    absl::StrAppend(&attributes, ", ", side == Side::kLhs ? "lhs" : "rhs", " in ", ToString(mode));
  }
  return AqtDot(std::make_shared<const Impl>(Impl{std::move(plan), modes, std::move(attributes), std::move(tiled)}));
}

const DotGeneralPlan& AqtDot::plan() const { return impl_->plan; }

AqtDot::Result AqtDot::ApplyWithState(const Operand& lhs, const Operand& rhs, const std::optional<Value>& key,
                                      const State& state, const SourceLine& where) const {
  OperandOrder order;
  std::vector<Value> operands;
  for (const Side side : kSides) {
    const Operand& operand = side == Side::kLhs ? lhs : rhs;
    order.has_scale[static_cast<int>(side)] = operand.scale.has_value();
    order.quantized[static_cast<int>(side)] = operand.scale.has_value() && operand.is_quantized;
    operands.push_back(operand.value);
    if (operand.scale.has_value()) operands.push_back(*operand.scale);
  }
  const absl::Span<const StateSlot> slots = plan().forward_state();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (order.has_scale[static_cast<int>(slots[i].side)]) continue;
    order.forward_state.push_back(i);
    if (i < state.forward.size()) operands.push_back(state.forward[i]);
  }
  order.backward_state = state.backward.size();
  operands.insert(operands.end(), state.backward.begin(), state.backward.end());
  order.has_key = key.has_value();
  if (key.has_value()) operands.push_back(*key);
  Result result{Value(), std::vector<std::optional<Value>>(slots.size())};
  const auto refuse = [&](absl::string_view message) {
    result.out = Refuse(absl::FailedPreconditionError(message), "aqt_dot_general", operands, where);
    return result;
  };
  if (ForwardNeedsKey() && !order.has_key) {
    return refuse("rounds stochastically and draws random numbers; give it a key");
  }
  if (!order.forward_state.empty() && state.forward.size() != slots.size()) {
    return refuse("has a calibration with state; QuantizedDot gives it its statistics");
  }
  const auto op = std::make_shared<ForwardOp>(impl_, order, /*with_residuals=*/false, state.backward_slots, state.name);
  const std::vector<Value> out = Bind(CompositeOp{op}, operands, where);
  result.out = out[0];
  size_t next = 1;
  for (const size_t position : order.forward_state) {
    if (impl_->Updates(slots[position])) result.forward_state[position] = out[next++];
  }
  return result;
}

absl::StatusOr<AqtDot::QuantizedAvals> AqtDot::QuantizedAvalsOf(Side side) const {
  const Quantizer& quantizer = impl_->forward(side).quantizer;
  if (!IsQuantized(quantizer.numerics)) {
    return absl::InvalidArgumentError(absl::StrCat(side == Side::kLhs ? "fwd.lhs" : "fwd.rhs",
                                                   " is not quantized by the configuration; leave it in mode TRAIN"));
  }
  if (HasBias(quantizer)) {
    return absl::UnimplementedError("an operand with a calibration bias cannot be quantized ahead of time");
  }
  return plan().quantized_avals(side);
}

AqtDot::Operand AqtDot::Quantize(Side side, const Value& x, const std::optional<Value>& key, const SourceLine& where,
                                 const std::optional<Value>& scale) const {
  // A side that draws nothing does not depend on the key of the other one, so that Fold can compute it.
  const bool draws = aqt::NeedsKey(impl_->forward(side).quantizer.numerics);
  std::vector<Value> operands = {x};
  if (scale.has_value()) operands.push_back(*scale);
  if (draws && key.has_value()) operands.push_back(*key);
  const auto op = std::make_shared<QuantizeOp>(impl_, side, scale.has_value(), draws && key.has_value());
  absl::Status status = QuantizedAvalsOf(side).status();
  if (status.ok() && HasState(impl_->forward(side).quantizer) && !scale.has_value()) {
    status = absl::FailedPreconditionError("has a calibration with state; give it the scale that its statistics hold");
  }
  if (status.ok() && draws && !key.has_value()) {
    status = absl::FailedPreconditionError("rounds stochastically and draws random numbers; give it a key");
  }
  if (!status.ok()) {
    const Value refused = Refuse(status, op->Name(), operands, where);
    return {refused, refused};
  }
  std::vector<Value> out = Bind(CompositeOp{op}, operands, where);
  return {out[0], out[1]};
}

Value AqtDot::StaticScale(Side side, absl::Span<const Value> statistics) const {
  return internal::StaticScaleOf(impl_->forward(side).quantizer, impl_->inner_aval(side), impl_->shared_axes(side),
                                 statistics, impl_->semantics());
}

namespace ops {

Value AqtDotGeneral(const Operand& lhs, const Operand& rhs, const DotDims& dims, const aqt::DotGeneral& config,
                    const std::optional<Value>& key, const Semantics& semantics) {
  const std::vector<Value> operands = {lhs.As(DType::kF32), rhs.As(DType::kF32)};
  for (const Value& operand : operands) {
    if (!operand.status().ok()) return operand;
  }
  absl::StatusOr<AqtDot> dot = AqtDot::Make(config, operands[0].aval(), operands[1].aval(), dims, semantics);
  if (!dot.ok()) return Refuse(dot.status(), "aqt_dot_general", operands, lhs.where());
  return dot->Apply({operands[0]}, {operands[1]}, key, lhs.where());
}

}  // namespace ops
}  // namespace aqt
