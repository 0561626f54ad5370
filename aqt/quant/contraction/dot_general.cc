#include "aqt/quant/contraction/dot_general.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/target.h"
#include "aqt/quant/contraction/dot_tiling.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/raw_dot.h"
#include "aqt/quant/contraction/scale_layout.h"
#include "aqt/quant/contraction/workspace.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/qtensor_internal.h"
#include "aqt/quant/tensor/quantize_spec.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/tensor/statistics.h"

namespace aqt {
namespace {

using internal::Pass;
using internal::RawDotPlan;
using internal::Workspace;

// The gradient of one operand.
struct BackwardPlan {
  RawDotPlan raw;
  DotDims dims;                // of the gradient and the other operand
  Axes to_operand;             // for each axis of the product, its axis in the operand
  bool use_fwd_quant = false;  // of the other operand
};

}  // namespace

struct DotGeneralPlan::Impl {
  DotGeneral config;
  PlanOptions options;
  DotDims dims;
  Aval lhs, rhs, out;
  std::optional<internal::TiledDot> tiled;
  RawDotPlan fwd;           // this and the gradients: on the tiled shapes
  BackwardPlan dlhs, drhs;  // planned only if `passes` says so; residuals likewise
  std::vector<ResidualSlot> residuals;
  // Index in `residuals` by side and what; -1 if there is none.
  int residual_index[2][4] = {{-1, -1, -1, -1}, {-1, -1, -1, -1}};
  // [0]: of fwd; [1]: of dlhs and drhs.
  std::vector<StateSlot> state[2];
  // By pass and side: the index of its first slot there.
  size_t state_begin[3][2] = {};
  mutable internal::WorkspacePool workspaces;

  // The dims of the backward contractions of a ragged one, which do not follow from its own dims.
  struct RaggedDims {
    BackwardDotDims dlhs, drhs;
  };
  static absl::StatusOr<std::shared_ptr<Impl>> Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                                    const DotDims& dims, const RaggedDims* ragged,
                                                    const PlanOptions& options);
  // Plans dlhs and drhs, and what Forward keeps for them.
  absl::Status MakeBackwardPasses(const Aval& inner_lhs, const Aval& inner_rhs, const DotDims& inner_dims,
                                  const RaggedDims* ragged);
  absl::Status CheckHasBackward(absl::string_view what) const {
    if (options.passes == PlanPasses::kForwardAndBackward) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("DotGeneral: ", what,
                     ", but the plan is made with PlanPasses::kForwardOnly; make it with kForwardAndBackward"));
  }

  const Aval& operand(Side side) const { return side == Side::kLhs ? lhs : rhs; }
  // The backward pass that reads the residuals of `side` as its rhs, and the one whose gradient is that of `side`.
  const BackwardPlan& reader(Side side) const { return side == Side::kLhs ? drhs : dlhs; }
  const BackwardPlan& gradient(Side side) const { return side == Side::kLhs ? dlhs : drhs; }

  // An operand as the contractions see it.
  ArrayRef View(Side side, const ArrayRef& x) const { return tiled.has_value() ? tiled->operand(side).View(x) : x; }

  int ResidualIndex(Side side, ResidualKind kind) const {
    return residual_index[static_cast<int>(side)][static_cast<int>(kind)];
  }
  void AddResidual(Side side, ResidualKind kind, Aval aval) {
    residual_index[static_cast<int>(side)][static_cast<int>(kind)] = static_cast<int>(residuals.size());
    residuals.push_back({side, kind, std::move(aval)});
  }

  // Whether the gradients of a contraction with a given operand are defined. Returns the scale that the operand would
  // have had if quantized here, if its gradient needs that: a given qvalue passes gradients as if it had been quantized
  // here.
  absl::StatusOr<std::optional<Array>> CheckGivenGradient(Side side, const QTensor& given, const ArrayRef& value,
                                                          const Context& context) const;

  void AddState(const RawDotPlan& plan) {
    std::vector<StateSlot>& slots = state[plan.pass == Pass::kFwd ? 0 : 1];
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      state_begin[static_cast<int>(plan.pass)][static_cast<int>(side)] = slots.size();
      internal::AppendStateSlots(plan.pass, side, plan.side(side), slots);
    }
  }

  bool ClipsGradient(Side side) const {
    const std::optional<internal::QuantizeSpec>& spec = fwd.side(side).spec;
    return spec.has_value() && internal::GradientBound(spec->numerics, spec->scaled_dtype).has_value();
  }
  // The mask that Forward would keep, from the float operand and its forward scale.
  void ComputeClipMask(Side side, const ArrayRef& operand, const ArrayRef& scale, int8_t* mask) const {
    const ArrayRef value = View(side, operand);
    const internal::QuantizeSpec& spec = *fwd.side(side).spec;
    absl::InlinedVector<ArrayRef, 1> bias;
    if (spec.bias.has_value()) bias.push_back(*spec.bias);
    const internal::Affine affine{.bias = bias, .scale = absl::MakeConstSpan(&scale, 1)};
    const float bound = *internal::GradientBound(spec.numerics, spec.scaled_dtype);
    internal::ForEachScaledPiece(value, affine, value.strides, [&](float* y, int64_t n, int64_t linear, int64_t) {
      internal::ClipMaskRow(bound, spec.scaled_dtype, y, n, mask + linear);
    });
  }
};

namespace {

const char* Name(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }

absl::Status CheckAvals(const Aval& lhs, const Aval& rhs) {
  if (lhs.dtype != rhs.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("DotGeneral: lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(),
                                                   "; both must have one dtype: cast one of them"));
  }
  if (!internal::IsArithmeticFloat(lhs.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotGeneral: operands are ", ToString(lhs.dtype), ", expected f32, bf16 or f16"));
  }
  return absl::OkStatus();
}

absl::Status CheckArray(const char* name, const Aval& got, const Aval& want) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("DotGeneral: ", name, " is ", got.ToString(), ", but the plan is for ", want.ToString()));
}

// use_fwd_quant is set on the rhs of a backward pass; `side` is the forward operand that it refers to.
absl::Status CheckUseFwdQuant(const DotGeneral& config, Side side) {
  const bool lhs = side == Side::kLhs;
  const DotGeneralRaw& backward = lhs ? config.drhs : config.dlhs;
  if (!backward.rhs.use_fwd_quant) return absl::OkStatus();
  return Annotate(ValidateUseFwdQuant(config.fwd, side), lhs ? "drhs.rhs" : "dlhs.rhs");
}

absl::Status CheckFlagPlaces(const DotGeneral& config, PlanPasses passes) {
  const std::pair<const char*, const Tensor*> places[] = {{"fwd.lhs", &config.fwd.lhs},
                                                          {"fwd.rhs", &config.fwd.rhs},
                                                          {"dlhs.lhs", &config.dlhs.lhs},
                                                          {"drhs.lhs", &config.drhs.lhs}};
  for (const auto& [name, tensor] : places) {
    if (passes == PlanPasses::kForwardOnly && tensor != &config.fwd.lhs && tensor != &config.fwd.rhs) continue;
    if (!tensor->use_fwd_quant) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": use_fwd_quant applies only to dlhs.rhs and drhs.rhs"));
  }
  if (config.fwd.local_aqt.has_value()) {
    return absl::InvalidArgumentError("fwd: local_aqt applies only to dlhs and drhs");
  }
  return absl::OkStatus();
}

absl::StatusOr<BackwardPlan> MakeBackward(Pass pass, const DotGeneralRaw& config, const Aval& out, const Aval& other,
                                          const BackwardDotDims& dims) {
  BackwardPlan plan;
  AQT_ASSIGN_OR_RETURN(plan.raw, internal::MakeRawDotPlan(pass, config, out, other, dims.dims));
  plan.dims = dims.dims;
  plan.to_operand = dims.to_operand;
  plan.use_fwd_quant = config.rhs.use_fwd_quant;
  return plan;
}

// A scale of the operand that `plan` reads, in the layout of the incoming gradient.
absl::StatusOr<ArrayRef> ForwardScaleInGradient(const BackwardPlan& plan, const ArrayRef& scale,
                                                const Shape& gradient) {
  return ScaleToOther(scale, Side::kRhs, plan.dims, gradient.rank());
}

absl::Status CheckKey(const char* call, bool needed, const Context& context) {
  if (!needed || context.key.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("DotGeneral: ", call, " rounds stochastically and draws random numbers: set Context::key"));
}

}  // namespace

OperandKeys SplitContextKey(Key key, PrngLayout layout) {
  const auto operand = [&](int64_t pass, int64_t side) {
    return SplitKey(SplitKey(key, 3, pass, layout), 2, side, layout);
  };
  return {operand(0, 0), operand(0, 1), operand(1, 0), operand(1, 1), operand(2, 0), operand(2, 1)};
}

// ---- Residuals

int64_t Residuals::num_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.owned != nullptr ? slot.aval.num_bytes() : 0;
  return bytes;
}

std::vector<Array> Residuals::Release() && {
  std::vector<Array> arrays;
  for (Slot& slot : slots_) {
    arrays.push_back(slot.owned != nullptr ? Array(slot.aval, std::move(slot.owned)) : Array::CopyOf(slot.view));
  }
  slots_.clear();
  return arrays;
}

Residuals Residuals::FromArrays(absl::Span<const Array> arrays) {
  Residuals residuals;
  for (const Array& array : arrays) {
    residuals.slots_.push_back({.aval = array.aval(), .owned = nullptr, .shared = array.buffer(), .view = array.ref()});
  }
  return residuals;
}

void* Residuals::Reserve(size_t index, const Aval& aval) {
  Slot& slot = slots_[index];
  if (slot.owned == nullptr || slot.aval != aval) {
    slot = {.aval = aval, .owned = AllocateAligned(aval.num_bytes()), .shared = nullptr, .view = {}};
    slot.view = ArrayRef(aval.dtype, aval.shape, slot.owned.get());
  }
  return slot.owned.get();
}

void Residuals::Keep(size_t index, const ArrayRef& operand, bool transient) {
  if (operands_ == Operands::kBorrow && !transient) {
    slots_[index] = {.aval = operand.aval(), .owned = nullptr, .shared = nullptr, .view = operand};
    return;
  }
  void* copy = Reserve(index, operand.aval());
  AQT_CHECK(CopyArray(operand, MutableArrayRef(operand.dtype, operand.shape, copy)).ok());
}

// ---- planning

absl::StatusOr<DotGeneralPlan> DotGeneralPlan::Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                                    const DotDims& dims, const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(Validate(options));
  AQT_RETURN_IF_ERROR(CheckAvals(lhs, rhs));
  AQT_RETURN_IF_ERROR(ValidateDotDims(dims, lhs.shape, rhs.shape));
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<Impl> impl, Impl::Make(config, lhs, rhs, dims, nullptr, options));
  return DotGeneralPlan(std::move(impl));
}

absl::StatusOr<std::shared_ptr<DotGeneralPlan::Impl>> DotGeneralPlan::Impl::Make(const DotGeneral& config,
                                                                                 const Aval& lhs, const Aval& rhs,
                                                                                 const DotDims& dims,
                                                                                 const RaggedDims* ragged,
                                                                                 const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(CheckFlagPlaces(config, options.passes));
  auto impl = std::make_shared<Impl>();
  impl->config = config;
  impl->options = options;
  impl->dims = dims;
  impl->lhs = lhs;
  impl->rhs = rhs;
  impl->out = {lhs.dtype, DotOutputShape(dims, lhs.shape, rhs.shape)};
  Aval inner_lhs = lhs, inner_rhs = rhs;
  DotDims inner_dims = dims;
  if (config.tiling.has_value()) {
    AQT_ASSIGN_OR_RETURN(impl->tiled, internal::MakeTiledDot(*config.tiling, dims, lhs.shape, rhs.shape));
    inner_lhs.shape = impl->tiled->lhs.shape;
    inner_rhs.shape = impl->tiled->rhs.shape;
    inner_dims = impl->tiled->dims;
  }
  AQT_ASSIGN_OR_RETURN(impl->fwd, internal::MakeRawDotPlan(Pass::kFwd, config.fwd, inner_lhs, inner_rhs, inner_dims));
  impl->AddState(impl->fwd);
  if (options.passes == PlanPasses::kForwardAndBackward) {
    AQT_RETURN_IF_ERROR(impl->MakeBackwardPasses(inner_lhs, inner_rhs, inner_dims, ragged));
  }
  return impl;
}

absl::Status DotGeneralPlan::Impl::MakeBackwardPasses(const Aval& inner_lhs, const Aval& inner_rhs,
                                                      const DotDims& inner_dims, const RaggedDims* ragged) {
  AQT_RETURN_IF_ERROR(CheckUseFwdQuant(config, Side::kLhs));
  AQT_RETURN_IF_ERROR(CheckUseFwdQuant(config, Side::kRhs));
  const Aval inner_out{lhs.dtype, fwd.product_shape};
  const int64_t lhs_rank = inner_lhs.shape.rank(), rhs_rank = inner_rhs.shape.rank();
  const auto backward_dims = [&](Side side) { return MakeBackwardDotDims(inner_dims, lhs_rank, rhs_rank, side); };
  AQT_ASSIGN_OR_RETURN(dlhs, MakeBackward(Pass::kDlhs, config.dlhs, inner_out, inner_rhs,
                                          ragged != nullptr ? ragged->dlhs : backward_dims(Side::kLhs)));
  AQT_ASSIGN_OR_RETURN(drhs, MakeBackward(Pass::kDrhs, config.drhs, inner_out, inner_lhs,
                                          ragged != nullptr ? ragged->drhs : backward_dims(Side::kRhs)));
  AddState(dlhs.raw);
  AddState(drhs.raw);
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const Aval& x = operand(side);
    const Shape& shape = fwd.side(side).x.shape;
    const bool fwd_quant = reader(side).use_fwd_quant, clips = ClipsGradient(side);
    const auto& spec = fwd.side(side).spec;
    if (fwd_quant) {
      AddResidual(side, ResidualKind::kQvalue, {fwd.HasMidScales() ? operand(side).dtype : spec->q_dtype, shape});
      // The forward scale must fit the gradient.
      const ArrayRef scale(spec->scale_dtype, spec->scale_shape, nullptr);
      AQT_RETURN_IF_ERROR(
          Annotate(ForwardScaleInGradient(reader(side), scale, inner_out.shape).status(), "use_fwd_quant"));
    } else {
      AddResidual(side, ResidualKind::kValue, x);
    }
    // Backward can compute the mask from the float operand and its scale only if that operand was quantized.
    const bool keep_mask = clips && (fwd_quant || fwd.HasMidScales());
    if (fwd_quant || (clips && !keep_mask)) {
      AddResidual(side, ResidualKind::kScale, {spec->scale_dtype, spec->scale_shape});
    }
    if (keep_mask) AddResidual(side, ResidualKind::kClipMask, {DType::kS8, shape});
  }
  return absl::OkStatus();
}

absl::StatusOr<DotGeneralPlan> DotGeneralPlan::MakeRagged(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                                          const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(Validate(options));
  AQT_RETURN_IF_ERROR(CheckAvals(lhs, rhs));
  const std::pair<const char*, const DotGeneralRaw*> passes[] = {
      {"fwd", &config.fwd}, {"dlhs", &config.dlhs}, {"drhs", &config.drhs}};
  for (const auto& [name, raw] : passes) {
    if (options.passes == PlanPasses::kForwardOnly && raw != &config.fwd) continue;
    if (raw->lhs_mid_alpha.has_value() || raw->rhs_mid_alpha.has_value() || raw->local_aqt.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": mid alphas and local_aqt are not supported with groups"));
    }
    if (raw != &config.drhs && raw->rhs.dequant_mode == DequantMode::kOtherInput) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ".rhs: DEQUANT_MODE_OTHER_INPUT would multiply a scale per group into an operand without groups"));
    }
  }
  if (config.tiling.has_value()) return absl::InvalidArgumentError("tiling is not supported with groups");
  // The group axis is contracted, but unpaired: all groups share a scale.
  const Impl::RaggedDims ragged{
      .dlhs = {.dims = {.lhs_contracting = {1}, .rhs_contracting = {2, 0}}, .to_operand = {0, 1}},
      .drhs = {.dims = {.lhs_contracting = {0}, .rhs_contracting = {0}}, .to_operand = {0, 2, 1}}};
  AQT_ASSIGN_OR_RETURN(
      std::shared_ptr<Impl> impl,
      Impl::Make(config, lhs, rhs, {.lhs_contracting = {1}, .rhs_contracting = {1, 0}}, &ragged, options));
  impl->fwd.ragged = impl->dlhs.raw.ragged = internal::Ragged::kRows;
  impl->drhs.raw.ragged = internal::Ragged::kContracting;
  impl->drhs.raw.product_shape = {rhs.shape[0], rhs.shape[2], rhs.shape[1]};
  return DotGeneralPlan(std::move(impl));
}

const Aval& DotGeneralPlan::lhs_aval() const { return impl_->lhs; }
const Aval& DotGeneralPlan::rhs_aval() const { return impl_->rhs; }
const Aval& DotGeneralPlan::out_aval() const { return impl_->out; }
const DotDims& DotGeneralPlan::dims() const { return impl_->dims; }
const DotGeneral& DotGeneralPlan::config() const { return impl_->config; }
const PlanOptions& DotGeneralPlan::options() const { return impl_->options; }
absl::Span<const ResidualSlot> DotGeneralPlan::residuals() const { return impl_->residuals; }
absl::StatusOr<DotGeneralPlan::QuantizedAvals> DotGeneralPlan::quantized_avals(Side side) const {
  const internal::SidePlan& plan = impl_->fwd.side(side);
  if (!plan.spec.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("DotGeneral: fwd.", Name(side), " is not quantized"));
  }
  return QuantizedAvals{{plan.spec->q_dtype, plan.x.shape}, {plan.spec->scale_dtype, plan.spec->scale_shape}};
}
absl::Span<const StateSlot> DotGeneralPlan::forward_state() const { return impl_->state[0]; }
absl::Span<const StateSlot> DotGeneralPlan::backward_state() const { return impl_->state[1]; }
bool DotGeneralPlan::ForwardNeedsKey() const { return impl_->fwd.NeedsKey(); }
bool DotGeneralPlan::BackwardNeedsKey() const { return impl_->dlhs.raw.NeedsKey() || impl_->drhs.raw.NeedsKey(); }

// ---- running

namespace {

// Whether `qtensor` can replace an operand of the forward contraction. Does not allocate if it can.
absl::Status CheckGiven(const RawDotPlan& plan, Side side, const QTensor& qtensor) {
  const internal::SidePlan& own = plan.side(side);
  const absl::string_view where =
      side == Side::kLhs ? "DotGeneral: the tensor for fwd.lhs" : "DotGeneral: the tensor for fwd.rhs";
  AQT_RETURN_IF_ERROR(internal::CheckGiven(where, own, qtensor));
  if (plan.HasMidScales()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": with mid alphas a quantized operand depends on the other one"));
  }
  const int64_t other_rank = plan.side(Other(side)).x.shape.rank();
  for (const Array& scale : qtensor.scale) {
    absl::Status fits;
    if (own.config.dequant_mode == DequantMode::kOutput) {
      fits = ScaleToOutput(scale, side, plan.dims, other_rank).status();
    } else if (own.config.dequant_mode == DequantMode::kOtherInput) {
      fits = ScaleToOther(scale, side, plan.dims, other_rank).status();
    }
    if (!fits.ok()) return Annotate(fits, where);
  }
  return absl::OkStatus();
}

// Where the tiles of a result are before they are summed.
MutableArrayRef DenseBuffer(Workspace& workspace, const Aval& aval) {
  return MutableArrayRef(aval.dtype, aval.shape, workspace.Get(Workspace::kTiles, aval.num_bytes()));
}

// One operand of Forward, checked: a prepared one may come from another plan. A float operand, with the aval `want`, is
// not tiled yet.
absl::Status FillOperand(const DotOperand& operand, const internal::Panels* panels, const RawDotPlan& plan, Side side,
                         const Aval& want, internal::RawOperand* raw) {
  raw->given = operand.prepared != nullptr ? &operand.prepared->qtensor() : nullptr;
  raw->panels = panels;
  if (raw->given != nullptr) {
    AQT_RETURN_IF_ERROR(CheckGiven(plan, side, *raw->given));
    if (raw->given->IsFull()) {
      raw->x = ArrayRef(want.dtype, plan.side(side).x.shape, nullptr);
      return absl::OkStatus();
    }
  }
  raw->x = operand.value;
  return CheckArray(Name(side), operand.value.aval(), want);
}

}  // namespace

absl::StatusOr<std::optional<Array>> DotGeneralPlan::Impl::CheckGivenGradient(Side side, const QTensor& given,
                                                                              const ArrayRef& value,
                                                                              const Context& context) const {
  const internal::SidePlan& own = fwd.side(side);
  const auto where = [&] { return absl::StrCat("DotGeneral: fwd.", Name(side), " is given as a tensor"); };
  const bool keeps_scale = ResidualIndex(side, ResidualKind::kScale) >= 0;
  if (keeps_scale) {
    const Aval want{own.spec->scale_dtype, own.spec->scale_shape};
    if (given.scale.size() != 1 || given.scale[0].aval() != want || !given.bias.empty()) {
      const auto aval = [](std::string* out, const Array& array) { *out += array.aval().ToString(); };
      return absl::InvalidArgumentError(absl::StrCat(
          where(), ", but its gradient needs one scale ", want.ToString(), " and no bias; it has the scales ",
          absl::StrJoin(given.scale, ", ", aval), " and ", given.bias.size(), " biases"));
    }
  }
  std::optional<Array> scale;
  if (!given.IsFull()) return scale;
  if (!config.fwd.allow_dummy_gradient_into_qtensor) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(),
                     " with a qvalue, into which no gradient flows; pass the float operand, or no Residuals, or set "
                     "fwd.allow_dummy_gradient_into_qtensor to pass its gradient on as if it had been quantized here"));
  }
  if (ResidualIndex(side, ResidualKind::kValue) < 0 && !ClipsGradient(side)) return scale;
  if (value.data == nullptr && operand(side).shape.num_elements() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(),
                     " with a qvalue, but the gradients need its float operand, too: pass both, or set "
                     "use_fwd_quant in ",
                     side == Side::kLhs ? "drhs.rhs" : "dlhs.rhs"));
  }
  AQT_RETURN_IF_ERROR(CheckArray(Name(side), value.aval(), operand(side)));
  if (!ClipsGradient(side)) return scale;
  Context operand_context = context;
  if (context.key.has_value()) {
    const OperandKeys keys = SplitContextKey(*context.key, options.semantics.prng_layout);
    operand_context.key = side == Side::kLhs ? keys.fwd_lhs : keys.fwd_rhs;
  }
  AQT_ASSIGN_OR_RETURN(const QTensor calibrated,
                       Calibrate(own.config.quantizer, View(side, value), own.spec->shared_axes, options.semantics,
                                 nullptr, operand_context));
  scale = calibrated.scale[0];
  return scale;
}

absl::Status DotGeneralPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context,
                                     const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                     const StateArrays& state) const {
  return ForwardGroups(lhs, rhs, {}, context, out, residuals, runtime, state);
}

absl::Status DotGeneralPlan::ForwardGroups(const DotOperand& lhs, const DotOperand& rhs,
                                           absl::Span<const int64_t> group_sizes, const Context& context,
                                           const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                           const StateArrays& state) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckKey("Forward", ForwardNeedsKey(), context));
  AQT_RETURN_IF_ERROR(CheckArray("out", out.aval(), impl.out));
  if (residuals != nullptr) AQT_RETURN_IF_ERROR(impl.CheckHasBackward("Forward is given Residuals"));
  const internal::Execution execution = internal::MakeExecution(impl.options, runtime);
  internal::RawCall call;
  const auto panels = [](const DotOperand& x) { return x.prepared != nullptr ? x.prepared->panels_.get() : nullptr; };
  AQT_RETURN_IF_ERROR(FillOperand(lhs, panels(lhs), impl.fwd, Side::kLhs, impl.lhs, &call.lhs));
  AQT_RETURN_IF_ERROR(FillOperand(rhs, panels(rhs), impl.fwd, Side::kRhs, impl.rhs, &call.rhs));
  call.group_sizes = group_sizes;
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    internal::RawOperand& operand = side == Side::kLhs ? call.lhs : call.rhs;
    const auto& spec = impl.fwd.side(side).spec;
    if (operand.given != nullptr || !spec.has_value() || !spec->has_state()) continue;
    AQT_RETURN_IF_ERROR(internal::FillStatistics("DotGeneral", impl.state[0],
                                                 impl.state_begin[0][static_cast<int>(side)], *spec, side, context,
                                                 execution, state, &operand));
  }
  call.layout = impl.options.semantics.prng_layout;
  call.out = out;
  if (context.key.has_value()) {
    const OperandKeys keys = SplitContextKey(*context.key, impl.options.semantics.prng_layout);
    call.lhs.key = keys.fwd_lhs;
    call.rhs.key = keys.fwd_rhs;
  }
  if (residuals != nullptr) {
    std::optional<Array> own_scale[2];
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const internal::RawOperand& operand = side == Side::kLhs ? call.lhs : call.rhs;
      if (operand.given == nullptr) continue;
      const ArrayRef& value = side == Side::kLhs ? lhs.value : rhs.value;
      AQT_ASSIGN_OR_RETURN(own_scale[static_cast<int>(side)],
                           impl.CheckGivenGradient(side, *operand.given, value, context));
    }
    residuals->slots_.resize(impl.residuals.size());
    for (size_t i = 0; i < impl.residuals.size(); ++i) {
      const ResidualSlot& slot = impl.residuals[i];
      const bool is_lhs = slot.side == Side::kLhs;
      internal::RawOperand& operand = is_lhs ? call.lhs : call.rhs;
      const QTensor* given = operand.given;
      const bool given_qvalue = given != nullptr && given->IsFull();
      switch (slot.kind) {
        case ResidualKind::kValue:
          residuals->Keep(i, is_lhs ? lhs.value : rhs.value, is_lhs ? lhs.transient : rhs.transient);
          break;
        case ResidualKind::kQvalue:
          if (given_qvalue) {
            residuals->Keep(i, *given->qvalue);
          } else if (impl.fwd.HasMidScales()) {
            operand.keep_forward_operand = residuals->Reserve(i, slot.aval);
          } else {
            operand.keep_qvalue = residuals->Reserve(i, slot.aval);
          }
          break;
        case ResidualKind::kScale:
          if (given == nullptr) {
            operand.keep_scale = residuals->Reserve(i, slot.aval);
          } else {
            // With use_fwd_quant the scale of the qvalue, otherwise the one that determines the clip mask.
            const bool of_qvalue = impl.reader(slot.side).use_fwd_quant || !given_qvalue;
            residuals->Keep(i, of_qvalue ? given->scale[0] : *own_scale[static_cast<int>(slot.side)],
                            /*transient=*/true);
          }
          break;
        case ResidualKind::kClipMask: {
          int8_t* mask = static_cast<int8_t*>(residuals->Reserve(i, slot.aval));
          if (given_qvalue) {
            impl.ComputeClipMask(slot.side, is_lhs ? lhs.value : rhs.value, *own_scale[static_cast<int>(slot.side)],
                                 mask);
          } else {
            operand.keep_mask = mask;
          }
          break;
        }
      }
    }
  }
  internal::WorkspacePool::Lease workspace = impl.workspaces.Get();
  if (!impl.tiled.has_value()) {
    internal::RunRawDot(impl.fwd, call, *workspace, execution);
    return absl::OkStatus();
  }
  const internal::TiledDot& tiled = *impl.tiled;
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    internal::RawOperand& operand = side == Side::kLhs ? call.lhs : call.rhs;
    if (operand.given == nullptr || !operand.given->IsFull()) operand.x = tiled.operand(side).View(operand.x);
  }
  const MutableArrayRef sum = tiled.OutView(out);
  call.out = tiled.num_sums == 0 ? sum : DenseBuffer(*workspace, {out.dtype, impl.fwd.product_shape});
  internal::RunRawDot(impl.fwd, call, *workspace, execution);
  if (tiled.num_sums > 0) internal::SumLeadingInto(call.out, tiled.num_sums, sum);
  return absl::OkStatus();
}

absl::Status DotGeneralPlan::Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                                      const std::optional<MutableArrayRef>& dlhs,
                                      const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                      const StateArrays& state) const {
  return BackwardGroups(g, residuals, {}, context, dlhs, drhs, runtime, state);
}

absl::Status DotGeneralPlan::BackwardGroups(const ArrayRef& g, const Residuals& residuals,
                                            absl::Span<const int64_t> group_sizes, const Context& context,
                                            const std::optional<MutableArrayRef>& dlhs,
                                            const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                            const StateArrays& state) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(impl.CheckHasBackward("Backward is called"));
  AQT_RETURN_IF_ERROR(CheckArray("g", g.aval(), impl.out));
  if (residuals.slots_.size() != impl.residuals.size()) {
    return absl::FailedPreconditionError(absl::StrCat("DotGeneral: Backward needs the ", impl.residuals.size(),
                                                      " residuals of a Forward, but got ", residuals.slots_.size()));
  }
  for (size_t i = 0; i < impl.residuals.size(); ++i) {
    if (residuals.slots_[i].aval == impl.residuals[i].aval) continue;
    return absl::InvalidArgumentError(absl::StrCat("DotGeneral: residual ", i, " is ",
                                                   residuals.slots_[i].aval.ToString(), ", but this plan keeps ",
                                                   impl.residuals[i].aval.ToString(), ": it belongs to another plan"));
  }
  const internal::Execution execution = internal::MakeExecution(impl.options, runtime);
  std::optional<OperandKeys> keys;
  if (context.key.has_value()) keys = SplitContextKey(*context.key, impl.options.semantics.prng_layout);
  internal::WorkspacePool::Lease workspace = impl.workspaces.Get();

  const auto residual = [&](Side side, ResidualKind kind) -> const ArrayRef* {
    const int index = impl.ResidualIndex(side, kind);
    return index < 0 ? nullptr : &residuals.slots_[index].view;
  };
  const ArrayRef inner_g = impl.tiled.has_value() ? impl.tiled->GradientView(g, impl.fwd.product_shape) : g;
  // Without `result` only the statistics are updated.
  const auto run = [&](Side side, const std::optional<MutableArrayRef>& result, internal::RawCall call) {
    const BackwardPlan& plan = impl.gradient(side);
    const Side other = Other(side);
    call.group_sizes = group_sizes;
    call.layout = impl.options.semantics.prng_layout;
    if (keys.has_value()) {
      call.lhs.key = side == Side::kLhs ? keys->dlhs_lhs : keys->drhs_lhs;
      call.rhs.key = side == Side::kLhs ? keys->dlhs_rhs : keys->drhs_rhs;
    }
    if (plan.use_fwd_quant) {
      const Aval operand{impl.operand(other).dtype, impl.fwd.side(other).x.shape};
      const Aval gradient = inner_g.aval();
      const MutableArrayRef scaled(gradient.dtype, gradient.shape,
                                   workspace->Get(Workspace::kScaledGradient, gradient.num_bytes()));
      const MutableArrayRef value(operand.dtype, operand.shape,
                                  workspace->Get(Workspace::kForwardOperand, operand.num_bytes()));
      // Checked when planned.
      const ArrayRef scale = *ForwardScaleInGradient(plan, *residual(other, ResidualKind::kScale), gradient.shape);
      internal::MultiplyInto(inner_g, scale, g.dtype, scaled);
      internal::DequantizeInto(*residual(other, ResidualKind::kQvalue), {}, operand.dtype, value);
      call.lhs.x = scaled;
      call.rhs.x = value;
    } else {
      call.lhs.x = inner_g;
      call.rhs.x = impl.View(other, *residual(other, ResidualKind::kValue));
    }
    if (!result.has_value()) return internal::UpdateStatisticsOf(plan.raw, call, *workspace, execution);
    // The gradient of a tiled operand, with leading axes to be summed over if the operand was repeated.
    const internal::TiledOperand* tiled = impl.tiled.has_value() ? &impl.tiled->operand(side) : nullptr;
    const bool repeated = tiled != nullptr && tiled->num_other > 0;
    const MutableArrayRef sum = tiled != nullptr ? tiled->tiling.Tile(*result) : *result;
    const MutableArrayRef out = repeated ? DenseBuffer(*workspace, {result->dtype, tiled->shape}) : sum;
    // The product is written in the layout of the operand.
    call.out.dtype = out.dtype;
    call.out.data = out.data;
    for (const int64_t axis : plan.to_operand) {
      call.out.shape.push_back(out.shape[axis]);
      call.out.strides.push_back(out.strides[axis]);
    }
    internal::RunRawDot(plan.raw, call, *workspace, execution);

    if (impl.ClipsGradient(side)) {
      const ArrayRef* mask = residual(side, ResidualKind::kClipMask);
      const int8_t* mask_data = mask != nullptr ? static_cast<const int8_t*>(mask->data) : nullptr;
      if (mask == nullptr) {
        int8_t* computed = static_cast<int8_t*>(workspace->Get(Workspace::kClipMask, out.shape.num_elements()));
        impl.ComputeClipMask(side, *residual(side, ResidualKind::kValue), *residual(side, ResidualKind::kScale),
                             computed);
        mask_data = computed;
      }
      internal::ApplyClipMask(out, mask_data, impl.options.semantics.arithmetic, out);
    }
    if (repeated) internal::SumLeadingInto(out, tiled->num_other, sum);
  };

  const std::optional<MutableArrayRef>* outputs[] = {&dlhs, &drhs};
  internal::RawCall calls[2];
  for (const Side gradient : {Side::kLhs, Side::kRhs}) {
    const std::optional<MutableArrayRef>& out = *outputs[static_cast<int>(gradient)];
    const RawDotPlan& plan = impl.gradient(gradient).raw;
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const auto& spec = plan.side(side).spec;
      if (!spec.has_value() || !spec->has_state()) continue;
      internal::RawCall& call = calls[static_cast<int>(gradient)];
      AQT_RETURN_IF_ERROR(internal::FillStatistics(
          "DotGeneral", impl.state[1], impl.state_begin[static_cast<int>(plan.pass)][static_cast<int>(side)], *spec,
          side, context, execution, state, side == Side::kLhs ? &call.lhs : &call.rhs));
    }
    if (!out.has_value()) continue;
    AQT_RETURN_IF_ERROR(CheckKey("Backward", plan.NeedsKey(), context));
    AQT_RETURN_IF_ERROR(CheckArray(gradient == Side::kLhs ? "dlhs" : "drhs", out->aval(), impl.operand(gradient)));
  }
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const std::optional<MutableArrayRef>& out = *outputs[static_cast<int>(side)];
    if (out.has_value() || impl.gradient(side).raw.HasState()) run(side, out, calls[static_cast<int>(side)]);
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedOperand> DotGeneralPlan::Prepare(Side side, const ArrayRef& value, const Context& context,
                                                        const Runtime& runtime) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckArray(Name(side), value.aval(), impl.operand(side)));
  const internal::SidePlan& plan = impl.fwd.side(side);
  if (!plan.spec.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("DotGeneral: fwd.", Name(side), " is not quantized; there is nothing to prepare"));
  }
  Context operand_context = context;
  if (context.key.has_value()) {
    const OperandKeys keys = SplitContextKey(*context.key, impl.options.semantics.prng_layout);
    operand_context.key = side == Side::kLhs ? keys.fwd_lhs : keys.fwd_rhs;
  }
  AQT_ASSIGN_OR_RETURN(QTensor qtensor, Quantize(plan.config.quantizer, impl.View(side, value), plan.spec->shared_axes,
                                                 operand_context, impl.options.semantics));
  return Prepare(side, std::move(qtensor), runtime);
}

absl::StatusOr<PreparedOperand> DotGeneralPlan::Prepare(Side side, QTensor qtensor, const Runtime& runtime) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(
      internal::ApplySparsityMask(absl::StrCat("DotGeneral: the tensor for fwd.", Name(side)), qtensor));
  AQT_RETURN_IF_ERROR(CheckGiven(impl.fwd, side, qtensor));
  PreparedOperand prepared;
  prepared.qtensor_ = std::make_shared<const QTensor>(std::move(qtensor));
  prepared.panels_ =
      internal::PackPrepared(impl.fwd, side, *prepared.qtensor_, internal::MakeExecution(impl.options, runtime));
  return prepared;
}

// ---- one-shot

absl::StatusOr<Array> QuantizedDotGeneral(const DotGeneral& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                          const DotDims& dims, const Context& context, const PlanOptions& options,
                                          const Runtime& runtime) {
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                                            {PlanPasses::kForwardOnly, options.semantics, options.target}));
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval());
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, context, out.ref(), nullptr, runtime));
  return std::move(out).Build();
}

absl::StatusOr<DotGeneralGradients> QuantizedDotGeneralWithGradients(const DotGeneral& config, const ArrayRef& lhs,
                                                                     const ArrayRef& rhs, const ArrayRef& g,
                                                                     const DotDims& dims, const Context& context,
                                                                     const PlanOptions& options,
                                                                     const Runtime& runtime) {
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                                            {PlanPasses::kForwardAndBackward, options.semantics, options.target}));
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval()), dlhs = ArrayBuilder::ForOverwrite(plan.lhs_aval()),
               drhs = ArrayBuilder::ForOverwrite(plan.rhs_aval());
  Residuals residuals(Residuals::Operands::kBorrow);
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, context, out.ref(), &residuals, runtime));
  AQT_RETURN_IF_ERROR(plan.Backward(g, residuals, context, dlhs.ref(), drhs.ref(), runtime));
  return DotGeneralGradients{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

}  // namespace aqt
