#include "aqt/quant/contraction/engine/quantize_side.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/qtensor_internal.h"

namespace aqt::internal {

Axes CalibrationAxes(CalibrationMode mode, const OperandAxes& axes) {
  return mode == CalibrationMode::kContractingAxis ? axes.k : axes.rows;
}

absl::StatusOr<SidePlan> MakeSidePlan(Pass pass, Side side, const TensorConfig& tensor, const Aval& x, OperandAxes axes,
                                      absl::Span<const int64_t> shared, const Semantics& semantics) {
  SidePlan plan;
  plan.config = tensor;
  plan.x = x;
  plan.axes = std::move(axes);
  plan.operand_dtype = x.dtype;
  const std::string where = absl::StrCat(ToString(pass), ".", Name(side));
  AQT_RETURN_IF_ERROR(Annotate(ValidateTensor(tensor), where));
  if (pass == Pass::kFwd) AQT_RETURN_IF_ERROR(Annotate(ValidateForwardModes(tensor), where));
  AQT_RETURN_IF_ERROR(Annotate(ValidateQuantizer(tensor.quantizer), where));
  if (!IsQuantized(tensor.quantizer.numerics)) return plan;

  absl::StatusOr<QuantizeSpec> spec = MakeQuantizeSpec(tensor.quantizer, x, shared);
  if (!spec.ok()) return Annotate(spec.status(), where);
  AQT_RETURN_IF_ERROR(Annotate(ValidateCompat(*spec, semantics.compat), where));
  plan.spec = *std::move(spec);
  if (tensor.dequant_mode != DequantMode::kThisInput) plan.operand_dtype = plan.spec->q_dtype;
  plan.step = FusedStep(*plan.spec, semantics);
  plan.row_scales = FusedScalesOf(*plan.spec, plan.axes);
  return plan;
}

absl::Status ApplySparsityMask(absl::string_view where, QTensor& qtensor) {
  if (!qtensor.sparsity_mask.has_value()) return absl::OkStatus();
  if (!qtensor.IsFull()) {
    return absl::UnimplementedError(absl::StrCat(where, " has a sparsity mask but no qvalue; give it a qvalue"));
  }
  const Shape& shape = qtensor.qvalue->shape();
  if (absl::Status s = CheckAffine(qtensor, shape); !s.ok()) return Annotate(s, where);
  const Array mask = Cast(BroadcastTo(*qtensor.sparsity_mask, shape), DType::kF32);
  ArrayBuilder masked(qtensor.qvalue->aval());
  const int64_t size = SizeOf(masked.aval().dtype);
  const char* from = static_cast<const char*>(qtensor.qvalue->data());
  char* to = static_cast<char*>(masked.data());  // zeros
  const absl::Span<const float> keep = mask.View<float>();
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i] != 0 && keep[i] != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has ", keep[i], " in its sparsity mask (element ", i, "), expected only 0 and 1"));
    }
    const int64_t offset = static_cast<int64_t>(i) * size;
    if (keep[i] == 1) std::memcpy(to + offset, from + offset, size);
  }
  qtensor.qvalue = std::move(masked).Build();
  qtensor.sparsity_mask.reset();
  return absl::OkStatus();
}

absl::Status CheckPrepared(absl::string_view where, const SidePlan& plan, const QTensor& qtensor,
                           const Panels* packed) {
  const auto invalid = [&](absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat(where, what)); };
  const Aval* value = qtensor.IsFull() ? &qtensor.qvalue->aval() : packed != nullptr ? &packed->source : nullptr;
  if (!plan.spec.has_value()) {
    if (value == nullptr || !qtensor.scale.empty() || !qtensor.bias.empty()) {
      return invalid(": this side is not quantized");
    }
    if (*value == plan.x) return absl::OkStatus();
    return invalid(absl::StrCat(" is ", value->ToString(), ", but the plan is for ", plan.x.ToString()));
  }
  if (qtensor.tiling_state.has_value() && qtensor.tiling_state->tiled_shape != plan.x.shape) {
    return invalid(absl::StrCat(" is tiled as ", qtensor.tiling_state->tiled_shape.ToString(), ", but the plan is for ",
                                plan.x.shape.ToString(), "; give the configuration the same tiling"));
  }
  if (qtensor.scale.empty()) return invalid(" has no scale");
  if (!qtensor.bias.empty() && plan.config.dequant_mode != DequantMode::kThisInput) {
    return invalid(" has a bias, which needs DEQUANT_MODE_THIS_INPUT");
  }
  if (absl::Status s = CheckAffine(qtensor, plan.x.shape); !s.ok()) return Annotate(s, where);
  const AffineOf affine(qtensor);
  const DType dtype = QvalueDType(plan.spec->numerics, ScaledDType(plan.x.dtype, affine.get()));
  if (dtype != plan.spec->q_dtype) {
    return invalid(absl::StrCat(": its scales, biases and mask would give qvalues of dtype ", ToString(dtype),
                                ", but the plan is for ", ToString(plan.spec->q_dtype)));
  }
  if (value != nullptr && (value->dtype != dtype || value->shape != plan.x.shape)) {
    return invalid(
        absl::StrCat(" has the qvalue ", value->ToString(), ", expected ", Aval{dtype, plan.x.shape}.ToString()));
  }
  return absl::OkStatus();
}

void AppendStateSlots(Pass pass, Side side, const SidePlan& plan, std::vector<StateSlot>& slots) {
  if (!plan.spec.has_value()) return;
  for (const Statistic& statistic : plan.spec->statistics) {
    slots.push_back({.operand = absl::StrCat(ToString(pass), ".", Name(side)),
                     .side = side,
                     .name = std::string(statistic.name),
                     .initial = InitialValue(statistic),
                     .updated_in_train = UpdatesIn(QuantMode::kTrain, plan.spec->calibration)});
  }
}

namespace {

QuantMode ModeOf(const Context& context, Side side) {
  return side == Side::kLhs ? context.quant_mode : context.rhs_quant_mode.value_or(context.quant_mode);
}

std::string NameOf(const StateSlot& slot) { return absl::StrCat(slot.operand, "/", slot.name); }

absl::Status CheckStateArray(absl::string_view call, const char* which, const StateSlot& slot, const ArrayRef& array) {
  if (array.aval() == slot.initial.aval() && array.IsDense() && array.data != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(call, ": the ", which, " statistic ", NameOf(slot), " is ",
                                                 array.aval().ToString(), array.IsDense() ? "" : " with strides",
                                                 array.data == nullptr ? " without data" : "",
                                                 ", but the plan is for a dense ", slot.initial.aval().ToString()));
}

}  // namespace

absl::Status FillStatistics(absl::string_view call, absl::Span<const StateSlot> slots, size_t begin,
                            const QuantizeSpec& spec, Side side, const Context& context, const Compat& compat,
                            const StateArrays& state, CallOperand* operand) {
  operand->mode = ModeOf(context, side);
  const auto complete = [&](const char* which, size_t count) {
    if (count == slots.size()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        call, ": ", slots[begin].operand, " has a calibration with state: pass StateArrays with ", slots.size(), " ",
        which, " arrays, not ", count, "; StateSlot::initial has those of the first call"));
  };
  AQT_RETURN_IF_ERROR(complete("old", state.old.size()));
  const bool updates = UpdatesIn(operand->mode, spec.calibration);
  if (updates) AQT_RETURN_IF_ERROR(complete("updated", state.updated.size()));
  for (size_t i = 0; i < spec.statistics.size(); ++i) {
    const StateSlot& slot = slots[begin + i];
    AQT_RETURN_IF_ERROR(CheckStateArray(call, "old", slot, state.old[begin + i]));
    operand->statistics.old[i] = state.old[begin + i].data;
    if (!updates) continue;
    AQT_RETURN_IF_ERROR(CheckStateArray(call, "updated", slot, state.updated[begin + i]));
    operand->statistics.updated[i] = state.updated[begin + i].data;
  }
  const absl::Status seen = CheckSeen(spec, operand->mode, compat, operand->statistics.old);
  if (seen.ok()) return seen;  // without an allocation
  return Annotate(seen, absl::StrCat(call, ": ", slots[begin].operand));
}

double MaxMagnitude(const SidePlan& side, const Compat& compat) {
  const double container = -static_cast<double>(IntegerMin(side.spec->q_dtype));
  const auto* integer = std::get_if<IntSymmetric>(&side.spec->numerics);
  if (integer == nullptr || !integer->clip) return container;
  return std::min(container, -static_cast<double>(ClipRangeOf(*integer, compat, DType::kF32).lo));
}

void AddQuantizeSlots(const SidePlan& plan, Side side, bool packs, SlotSizes& sizes) {
  const bool lhs = side == Side::kLhs;
  if (!plan.is_quantized() || (packs && plan.row_scales != FusedScales::kNo)) return;
  const QuantizeSpec& spec = *plan.spec;
  sizes.Add(OfSide(lhs, ScratchSlot::kLhsScaleWork),
            std::max(spec.num_work_doubles() * static_cast<int64_t>(sizeof(double)),
                     spec.num_scales() * static_cast<int64_t>(sizeof(float))));
  sizes.Add(OfSide(lhs, ScratchSlot::kLhsScale), spec.num_scales() * SizeOf(spec.scale_dtype));
  if (!packs) sizes.Add(OfSide(lhs, ScratchSlot::kLhsQvalue), plan.x.shape.num_elements() * SizeOf(spec.q_dtype));
  if (plan.config.dequant_mode == DequantMode::kThisInput) {
    sizes.Add(OfSide(lhs, ScratchSlot::kLhsOperand), plan.x.num_bytes());
  }
}

QuantizedSide SideQuantizer::Quantize(const ArrayRef& calibrated, const ArrayRef& quantized) {
  if (!plan_.spec.has_value()) return {.operand = calibrated, .qvalue = calibrated, .scale = {}};
  const QuantizeSpec& spec = *plan_.spec;

  QuantizedSide out;
  absl::InlinedVector<ArrayRef, 1> bias;
  std::optional<ScaleAndQvalue> done;
  if (in_.prepared == nullptr && calibrated.data == quantized.data) done = QuantizeByKernel(quantized);
  if (done.has_value()) {
    out.scale.push_back(done->scale);
  } else if (in_.prepared != nullptr) {
    for (const Array& scale : in_.prepared->scale) out.scale.push_back(scale);
    for (const Array& b : in_.prepared->bias) bias.push_back(b);
  } else {
    out.scale.push_back(ComputeScaleOf(calibrated));
    if (spec.bias.has_value()) bias.push_back(*spec.bias);
  }
  for (const ArrayRef& scale : out.scale) context_.Observe(names_.scale, scale);
  for (const ArrayRef& b : bias)
    context_.Observe(names_.bias, in_.prepared != nullptr ? b : BroadcastTo(b, spec.bias_shape));

  if (!in_.has_qvalue()) {
    if (const std::optional<TensorDraws> draws = Draws(); draws.has_value()) ObserveDraws(*draws);
  }
  const Affine affine{.bias = bias, .scale = out.scale, .rule = ScaleRuleOf(context_.semantics)};
  const ArrayRef q = done.has_value()   ? done->qvalue
                     : in_.has_qvalue() ? in_.prepared->qvalue->ref()
                                        : ComputeQvalueOf(calibrated, quantized, affine);
  context_.Observe(names_.qvalue, q);
  out.qvalue = q;
  if (plan_.config.dequant_mode != DequantMode::kThisInput) {
    out.operand = q;
    return out;
  }
  const MutableArrayRef operand(plan_.x.dtype, plan_.x.shape, Buffer(ScratchSlot::kLhsOperand, plan_.x.num_bytes()));
  DequantizeInto(q, affine, plan_.x.dtype, operand, context_.runtime.executor);
  out.operand = operand;
  return out;
}

std::optional<TensorDraws> SideQuantizer::Draws() const {
  if (!plan_.spec->draws_shape.has_value()) return std::nullopt;
  return TensorDraws{*in_.key, context_.semantics.prng_layout, *plan_.spec->draws_shape};
}

double* SideQuantizer::ScaleWork() {
  return static_cast<double*>(
      Buffer(ScratchSlot::kLhsScaleWork, plan_.spec->num_work_doubles() * static_cast<int64_t>(sizeof(double))));
}

void* SideQuantizer::ScaleBuffer() {
  if (in_.keep_scale != nullptr) return in_.keep_scale;
  return Buffer(ScratchSlot::kLhsScale, plan_.spec->num_scales() * SizeOf(plan_.spec->scale_dtype));
}

void* SideQuantizer::QvalueBuffer(const Aval& aval) {
  if (in_.keep_qvalue != nullptr) return in_.keep_qvalue;
  return Buffer(ScratchSlot::kLhsQvalue, aval.num_bytes());
}

std::optional<SideQuantizer::ScaleAndQvalue> SideQuantizer::QuantizeByKernel(const ArrayRef& x) {
  const QuantizeSpec& spec = *plan_.spec;
  if (!plan_.step.has_value() || !std::holds_alternative<AbsMax>(spec.calibration) || in_.keep_mask != nullptr) {
    return std::nullopt;
  }
  if (!x.IsDense() || x.shape.rank() > kernels::AxisGroup::kMaxRank || spec.shared_axes.empty()) return std::nullopt;
  // One row per scale, in row-major order like the scales.
  OperandAxes axes;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    const bool shared = std::find(spec.shared_axes.begin(), spec.shared_axes.end(), axis) != spec.shared_axes.end();
    (shared ? axes.k : axes.rows).push_back(axis);
  }
  kernels::QuantizeArgs args;
  std::optional<NoisyOperand> noisy;
  if (const std::optional<TensorDraws> draws = Draws(); draws.has_value()) {
    noisy = NoisyOperandOf(x, axes, NumbersOf(spec.numerics, spec.scaled_dtype, *draws), draws->shape);
    args.noise = &noisy->noise;
  }
  args.src = noisy.has_value() ? noisy->source : kernels::OperandOf(x, axes);
  const int64_t n = spec.num_scales();
  const Aval q_aval{spec.q_dtype, x.shape};
  args.step = *plan_.step;
  args.scale = static_cast<float*>(Buffer(ScratchSlot::kLhsScaleWork, n * static_cast<int64_t>(sizeof(float))));
  args.qvalues = QvalueBuffer(q_aval);
  const kernels::Target target = context_.target;
  kernels::QuantizePack(
      target, kernels::ChooseGemm({}, target, /*rows=*/1).lhs, args,
      [&](float* absmax, int64_t count) { ScalesFromAbsMax(spec, context_.semantics, absmax, count); },
      context_.runtime.executor);
  void* scale = ScaleBuffer();
  StoreRow(spec.scale_dtype, args.scale, n, scale, 0, 1);
  return ScaleAndQvalue{ArrayRef(spec.scale_dtype, spec.scale_shape, scale),
                        ArrayRef(q_aval.dtype, q_aval.shape, args.qvalues)};
}

ArrayRef SideQuantizer::ComputeScaleOf(const ArrayRef& calibrated) {
  const QuantizeSpec& spec = *plan_.spec;
  double* work = ScaleWork();
  void* scale = ScaleBuffer();
  if (spec.has_state()) {
    ComputeScaleWithState(spec, calibrated, in_.mode, context_.semantics, in_.statistics, work, scale);
  } else {
    ComputeScale(spec, calibrated, context_.semantics, Draws(), work, scale);
  }
  return ArrayRef(spec.scale_dtype, spec.scale_shape, scale);
}

ArrayRef SideQuantizer::ComputeQvalueOf(const ArrayRef& calibrated, const ArrayRef& x, const Affine& affine) {
  const QuantizeSpec& spec = *plan_.spec;
  const Aval q_aval{QvalueDType(spec.numerics, ScaledDType(x.dtype, affine)), x.shape};
  void* q = QvalueBuffer(q_aval);
  const MutableArrayRef q_ref(q_aval.dtype, q_aval.shape, q);
  const bool at_bound = in_.keep_mask != nullptr && context_.semantics.compat.clip_gradient_at_bound;
  QuantizeInto(spec.numerics, context_.semantics.compat, x, affine, Draws(), q_ref, at_bound ? nullptr : in_.keep_mask,
               {.target = context_.target, .executor = context_.runtime.executor});
  if (at_bound) BoundMaskInto(spec, calibrated, x, context_.semantics, ScaleWork(), in_.keep_mask);
  return q_ref;
}

void SideQuantizer::ObserveDraws(const TensorDraws& draws) {
  if (context_.runtime.observer == nullptr) return;
  const uint32_t key[] = {draws.key.hi, draws.key.lo};
  context_.Observe(names_.key, ArrayRef(key, {2}));
  const auto* integer = std::get_if<IntSymmetric>(&plan_.spec->numerics);
  if (integer == nullptr) return;
  const int64_t n = draws.shape.num_elements();
  float* noise =
      static_cast<float*>(context_.workspace.Get(ScratchSlot::kNoise, n * static_cast<int64_t>(sizeof(float))));
  NoiseInto(integer->noise->kind, draws, noise, context_.target);
  context_.Observe(names_.noise, ArrayRef(noise, draws.shape));
}

}  // namespace aqt::internal
