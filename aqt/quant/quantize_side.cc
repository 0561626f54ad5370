#include "aqt/quant/quantize_side.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics.h"
#include "aqt/quant/numerics_rows.h"
#include "aqt/quant/qtensor_internal.h"
#include "aqt/quant/row_ops.h"
#include "aqt/quant/validate.h"

namespace aqt::internal {

absl::string_view ToString(Pass pass) {
  switch (pass) {
    case Pass::kFwd: return "fwd";
    case Pass::kDlhs: return "dlhs";
    case Pass::kDrhs: return "drhs";
  }
  return "?";
}

const PassNames& NamesOf(Pass pass) {
#define AQT_PASS_NAMES(pass)                                                                                         \
  {                                                                                                                  \
    {pass ".lhs.scale", pass ".lhs.bias", pass ".lhs.key", pass ".lhs.noise", pass ".lhs.qvalue", pass ".dg_lhs"},   \
        {pass ".rhs.scale", pass ".rhs.bias",   pass ".rhs.key",                                                     \
         pass ".rhs.noise", pass ".rhs.qvalue", pass ".dg_rhs"},                                                     \
        pass ".accum"                                                                                                \
  }
  static constexpr PassNames kPassNames[] = {AQT_PASS_NAMES("fwd"), AQT_PASS_NAMES("dlhs"), AQT_PASS_NAMES("drhs")};
#undef AQT_PASS_NAMES
  return kPassNames[static_cast<int>(pass)];
}

absl::StatusOr<SidePlan> MakeSidePlan(Pass pass, Side side, const Tensor& tensor, const Aval& x,
                                      absl::Span<const int64_t> axes) {
  SidePlan plan;
  plan.config = tensor;
  plan.x = x;
  plan.operand_dtype = x.dtype;
  const std::string where = absl::StrCat(ToString(pass), side == Side::kLhs ? ".lhs" : ".rhs");
  AQT_RETURN_IF_ERROR(Annotate(ValidateTensor(tensor), where));
  AQT_RETURN_IF_ERROR(Annotate(ValidateQuantizer(tensor.quantizer), where));
  if (!IsQuantized(tensor.quantizer.numerics)) return plan;

  absl::StatusOr<QuantizeSpec> spec = MakeQuantizeSpec(tensor.quantizer, x, axes);
  if (!spec.ok()) return Annotate(spec.status(), where);
  plan.spec = *std::move(spec);
  if (tensor.dequant_mode != DequantMode::kThisInput) plan.operand_dtype = plan.spec->q_dtype;
  return plan;
}

absl::Status CheckGiven(absl::string_view where, const SidePlan& plan, const QTensor& qtensor) {
  const auto invalid = [&](absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat(where, what)); };
  if (!plan.spec.has_value()) return invalid(": this side is not quantized");
  if (qtensor.sparsity_mask.has_value()) {
    return absl::UnimplementedError(absl::StrCat(where, ": sparsity masks are not available here"));
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
    return invalid(absl::StrCat(": its scales would give qvalues of dtype ", ToString(dtype), ", but the plan is for ",
                                ToString(plan.spec->q_dtype)));
  }
  if (qtensor.IsFull() && (qtensor.qvalue->dtype() != dtype || qtensor.qvalue->shape() != plan.x.shape)) {
    return invalid(absl::StrCat(" has the qvalue ", qtensor.qvalue->aval().ToString(), ", expected ",
                                Aval{dtype, plan.x.shape}.ToString()));
  }
  return absl::OkStatus();
}

double MaxMagnitude(const SidePlan& side) {
  const double container = -static_cast<double>(IntegerMin(side.spec->q_dtype));
  const auto* integer = std::get_if<IntSymmetric>(&side.spec->numerics);
  return integer != nullptr && integer->clip ? std::min(container, ClipBound(*integer)) : container;
}

QuantizedSide SideQuantizer::Quantize(const ArrayRef& calibrated, const ArrayRef& quantized) {
  if (!plan_.spec.has_value()) return {.operand = in_.x, .scale = {}};
  const QuantizeSpec& spec = *plan_.spec;

  QuantizedSide out;
  absl::InlinedVector<ArrayRef, 1> bias;
  if (in_.given != nullptr) {
    for (const Array& scale : in_.given->scale) out.scale.push_back(scale);
    for (const Array& b : in_.given->bias) bias.push_back(b);
  } else {
    out.scale.push_back(ComputeScaleOf(calibrated));
    if (spec.bias.has_value()) bias.push_back(*spec.bias);
  }
  for (const ArrayRef& scale : out.scale) Observe(names_.scale, scale);
  for (const ArrayRef& b : bias) Observe(names_.bias, BroadcastTo(b, plan_.x.shape));

  const Affine affine{.bias = bias, .scale = out.scale};
  const ArrayRef q = in_.given != nullptr && in_.given->IsFull() ? in_.given->qvalue->ref()
                                                                 : ComputeQvalueOf(quantized, affine);
  Observe(names_.qvalue, q);
  if (plan_.config.dequant_mode != DequantMode::kThisInput) {
    out.operand = q;
    return out;
  }
  const MutableArrayRef operand(plan_.x.dtype, plan_.x.shape,
                                Buffer(Workspace::kLhsOperand, Workspace::kRhsOperand, plan_.x.num_bytes()));
  DequantizeInto(q, affine, plan_.x.dtype, operand);
  out.operand = operand;
  return out;
}

std::optional<TensorDraws> SideQuantizer::Draws() const {
  if (!plan_.spec->draws_shape.has_value()) return std::nullopt;
  return TensorDraws{*in_.key, layout_, *plan_.spec->draws_shape};
}

ArrayRef SideQuantizer::ComputeScaleOf(const ArrayRef& calibrated) {
  const QuantizeSpec& spec = *plan_.spec;
  double* work = static_cast<double*>(Buffer(Workspace::kLhsScaleWork, Workspace::kRhsScaleWork,
                                             spec.num_work_doubles() * static_cast<int64_t>(sizeof(double))));
  void* scale = in_.keep_scale != nullptr ? in_.keep_scale
                                          : Buffer(Workspace::kLhsScale, Workspace::kRhsScale,
                                                   spec.num_scales() * SizeOf(spec.scale_dtype));
  ComputeScale(spec, calibrated, runtime_.arithmetic, Draws(), work, scale);
  return ArrayRef(spec.scale_dtype, spec.scale_shape, scale);
}

ArrayRef SideQuantizer::ComputeQvalueOf(const ArrayRef& x, const Affine& affine) {
  const QuantizeSpec& spec = *plan_.spec;
  const Aval q_aval{QvalueDType(spec.numerics, ScaledDType(x.dtype, affine)), x.shape};
  void* q = in_.keep_qvalue != nullptr ? in_.keep_qvalue
                                       : Buffer(Workspace::kLhsQvalue, Workspace::kRhsQvalue, q_aval.num_bytes());
  const std::optional<TensorDraws> draws = Draws();
  if (draws.has_value()) ObserveDraws(*draws);
  const MutableArrayRef q_ref(q_aval.dtype, q_aval.shape, q);
  QuantizeInto(spec.numerics, x, affine, draws, q_ref, in_.keep_mask);
  return q_ref;
}

void SideQuantizer::ObserveDraws(const TensorDraws& draws) {
  if (runtime_.observer == nullptr) return;
  const uint32_t key[] = {draws.key.hi, draws.key.lo};
  Observe(names_.key, ArrayRef(key, {2}));
  const auto* integer = std::get_if<IntSymmetric>(&plan_.spec->numerics);
  if (integer == nullptr) return;
  const int64_t n = draws.shape.num_elements();
  float* noise = static_cast<float*>(workspace_.Get(Workspace::kNoise, n * static_cast<int64_t>(sizeof(float))));
  NoiseInto(integer->noise->kind, draws, noise);
  Observe(names_.noise, ArrayRef(noise, draws.shape));
}

}  // namespace aqt::internal
