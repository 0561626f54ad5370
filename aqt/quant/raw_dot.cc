#include "aqt/quant/raw_dot.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/arith.h"
#include "aqt/quant/contract.h"
#include "aqt/quant/numerics.h"
#include "aqt/quant/numerics_rows.h"
#include "aqt/quant/qtensor_internal.h"
#include "aqt/quant/row_ops.h"
#include "aqt/quant/scale_layout.h"

namespace aqt::internal {
namespace {

const char* Name(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }

// ---- planning

// "dlhs.rhs: "...
absl::Status Invalid(Pass pass, Side side, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(ToString(pass), ".", Name(side), ": ", message));
}

absl::Status CheckModes(Pass pass, Side side, const Tensor& tensor) {
  const bool contracting = tensor.calibration_mode == CalibrationMode::kContractingAxis;
  if (tensor.dequant_mode == DequantMode::kOutput && !contracting) {
    return Invalid(pass, side, "DEQUANT_MODE_OUTPUT with CALIBRATION_MODE_REMAINING_AXIS: a scale that varies along a "
                               "contracting axis cannot be applied to the product; use CONTRACTING_AXIS, or THIS_INPUT");
  }
  if (tensor.dequant_mode == DequantMode::kOtherInput && contracting) {
    return Invalid(pass, side, "DEQUANT_MODE_OTHER_INPUT with CALIBRATION_MODE_CONTRACTING_AXIS: a scale that varies "
                               "along a remaining axis cannot be applied to the other operand; use REMAINING_AXIS");
  }
  return absl::OkStatus();
}

absl::StatusOr<SidePlan> MakeSide(Pass pass, Side side, const Tensor& tensor, const Aval& x, const DotDims& own_dims) {
  SidePlan plan;
  plan.config = tensor;
  plan.x = x;
  plan.operand_dtype = x.dtype;
  AQT_RETURN_IF_ERROR(CheckModes(pass, side, tensor));
  const std::string where = absl::StrCat(ToString(pass), ".", Name(side));
  AQT_RETURN_IF_ERROR(Annotate(ValidateQuantizer(tensor.quantizer), where));
  if (!IsQuantized(tensor.quantizer.numerics)) return plan;

  const Axes axes = tensor.calibration_mode == CalibrationMode::kContractingAxis
                        ? own_dims.lhs_contracting
                        : RemainingAxes(x.shape.rank(), own_dims.lhs_contracting, own_dims.lhs_batch);
  absl::StatusOr<QuantizeSpec> spec = MakeQuantizeSpec(tensor.quantizer, x, axes);
  if (!spec.ok()) return Annotate(spec.status(), where);
  plan.spec = *std::move(spec);
  if (plan.spec->bias.has_value() && tensor.dequant_mode != DequantMode::kThisInput) {
    return Invalid(pass, side, absl::StrCat("a calibration with a bias needs DEQUANT_MODE_THIS_INPUT, not ",
                                            ToString(tensor.dequant_mode)));
  }
  if (tensor.dequant_mode != DequantMode::kThisInput) plan.operand_dtype = plan.spec->q_dtype;
  return plan;
}

// The scale's shape must allow its dequantization; only custom shared axes can make it not so.
absl::Status CheckScaleLayout(const RawDotPlan& plan, Side side) {
  const SidePlan& own = plan.side(side);
  if (!own.spec.has_value() || own.config.dequant_mode == DequantMode::kThisInput) return absl::OkStatus();
  const ArrayRef scale(own.spec->scale_dtype, own.spec->scale_shape, nullptr);
  const int64_t other_rank = plan.side(Other(side)).x.shape.rank();
  const absl::StatusOr<ArrayRef> view = own.config.dequant_mode == DequantMode::kOutput
                                            ? ScaleToOutput(scale, side, plan.dims, other_rank)
                                            : ScaleToOther(scale, side, plan.dims, other_rank);
  return Annotate(view.status(), absl::StrCat(ToString(plan.pass), ".", Name(side), ": ",
                                              ToString(own.config.dequant_mode)));
}

// The scale of one side is multiplied into the other side's operand.
absl::Status CheckOtherInput(const RawDotPlan& plan, Side side) {
  const SidePlan& own = plan.side(side);
  if (!own.spec.has_value() || own.config.dequant_mode != DequantMode::kOtherInput) return absl::OkStatus();
  const DType other = plan.side(Other(side)).operand_dtype;
  if (other == DType::kF32 || other == DType::kBF16) return absl::OkStatus();
  return Invalid(plan.pass, side,
                 absl::StrCat("DEQUANT_MODE_OTHER_INPUT multiplies the scale into the other operand, which is ",
                              ToString(other), "; it must be f32 or bf16: do not quantize that side, or give it "
                              "DEQUANT_MODE_THIS_INPUT"));
}

// Largest |qvalue| of an integer container.
double MaxMagnitude(const SidePlan& side) {
  const double container = -static_cast<double>(IntegerMin(side.spec->q_dtype));
  const auto* integer = std::get_if<IntSymmetric>(&side.spec->numerics);
  return integer != nullptr && integer->clip ? std::min(container, ClipBound(*integer)) : container;
}

absl::StatusOr<DType> ResolveAccumulator(const RawDotPlan& plan, std::optional<DType> wanted) {
  const DType lhs = plan.lhs.operand_dtype, rhs = plan.rhs.operand_dtype;
  const absl::string_view pass = ToString(plan.pass);
  if (!wanted.has_value()) return Promote(lhs, rhs);
  if (*wanted == DType::kS32) {
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const DType dtype = plan.side(side).operand_dtype;
      if (dtype == DType::kS4 || dtype == DType::kS8) continue;
      return Invalid(plan.pass, side,
                     absl::StrCat("the accumulator is s32, but this operand of the product is ", ToString(dtype),
                                  "; s32 needs s4 or s8 on both sides (so no DEQUANT_MODE_THIS_INPUT): leave "
                                  "dg_accumulator_dtype out"));
    }
    int64_t k = 1;
    for (const int64_t axis : plan.dims.lhs_contracting) k *= plan.lhs.x.shape[axis];
    const double largest = static_cast<double>(k) * MaxMagnitude(plan.lhs) * MaxMagnitude(plan.rhs);
    if (largest > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(pass, ": a sum of ", k, " products of up to ",
                                                     MaxMagnitude(plan.lhs), " * ", MaxMagnitude(plan.rhs),
                                                     " can overflow the s32 accumulator; use fewer bits, or an f32 "
                                                     "accumulator"));
    }
    return DType::kS32;
  }
  if (IsArithmeticFloat(*wanted)) return *wanted;
  return absl::InvalidArgumentError(
      absl::StrCat(pass, ": accumulator dtype ", ToString(*wanted), ", expected s32, f32, bf16, f16 or none"));
}

// ---- running

// Names that the observer gets, by pass and side.
struct SideNames {
  absl::string_view scale, bias, key, noise, qvalue, operand;
};
struct PassNames {
  absl::string_view pass;
  SideNames lhs, rhs;
  absl::string_view accum;
};
#define AQT_PASS_NAMES(pass)                                                                                     \
  {                                                                                                              \
    pass, {pass ".lhs.scale", pass ".lhs.bias",   pass ".lhs.key",                                               \
           pass ".lhs.noise", pass ".lhs.qvalue", pass ".dg_lhs"},                                               \
        {pass ".rhs.scale", pass ".rhs.bias",   pass ".rhs.key",                                                 \
         pass ".rhs.noise", pass ".rhs.qvalue", pass ".dg_rhs"},                                                 \
        pass ".accum"                                                                                            \
  }
constexpr PassNames kPassNames[] = {AQT_PASS_NAMES("fwd"), AQT_PASS_NAMES("dlhs"), AQT_PASS_NAMES("drhs")};
#undef AQT_PASS_NAMES

// A side after quantization.
struct QuantizedSide {
  ArrayRef operand;                          // what the contraction will receive
  absl::InlinedVector<ArrayRef, 1> scale;    // in the layout of x
};

class Run {
 public:
  Run(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Runtime& runtime)
      : plan_(plan), call_(call), workspace_(workspace), runtime_(runtime), names_(kPassNames[static_cast<int>(plan.pass)]) {}

  void operator()() {
    QuantizedSide lhs = QuantizeSide(Side::kLhs), rhs = QuantizeSide(Side::kRhs);
    if (plan_.lhs.spec.has_value() && plan_.lhs.config.dequant_mode == DequantMode::kOtherInput) {
      MultiplyIntoOther(Side::kLhs, lhs, rhs);
    }
    if (plan_.rhs.spec.has_value() && plan_.rhs.config.dequant_mode == DequantMode::kOtherInput) {
      MultiplyIntoOther(Side::kRhs, rhs, lhs);
    }
    // As AQT on CPU does: two 4-bit operands are widened.
    if (lhs.operand.dtype == DType::kS4 && rhs.operand.dtype == DType::kS4) {
      lhs.operand.dtype = rhs.operand.dtype = DType::kS8;
    }
    Observe(names_.lhs.operand, lhs.operand);
    Observe(names_.rhs.operand, rhs.operand);

    const DType accumulator = plan_.accumulator_dtype;
    const MutableArrayRef product(
        accumulator, plan_.product_shape,
        workspace_.Get(Workspace::kAccumulator, plan_.product_shape.num_elements() * SizeOf(accumulator)));
    Contract(lhs.operand, rhs.operand, plan_.dims, product, workspace_, runtime_);
    Observe(names_.accum, product);

    absl::InlinedVector<ArrayRef, 2> scales;
    AppendOutputScales(Side::kLhs, lhs, scales);
    AppendOutputScales(Side::kRhs, rhs, scales);
    DequantizeInto(product, {.scale = scales}, plan_.dtype, call_.out);
  }

 private:
  void Observe(absl::string_view name, const ArrayRef& value) const {
    if (runtime_.observer != nullptr) runtime_.observer->OnTensor(name, value);
  }
  void* Buffer(Side side, Workspace::Slot lhs, Workspace::Slot rhs, int64_t bytes) {
    return workspace_.Get(side == Side::kLhs ? lhs : rhs, bytes);
  }

  QuantizedSide QuantizeSide(Side side) {
    const SidePlan& plan = plan_.side(side);
    const RawOperand& in = side == Side::kLhs ? call_.lhs : call_.rhs;
    const SideNames& names = side == Side::kLhs ? names_.lhs : names_.rhs;
    if (!plan.spec.has_value()) return {.operand = in.x, .scale = {}};
    const QuantizeSpec& spec = *plan.spec;

    QuantizedSide out;
    absl::InlinedVector<ArrayRef, 1> bias;
    const ArrayRef* mask = nullptr;
    ArrayRef mask_view;
    if (in.given != nullptr) {
      for (const Array& scale : in.given->scale) out.scale.push_back(scale);
      for (const Array& b : in.given->bias) bias.push_back(b);
      if (in.given->sparsity_mask.has_value()) {
        mask_view = *in.given->sparsity_mask;
        mask = &mask_view;
      }
    } else {
      out.scale.push_back(ComputeScaleOf(side, spec, in));
      if (spec.bias.has_value()) bias.push_back(*spec.bias);
    }
    for (const ArrayRef& scale : out.scale) Observe(names.scale, scale);
    for (const ArrayRef& b : bias) Observe(names.bias, BroadcastTo(b, plan.x.shape));

    const Affine affine{.bias = bias, .mask = mask, .scale = out.scale};
    const ArrayRef q = in.given != nullptr && in.given->IsFull() ? in.given->qvalue->ref()
                                                                 : ComputeQvalueOf(side, spec, in, affine, names);
    Observe(names.qvalue, q);
    if (plan.config.dequant_mode != DequantMode::kThisInput) {
      out.operand = q;
      return out;
    }
    const MutableArrayRef operand(plan.x.dtype, plan.x.shape,
                                  Buffer(side, Workspace::kLhsOperand, Workspace::kRhsOperand, plan.x.num_bytes()));
    DequantizeInto(q, affine, plan.x.dtype, operand);
    out.operand = operand;
    return out;
  }

  ArrayRef ComputeScaleOf(Side side, const QuantizeSpec& spec, const RawOperand& in) {
    const int64_t n = spec.num_scales();
    float* work = static_cast<float*>(
        Buffer(side, Workspace::kLhsScaleWork, Workspace::kRhsScaleWork, n * static_cast<int64_t>(sizeof(float))));
    void* scale = in.keep_scale != nullptr
                      ? in.keep_scale
                      : Buffer(side, Workspace::kLhsScale, Workspace::kRhsScale, n * SizeOf(spec.scale_dtype));
    ComputeScale(spec, in.x, runtime_.arithmetic, work, scale);
    return ArrayRef(spec.scale_dtype, spec.scale_shape, scale);
  }

  ArrayRef ComputeQvalueOf(Side side, const QuantizeSpec& spec, const RawOperand& in, const Affine& affine,
                           const SideNames& names) {
    const Aval q_aval{QvalueDType(spec.numerics, ScaledDType(in.x.dtype, affine)), in.x.shape};
    void* q = in.keep_qvalue != nullptr
                  ? in.keep_qvalue
                  : Buffer(side, Workspace::kLhsQvalue, Workspace::kRhsQvalue, q_aval.num_bytes());
    std::optional<TensorDraws> draws;
    if (spec.draws_shape.has_value()) draws = {*in.key, call_.layout, *spec.draws_shape};
    if (draws.has_value()) ObserveDraws(spec, *draws, names);
    const MutableArrayRef q_ref(q_aval.dtype, q_aval.shape, q);
    QuantizeInto(spec.numerics, in.x, affine, draws, q_ref, in.keep_mask);
    return q_ref;
  }

  void ObserveDraws(const QuantizeSpec& spec, const TensorDraws& draws, const SideNames& names) {
    if (runtime_.observer == nullptr) return;
    const uint32_t key[] = {draws.key.hi, draws.key.lo};
    Observe(names.key, ArrayRef(key, {2}));
    const auto* integer = std::get_if<IntSymmetric>(&spec.numerics);
    if (integer == nullptr) return;
    const int64_t n = draws.shape.num_elements();
    float* noise = static_cast<float*>(workspace_.Get(Workspace::kNoise, n * static_cast<int64_t>(sizeof(float))));
    NoiseInto(integer->noise->kind, draws, noise);
    Observe(names.noise, ArrayRef(noise, draws.shape));
  }

  // other.operand *= each scale of `own`, in the dtype of the other operand.
  void MultiplyIntoOther(Side side, const QuantizedSide& own, QuantizedSide& other) {
    const Aval aval = other.operand.aval();
    const Side other_side = Other(side);
    const MutableArrayRef product(
        aval.dtype, aval.shape, Buffer(other_side, Workspace::kLhsOperand, Workspace::kRhsOperand, aval.num_bytes()));
    for (const ArrayRef& scale : own.scale) {
      const ArrayRef view = *ScaleToOther(scale, side, plan_.dims, aval.shape.rank());  // checked when planned
      MultiplyInto(other.operand, view, aval.dtype, product);
      other.operand = product;
    }
  }

  void AppendOutputScales(Side side, const QuantizedSide& own, absl::InlinedVector<ArrayRef, 2>& scales) const {
    const SidePlan& plan = plan_.side(side);
    if (!plan.spec.has_value() || plan.config.dequant_mode != DequantMode::kOutput) return;
    const int64_t other_rank = plan_.side(Other(side)).x.shape.rank();
    for (const ArrayRef& scale : own.scale) scales.push_back(*ScaleToOutput(scale, side, plan_.dims, other_rank));
  }

  const RawDotPlan& plan_;
  const RawCall& call_;
  Workspace& workspace_;
  const Runtime& runtime_;
  const PassNames& names_;
};

}  // namespace

absl::string_view ToString(Pass pass) { return kPassNames[static_cast<int>(pass)].pass; }

bool RawDotPlan::NeedsKey() const {
  return (lhs.spec.has_value() && lhs.spec->draws_shape.has_value()) ||
         (rhs.spec.has_value() && rhs.spec->draws_shape.has_value());
}

absl::StatusOr<RawDotPlan> MakeRawDotPlan(Pass pass, const DotGeneralRaw& config, const Aval& lhs, const Aval& rhs,
                                          const DotDims& dims) {
  if (config.local_aqt.has_value()) {
    return absl::UnimplementedError(absl::StrCat(ToString(pass), ": local_aqt is not available; leave it out"));
  }
  if (config.lhs_mid_alpha.has_value() || config.rhs_mid_alpha.has_value()) {
    return absl::UnimplementedError(absl::StrCat(ToString(pass), ": mid alphas are not available; leave them out"));
  }
  RawDotPlan plan;
  plan.pass = pass;
  plan.dims = dims;
  plan.dtype = lhs.dtype;
  plan.product_shape = DotOutputShape(dims, lhs.shape, rhs.shape);
  AQT_ASSIGN_OR_RETURN(plan.lhs, MakeSide(pass, Side::kLhs, config.lhs, lhs, dims));
  AQT_ASSIGN_OR_RETURN(plan.rhs, MakeSide(pass, Side::kRhs, config.rhs, rhs, dims.Swapped()));
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    AQT_RETURN_IF_ERROR(CheckScaleLayout(plan, side));
    AQT_RETURN_IF_ERROR(CheckOtherInput(plan, side));
  }
  // Two 4-bit operands are widened (see Run).
  if (plan.lhs.operand_dtype == DType::kS4 && plan.rhs.operand_dtype == DType::kS4) {
    plan.lhs.operand_dtype = plan.rhs.operand_dtype = DType::kS8;
  }
  AQT_ASSIGN_OR_RETURN(plan.accumulator_dtype, ResolveAccumulator(plan, config.dg_accumulator_dtype));
  return plan;
}

void RunRawDot(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Runtime& runtime) {
  Run(plan, call, workspace, runtime)();
}

}  // namespace aqt::internal
