// Runs a ContractionPlan: checks the call, keeps residuals, and runs the products.

#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/engine/operand_keys.h"
#include "aqt/quant/contraction/engine/prepared_operand_impl.h"
#include "aqt/quant/contraction/engine/residuals_impl.h"
#include "aqt/quant/contraction/engine/rotate.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt::internal {
// ---- checks

absl::Status ContractionPlan::CheckArray(absl::string_view name, const Aval& got, const Aval& want) const {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(shape_.name, ": ", name, " is ", got.ToString(), ", but the plan is for ", want.ToString()));
}

absl::Status ContractionPlan::CheckHasGradients(absl::string_view what) const {
  if (options_.passes == PlanPasses::kForwardAndBackward) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(shape_.name, ": ", what,
                   ", but the plan is made with PlanPasses::kForwardOnly; make it with kForwardAndBackward"));
}

absl::Status ContractionPlan::CheckKey(const char* call, bool needed, const CallKeys& context) const {
  if (!needed || context.key.has_value() || context.operand_keys != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(shape_.name, ": ", call, " rounds stochastically and draws random numbers: set Context::key"));
}

// Does not allocate when the tensor fits.
absl::Status ContractionPlan::CheckPrepared(Side side, const QTensor& qtensor, const Panels* packed) const {
  const absl::string_view where = tensor_name_[static_cast<int>(side)];
  AQT_RETURN_IF_ERROR(internal::CheckPrepared(where, fwd_.side(side), qtensor, packed));
  if (fwd_.HasMidScales()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": with mid alphas a quantized operand depends on the other one"));
  }
  const SidePlan& own = fwd_.side(side);
  for (const Array& scale : qtensor.scale) {
    if (own.is_quantized() && scale.shape() == own.spec->scale_shape) continue;  // checked when planned
    const absl::Status fits = fwd_.CheckScale(side, scale);
    if (!fits.ok()) return Annotate(fits, where);
  }
  return absl::OkStatus();
}

absl::Status ContractionPlan::CheckRotation(Side side, int64_t hadamard_block) const {
  const int64_t own = fwd_.side(side).hadamard_block;
  if (hadamard_block == own) return absl::OkStatus();
  const auto text = [](int64_t block) {
    return block == 0 ? std::string("not rotated") : absl::StrCat("rotated by hadamard { block: ", block, " }");
  };
  return absl::InvalidArgumentError(absl::StrCat(tensor_name_[static_cast<int>(side)], " is ", text(hadamard_block),
                                                 ", but the plan is for one ", text(own),
                                                 "; prepare it with this plan"));
}

bool ContractionPlan::HasPrepared(Side side, const PreparedOperand& prepared) const {
  return prepared.impl().checked_by == identity_ && prepared.impl().checked_side == side;
}

absl::StatusOr<const Panels*> ContractionPlan::UsablePanels(Side side, const PreparedOperand& prepared,
                                                            const Runtime& runtime) const {
  const Panels* panels = prepared.impl().panels.get();
  if (panels == nullptr) return nullptr;
  const bool plain_call = runtime.observer == nullptr && runtime.product == nullptr;
  const bool fits = HasPrepared(side, prepared) || fwd_.panels(side) == panels->key;
  if (plain_call && fits) return panels;
  if (prepared.qtensor().IsFull()) return nullptr;
  return absl::FailedPreconditionError(absl::StrCat(
      tensor_name_[static_cast<int>(side)], " has no values (PreparedOperand::WithoutValues), but they are needed: ",
      fits ? "an Observer or a user's product is set"
           : "it is packed for a contraction along other axes, in other dtypes or for another instruction set"));
}

absl::Status ContractionPlan::CheckResiduals(const Residuals& residuals) const {
  const size_t count = residuals.impl() != nullptr ? residuals.impl()->slots.size() : 0;
  if (count != residuals_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(shape_.name, ": Backward needs the ", residuals_.size(),
                                                      " residuals of a Forward, but got ", count));
  }
  for (size_t i = 0; i < count; ++i) {
    const Aval& got = residuals.impl()->slots[i].aval;
    if (got == residuals_[i].aval) continue;
    return absl::InvalidArgumentError(absl::StrCat(shape_.name, ": residual ", i, " is ", got.ToString(),
                                                   ", but this plan keeps ", residuals_[i].aval.ToString(),
                                                   ": it belongs to another plan"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Array>> ContractionPlan::CheckPreparedGradient(Side side, const CallOperand& operand,
                                                                            const ArrayRef& value,
                                                                            const CallKeys& context) const {
  const QTensor& prepared = *operand.prepared;
  if (operand.has_qvalue() && !prepared.IsFull()) {
    return absl::FailedPreconditionError(absl::StrCat(
        tensor_name_[static_cast<int>(side)], " has no values (PreparedOperand::WithoutValues), which gradients need"));
  }
  if (!fwd_.side(side).is_quantized()) {
    if (fwd_.side(side).hadamard_block == 0) return std::optional<Array>();  // it is the float operand
    return absl::InvalidArgumentError(
        absl::StrCat(tensor_name_[static_cast<int>(side)],
                     " is rotated ahead of time (hadamard), but gradients need the float operand; pass that"));
  }
  if (shape_.conv.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        shape_.name, ": the gradient of a prepared operand is not defined; pass the float operand, or no Residuals"));
  }
  const SidePlan& own = fwd_.side(side);
  const auto where = [&] { return absl::StrCat(shape_.name, ": fwd.", Name(side), " is given as a tensor"); };
  if (ResidualIndex(side, ResidualKind::kScale) >= 0) {
    const Aval want{own.spec->scale_dtype, own.spec->scale_shape};
    if (prepared.scale.size() != 1 || prepared.scale[0].aval() != want || !prepared.bias.empty()) {
      const auto aval = [](std::string* out, const Array& array) { *out += array.aval().ToString(); };
      return absl::InvalidArgumentError(absl::StrCat(
          where(), ", but its gradient needs one scale ", want.ToString(), " and no bias; it has the scales ",
          absl::StrJoin(prepared.scale, ", ", aval), " and ", prepared.bias.size(), " biases"));
    }
  }
  std::optional<Array> scale;
  if (!prepared.IsFull()) return scale;
  if (!config_.fwd.allow_dummy_gradient_into_qtensor) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(),
                     " with a qvalue, into which no gradient flows; pass the float operand, or no Residuals, or set "
                     "fwd.allow_dummy_gradient_into_qtensor to pass its gradient on as if it had been quantized here"));
  }
  if (ResidualIndex(side, ResidualKind::kValue) < 0 && !ClipsGradient(side)) return scale;
  if (value.data == nullptr && this->operand(side).shape.num_elements() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(),
                     " with a qvalue, but the gradients need its float operand, too: pass both, or set "
                     "use_fwd_quant in ",
                     side == Side::kLhs ? "drhs.rhs" : "dlhs.rhs"));
  }
  AQT_RETURN_IF_ERROR(CheckArray(Name(side), value.aval(), this->operand(side)));
  if (!ClipsGradient(side)) return scale;
  Context operand_context = context;
  operand_context.key = KeyOf(context, Pass::kFwd, side);
  Array rotated;
  AQT_ASSIGN_OR_RETURN(const QTensor calibrated,
                       Calibrate(own.config.quantizer, RotatedView(side, value, rotated), own.spec->shared_axes,
                                 options_.semantics, nullptr, operand_context));
  scale = calibrated.scale[0];
  return scale;
}

// ---- forward

std::optional<Key> ContractionPlan::KeyOf(const CallKeys& context, Pass pass, Side side) const {
  if (context.operand_keys != nullptr) return context.operand_keys->Of(static_cast<int>(pass), side);
  if (!context.key.has_value()) return std::nullopt;
  const PrngLayout layout = options_.semantics.prng_layout;
  // Only one pass of a convolution draws random numbers.
  if (shape_.conv.has_value()) return SplitKey(*context.key, 2, static_cast<int64_t>(side), layout);
  return SplitOperandKey(*context.key, static_cast<int>(pass), side, layout);
}

ArrayRef ContractionPlan::View(Side side, const ArrayRef& x) const {
  return fwd_.tiled.has_value() ? fwd_.tiled->operand(side).View(x) : x;
}

ArrayRef ContractionPlan::RotatedView(Side side, const ArrayRef& x, Array& memory) const {
  const SidePlan& own = fwd_.side(side);
  const ArrayRef view = View(side, x);
  if (own.hadamard_block == 0) return view;
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(view.aval());
  ArrayRef rotated = RotateInto(view, own.axes, own.hadamard_block, fwd_.target, /*executor=*/nullptr, builder.data());
  memory = std::move(builder).Build();
  rotated.data = memory.data();
  return rotated;
}

void ContractionPlan::RotateGradient(Side side, const MutableArrayRef& gradient, const CallContext& context) const {
  const SidePlan& own = fwd_.side(side);
  const ArrayRef rotated = RotateInto(gradient, own.axes, own.hadamard_block, context.target, context.runtime.executor,
                                      context.workspace.Get(ScratchSlot::kRotatedGradient, own.x.num_bytes()));
  AQT_CHECK(CopyArray(rotated, gradient).ok());
}

void ContractionPlan::ComputeClipMask(Side side, const ArrayRef& operand, const ArrayRef& scale, double* work,
                                      int8_t* mask) const {
  Array rotated;
  const ArrayRef value = RotatedView(side, operand, rotated);
  const QuantizeSpec& spec = *fwd_.side(side).spec;
  if (options_.semantics.compat.clip_gradient_at_bound) {
    return BoundMaskInto(spec, value, value, options_.semantics, work, mask);
  }
  absl::InlinedVector<ArrayRef, 1> bias;
  if (spec.bias.has_value()) bias.push_back(*spec.bias);
  const Affine affine{.bias = bias, .scale = absl::MakeConstSpan(&scale, 1), .rule = ScaleRuleOf(options_.semantics)};
  const float bound = *GradientBound(spec.numerics, spec.scaled_dtype);
  ForEachScaledPiece(value, affine, value.strides, [&](float* y, int64_t n, int64_t linear, int64_t) {
    ClipMaskRow(bound, spec.scaled_dtype, y, n, mask + linear);
  });
}

// A prepared operand may come from another plan.
absl::Status ContractionPlan::FillOperand(Side side, const DotOperand& operand, const CallKeys& context,
                                          const Runtime& runtime, const StateArrays& state, CallOperand& result) const {
  const SidePlan& plan = fwd_.side(side);
  const Aval& want = this->operand(side);
  if (operand.prepared != nullptr) {
    result.prepared = &operand.prepared->qtensor();
    if (!HasPrepared(side, *operand.prepared)) {
      AQT_RETURN_IF_ERROR(CheckRotation(side, operand.prepared->impl().hadamard_block));
      AQT_RETURN_IF_ERROR(CheckPrepared(side, *result.prepared, operand.prepared->impl().panels.get()));
    }
    AQT_ASSIGN_OR_RETURN(const Panels* panels, UsablePanels(side, *operand.prepared, runtime));
    if (panels != nullptr) {
      result.panels = panels->data.get();
      result.smallest_scale = panels->smallest_scale;
    }
  }
  if (result.has_qvalue()) {
    const bool is_value = !plan.is_quantized() && result.prepared->IsFull();
    result.x = is_value ? result.prepared->qvalue->ref() : ArrayRef(want.dtype, plan.x.shape, nullptr);
  } else {
    result.x = operand.value;
    AQT_RETURN_IF_ERROR(CheckArray(Name(side), operand.value.aval(), want));
  }
  if (plan.draws()) result.key = KeyOf(context, Pass::kFwd, side);
  if (result.prepared != nullptr || !plan.has_state()) return absl::OkStatus();
  return FillStatistics(shape_.name, state_[0], state_begin_[0][static_cast<int>(side)], *plan.spec, side, context,
                        options_.semantics.compat, state, &result);
}

// Sets where the products store the arrays that the gradients need, and keeps those that are already known.
absl::Status ContractionPlan::KeepResiduals(const DotOperand& lhs, const DotOperand& rhs, const CallKeys& context,
                                            Residuals::Impl& kept, ProductCall& call) const {
  std::optional<Array> own_scale[2];
  for (const Side side : kSides) {
    if (call.side(side).prepared == nullptr) continue;
    const ArrayRef& value = side == Side::kLhs ? lhs.value : rhs.value;
    AQT_ASSIGN_OR_RETURN(own_scale[static_cast<int>(side)],
                         CheckPreparedGradient(side, call.side(side), value, context));
  }
  kept.slots.resize(residuals_.size());
  for (size_t i = 0; i < residuals_.size(); ++i) {
    const ResidualSlot& slot = residuals_[i];
    const DotOperand& operand = slot.side == Side::kLhs ? lhs : rhs;
    CallOperand& in = call.side(slot.side);
    switch (slot.kind) {
      case ResidualKind::kValue:
        if (in.has_qvalue() && !fwd_.side(slot.side).is_quantized()) kept.Keep(i, *in.prepared->qvalue);
        else kept.Keep(i, operand.value, operand.transient);
        break;
      case ResidualKind::kQvalue:
        if (in.has_qvalue()) {
          kept.Keep(i, *in.prepared->qvalue);
        } else if (fwd_.HasMidScales()) {
          in.keep_forward_operand = kept.Reserve(i, slot.aval);
        } else {
          in.keep_qvalue = kept.Reserve(i, slot.aval);
        }
        break;
      case ResidualKind::kScale:
        if (in.prepared == nullptr) {
          in.keep_scale = kept.Reserve(i, slot.aval);
        } else {
          // With use_fwd_quant the scale of the qvalue, otherwise the one that determines the clip mask.
          const bool of_qvalue = reader(slot.side).other != OtherOperand::kFloat || !in.has_qvalue();
          kept.Keep(i, of_qvalue ? in.prepared->scale[0] : *own_scale[static_cast<int>(slot.side)],
                    /*transient=*/true);
        }
        break;
      case ResidualKind::kClipMask: {
        int8_t* mask = static_cast<int8_t*>(kept.Reserve(i, slot.aval));
        if (in.has_qvalue()) {
          std::vector<double> work(ClipMaskWorkDoubles(slot.side));
          ComputeClipMask(slot.side, operand.value, *own_scale[static_cast<int>(slot.side)], work.data(), mask);
        } else {
          in.keep_mask = mask;
        }
        break;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ContractionPlan::Forward(const DotOperand& lhs, const DotOperand& rhs,
                                      absl::Span<const int64_t> group_sizes, const CallKeys& context,
                                      const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                      const StateArrays& state) const {
  AQT_RETURN_IF_ERROR(CheckKey("Forward", ForwardNeedsKey(), context));
  AQT_RETURN_IF_ERROR(CheckArray("out", out.aval(), shape_.out));
  if (residuals != nullptr) AQT_RETURN_IF_ERROR(CheckHasGradients("Forward is given Residuals"));
  ProductCall call;
  call.group_sizes = group_sizes;
  call.out = out;
  call.block_epilogue = runtime.block_epilogue;
  AQT_RETURN_IF_ERROR(FillOperand(Side::kLhs, lhs, context, runtime, state, call.lhs));
  AQT_RETURN_IF_ERROR(FillOperand(Side::kRhs, rhs, context, runtime, state, call.rhs));
  if (residuals != nullptr) {
    if (residuals->impl() == nullptr) *residuals = Residuals();  // it was moved from
    AQT_RETURN_IF_ERROR(KeepResiduals(lhs, rhs, context, *residuals->impl(), call));
  }
  Workspace workspace(ScratchOf(runtime));
  RunProduct(fwd_, call, {options_.semantics, fwd_.target, runtime, workspace});
  return absl::OkStatus();
}

// ---- backward

// The operands of a gradient's product, from g (tiled) and the residuals.
void ContractionPlan::FillGradientOperands(Side side, const ArrayRef& g, const Residuals::Impl& residuals,
                                           const CallContext& context, ProductCall& call) const {
  const GradientPlan& plan = gradient(side);
  const Side other = Other(side);
  const auto residual = [&](ResidualKind kind) -> const ArrayRef& {
    return residuals.slots[ResidualIndex(other, kind)].view;
  };
  call.lhs.x = g;
  if (plan.other == OtherOperand::kFloat) {
    call.rhs.x = View(other, residual(ResidualKind::kValue));
    return;
  }
  const Aval operand{this->operand(other).dtype, fwd_.side(other).x.shape};
  const ArrayRef& scale = residual(ResidualKind::kScale);
  const bool plain_call = context.runtime.observer == nullptr && context.runtime.product == nullptr;
  if (plain_call && MultipliesWhilePacking(side)) {
    call.lhs.factor = *ForwardScaleInGradient(plan, scale);  // checked when planned
  } else if (plan.other == OtherOperand::kForwardQvalue) {
    const Aval gradient = g.aval();
    const MutableArrayRef scaled(gradient.dtype, gradient.shape,
                                 context.workspace.Get(ScratchSlot::kScaledGradient, gradient.num_bytes()));
    MultiplyInto(g, *ForwardScaleInGradient(plan, scale), g.dtype, scaled, context.runtime.executor);
    call.lhs.x = scaled;
  }
  if (plain_call && PacksQvalue(side)) {
    call.rhs.x = ArrayRef(operand.dtype, operand.shape, nullptr);
    call.rhs.integers = residual(ResidualKind::kQvalue);
    return;
  }
  const MutableArrayRef value(operand.dtype, operand.shape,
                              context.workspace.Get(ScratchSlot::kForwardOperand, operand.num_bytes()));
  call.rhs.x = value;
  absl::InlinedVector<ArrayRef, 1> bias;
  absl::Span<const ArrayRef> scales;
  if (plan.other == OtherOperand::kDequantized) {
    const std::optional<Array>& own_bias = fwd_.side(other).spec->bias;
    if (own_bias.has_value()) bias.push_back(*own_bias);
    scales = absl::MakeConstSpan(&scale, 1);
  }
  DequantizeInto(residual(ResidualKind::kQvalue), {.bias = bias, .scale = scales}, operand.dtype, value,
                 context.runtime.executor);
}

void ContractionPlan::RunGradient(Side side, const MutableArrayRef& result, const Residuals::Impl& residuals,
                                  const CallContext& context, ProductCall& call) const {
  const GradientPlan& plan = gradient(side);
  // The gradient of a tiled operand, with leading axes to be summed over if the operand was repeated.
  const TiledOperand* tiled = fwd_.tiled.has_value() ? &fwd_.tiled->operand(side) : nullptr;
  const bool repeated = tiled != nullptr && tiled->num_other > 0;
  const MutableArrayRef sum = tiled != nullptr ? tiled->tiling.Tile(result) : result;
  MutableArrayRef out = sum;
  if (repeated) {
    const Aval aval{result.dtype, tiled->shape};
    out = MutableArrayRef(aval.dtype, aval.shape, context.workspace.Get(ScratchSlot::kRepeated, aval.num_bytes()));
  }
  // The product is written in the layout of the operand.
  call.out.dtype = out.dtype;
  call.out.data = out.data;
  for (const int64_t axis : plan.to_operand) {
    call.out.shape.push_back(out.shape[axis]);
    call.out.strides.push_back(out.strides[axis]);
  }
  RunProduct(plan.product, call, context);

  const bool is_rotated = GradientIsRotated(side);
  const bool clips_rotated = fwd_.side(side).hadamard_block != 0 && ClipsGradient(side);
  if (clips_rotated && !is_rotated) RotateGradient(side, out, context);
  if (ClipsGradient(side)) {
    const int kept = ResidualIndex(side, ResidualKind::kClipMask);
    const int8_t* mask = kept >= 0 ? static_cast<const int8_t*>(residuals.slots[kept].view.data) : nullptr;
    if (mask == nullptr) {
      const int64_t doubles = ClipMaskWorkDoubles(side);
      double* work = static_cast<double*>(context.workspace.Get(
          ScratchSlot::kClipMask, out.shape.num_elements() + doubles * static_cast<int64_t>(sizeof(double))));
      int8_t* computed = reinterpret_cast<int8_t*>(work + doubles);
      ComputeClipMask(side, residuals.slots[ResidualIndex(side, ResidualKind::kValue)].view,
                      residuals.slots[ResidualIndex(side, ResidualKind::kScale)].view, work, computed);
      mask = computed;
    }
    ApplyClipMask(out, mask, options_.semantics, out);
  }
  if (clips_rotated || is_rotated) RotateGradient(side, out, context);
  if (repeated) SumLeadingInto(out, tiled->num_other, sum);
}

absl::Status ContractionPlan::Backward(const ArrayRef& g, const Residuals& residuals,
                                       absl::Span<const int64_t> group_sizes, const CallKeys& context,
                                       const std::optional<MutableArrayRef>& dlhs,
                                       const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                       const StateArrays& state) const {
  AQT_RETURN_IF_ERROR(CheckHasGradients("Backward is called"));
  AQT_RETURN_IF_ERROR(CheckArray("g", g.aval(), shape_.out));
  AQT_RETURN_IF_ERROR(CheckResiduals(residuals));
  const std::optional<MutableArrayRef>* outputs[] = {&dlhs, &drhs};
  ProductCall calls[2];
  for (const Side side : kSides) {
    const std::optional<MutableArrayRef>& out = *outputs[static_cast<int>(side)];
    const ProductPlan& product = gradient(side).product;
    ProductCall& call = calls[static_cast<int>(side)];
    call.group_sizes = group_sizes;
    for (const Side operand : kSides) {
      CallOperand& in = call.side(operand);
      const SidePlan& own = product.side(operand);
      if (own.draws()) in.key = KeyOf(context, product.pass, operand);
      if (!own.has_state()) continue;
      AQT_RETURN_IF_ERROR(FillStatistics(shape_.name, state_[1],
                                         state_begin_[static_cast<int>(product.pass)][static_cast<int>(operand)],
                                         *own.spec, operand, context, options_.semantics.compat, state, &in));
    }
    if (!out.has_value()) continue;
    AQT_RETURN_IF_ERROR(CheckKey("Backward", product.NeedsKey(), context));
    AQT_RETURN_IF_ERROR(CheckArray(side == Side::kLhs ? "dlhs" : "drhs", out->aval(), operand(side)));
  }
  Workspace workspace(ScratchOf(runtime));
  const CallContext call_context{options_.semantics, fwd_.target, runtime, workspace};
  const ArrayRef inner_g = fwd_.tiled.has_value() ? fwd_.tiled->GradientView(g, fwd_.product_shape) : g;
  for (const Side side : kSides) {
    const std::optional<MutableArrayRef>& out = *outputs[static_cast<int>(side)];
    const GradientPlan& plan = gradient(side);
    ProductCall& call = calls[static_cast<int>(side)];
    if (out.has_value() && plan.is_zero) {
      FillZeros(*out);
    } else if (out.has_value() || plan.product.HasState()) {
      workspace.Clear();
      FillGradientOperands(side, inner_g, *residuals.impl(), call_context, call);
      if (out.has_value()) {
        RunGradient(side, *out, *residuals.impl(), call_context, call);
      } else {
        UpdateStatisticsOf(plan.product, call, call_context);
      }
    }
  }
  return absl::OkStatus();
}

// ---- preparing

absl::StatusOr<QTensor> ContractionPlan::QuantizeOperand(Side side, const ArrayRef& value,
                                                         const CallKeys& context) const {
  AQT_RETURN_IF_ERROR(CheckArray(Name(side), value.aval(), operand(side)));
  const SidePlan& plan = fwd_.side(side);
  Array rotated;
  const ArrayRef view = RotatedView(side, value, rotated);
  if (!plan.is_quantized()) return QTensor{.qvalue = Array::CopyOf(view), .dequant_dtype = value.dtype};
  Context operand_context = context;
  operand_context.key = KeyOf(context, Pass::kFwd, side);
  return Quantize(plan.config.quantizer, view, plan.spec->shared_axes, operand_context, options_.semantics);
}

absl::StatusOr<PreparedOperand> ContractionPlan::Prepare(Side side, const ArrayRef& value, const CallKeys& context,
                                                         const Runtime& runtime) const {
  AQT_ASSIGN_OR_RETURN(QTensor qtensor, QuantizeOperand(side, value, context));
  return Prepare(side, std::move(qtensor), runtime);
}

absl::StatusOr<PreparedOperand> ContractionPlan::Prepare(Side side, QTensor qtensor, const Runtime& runtime) const {
  AQT_RETURN_IF_ERROR(ApplySparsityMask(tensor_name_[static_cast<int>(side)], qtensor));
  AQT_RETURN_IF_ERROR(CheckPrepared(side, qtensor, /*packed=*/nullptr));
  PreparedOperand::Impl prepared{.qtensor = std::move(qtensor),
                                 .panels = nullptr,
                                 .checked_by = identity_,
                                 .checked_side = side,
                                 .hadamard_block = fwd_.side(side).hadamard_block};
  prepared.panels = PackPrepared(fwd_, side, prepared.qtensor, runtime);
  return PreparedOperand(std::make_shared<const PreparedOperand::Impl>(std::move(prepared)));
}

std::optional<int64_t> ContractionPlan::PanelBytesOf(Side side) const {
  const std::optional<PanelKey>& key = fwd_.panels(side);
  if (!key.has_value()) return std::nullopt;
  return PackedBytes(fwd_.fused_contraction(), side, fwd_.side(side).x.shape, key->axes);
}

absl::StatusOr<PreparedOperand> ContractionPlan::FromPanels(Side side, const Array& panels,
                                                            absl::Span<const Array> scale) const {
  const SidePlan& own = fwd_.side(side);
  const std::optional<int64_t> bytes = PanelBytesOf(side);
  if (!bytes.has_value() || panels.num_bytes() != *bytes) {
    return absl::InvalidArgumentError(absl::StrCat(tensor_name_[static_cast<int>(side)], " has panels of ",
                                                   panels.num_bytes(), " bytes, expected ", bytes.value_or(0)));
  }
  const Aval source{own.is_quantized() ? own.spec->q_dtype : own.x.dtype, own.x.shape};
  const bool scales_output = own.scales_output() && scale.size() == 1;
  const Panels packed{.key = *fwd_.panels(side),
                      .source = source,
                      .data = panels.buffer(),
                      .bytes = *bytes,
                      .smallest_scale = scales_output ? ScalesInPlace(scale[0], own.x.shape, own.axes).smallest : 0};
  QTensor qtensor{.scale = {scale.begin(), scale.end()}, .dequant_dtype = own.x.dtype};
  AQT_RETURN_IF_ERROR(CheckPrepared(side, qtensor, &packed));
  return PreparedOperand(std::make_shared<const PreparedOperand::Impl>(
      PreparedOperand::Impl{.qtensor = std::move(qtensor),
                            .panels = std::make_shared<const Panels>(packed),
                            .checked_by = identity_,
                            .checked_side = side,
                            .hadamard_block = own.hadamard_block}));
}

}  // namespace aqt::internal
