#include "aqt/quant/contraction/raw_dot.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/product_types.h"
#include "aqt/quant/contraction/scale_layout.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/validate.h"

namespace aqt::internal {
namespace {

const char* Name(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }

// ---- planning

// "dlhs.rhs: "...
absl::Status Invalid(Pass pass, Side side, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(ToString(pass), ".", Name(side), ": ", message));
}

absl::StatusOr<SidePlan> MakeSide(Pass pass, Side side, const Tensor& tensor, const Aval& x, const DotDims& own_dims) {
  const Axes axes = tensor.calibration_mode == CalibrationMode::kContractingAxis
                        ? own_dims.lhs_contracting
                        : RemainingAxes(x.shape.rank(), own_dims.lhs_contracting, own_dims.lhs_batch);
  return MakeSidePlan(pass, side, tensor, x, axes);
}

// The scale's shape must allow its dequantization; only custom shared axes can prevent it.
absl::Status CheckScaleLayout(const RawDotPlan& plan, Side side) {
  const SidePlan& own = plan.side(side);
  if (!own.spec.has_value() || own.config.dequant_mode == DequantMode::kThisInput) return absl::OkStatus();
  const ArrayRef scale(own.spec->scale_dtype, own.spec->scale_shape, nullptr);
  const int64_t other_rank = plan.side(Other(side)).x.shape.rank();
  const absl::StatusOr<ArrayRef> view = own.config.dequant_mode == DequantMode::kOutput
                                            ? ScaleToOutput(scale, side, plan.dims, other_rank)
                                            : ScaleToOther(scale, side, plan.dims, other_rank);
  return Annotate(view.status(),
                  absl::StrCat(ToString(plan.pass), ".", Name(side), ": ", ToString(own.config.dequant_mode)));
}

// The scale of one side is multiplied into the other side's operand.
absl::Status CheckOtherInput(const RawDotPlan& plan, Side side) {
  const SidePlan& own = plan.side(side);
  if (!own.spec.has_value() || own.config.dequant_mode != DequantMode::kOtherInput) return absl::OkStatus();
  const DType other = plan.side(Other(side)).operand_dtype;
  if (other == DType::kF32 || other == DType::kBF16) return absl::OkStatus();
  return Invalid(
      plan.pass, side,
      absl::StrCat("DEQUANT_MODE_OTHER_INPUT multiplies the scale into the other operand, which is ", ToString(other),
                   "; it must be f32 or bf16: do not quantize that side, or give it "
                   "DEQUANT_MODE_THIS_INPUT"));
}

// The dtype of the product, once ValidateAccumulator has passed.
absl::StatusOr<DType> ResolveAccumulator(const RawDotPlan& plan, std::optional<DType> wanted) {
  const DType dtype = ProductTypesOf(plan.lhs.operand_dtype, plan.rhs.operand_dtype, wanted).product;
  if (dtype != DType::kS32) return dtype;
  int64_t k = 1;
  for (const int64_t axis : plan.dims.lhs_contracting) k *= plan.lhs.x.shape[axis];
  const double largest = static_cast<double>(k) * MaxMagnitude(plan.lhs) * MaxMagnitude(plan.rhs);
  if (largest > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(plan.pass), ": a sum of ", k, " products of up to ",
                                                   MaxMagnitude(plan.lhs), " * ", MaxMagnitude(plan.rhs),
                                                   " can overflow the s32 accumulator; use fewer bits, or an f32 "
                                                   "accumulator"));
  }
  return DType::kS32;
}

}  // namespace

bool RawDotPlan::NeedsKey() const {
  return (lhs.spec.has_value() && lhs.spec->draws_shape.has_value()) ||
         (rhs.spec.has_value() && rhs.spec->draws_shape.has_value());
}

absl::StatusOr<RawDotPlan> MakeRawDotPlan(Pass pass, const DotGeneralRaw& config, const Aval& lhs_in,
                                          const Aval& rhs_in, const DotDims& dims) {
  RawDotPlan plan;
  plan.pass = pass;
  plan.dims = dims;
  plan.dtype = lhs_in.dtype;
  Aval lhs = lhs_in, rhs = rhs_in;
  if (config.local_aqt.has_value()) {
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const absl::Status status = ValidateTensorOfLocalAqt(side == Side::kLhs ? config.lhs : config.rhs);
      if (!status.ok()) return Invalid(pass, side, status.message());
    }
    absl::StatusOr<std::optional<LocalSplit>> split = MakeLocalSplit(*config.local_aqt, dims, lhs.shape, rhs.shape);
    if (!split.ok()) return Annotate(split.status(), ToString(pass));
    plan.split = *std::move(split);
  }
  if (plan.split.has_value()) {
    plan.dims = plan.split->dims;
    lhs.shape = plan.split->lhs.tiled_shape;
    rhs.shape = plan.split->rhs.tiled_shape;
  }
  plan.product_shape = DotOutputShape(plan.dims, lhs.shape, rhs.shape);
  // Tiles and shards of one operand are axes of the other and of the product.
  for (const Shape& shape : {lhs.shape, rhs.shape, plan.product_shape}) {
    AQT_RETURN_IF_ERROR(Annotate(CheckShape(shape), ToString(pass)));
  }
  AQT_RETURN_IF_ERROR(Annotate(ValidateMidAlphas(config), ToString(pass)));
  plan.lhs_mid_alpha = config.lhs_mid_alpha;
  plan.rhs_mid_alpha = config.rhs_mid_alpha;
  AQT_ASSIGN_OR_RETURN(plan.lhs, MakeSide(pass, Side::kLhs, config.lhs, lhs, plan.dims));
  AQT_ASSIGN_OR_RETURN(plan.rhs, MakeSide(pass, Side::kRhs, config.rhs, rhs, plan.dims.Swapped()));
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    AQT_RETURN_IF_ERROR(CheckScaleLayout(plan, side));
    AQT_RETURN_IF_ERROR(CheckOtherInput(plan, side));
  }
  // Two 4-bit operands are widened (see RunGeneral in raw_dot_run.cc).
  if (plan.lhs.operand_dtype == DType::kS4 && plan.rhs.operand_dtype == DType::kS4) {
    plan.lhs.operand_dtype = plan.rhs.operand_dtype = DType::kS8;
  }
  AQT_RETURN_IF_ERROR(Annotate(ValidateAccumulator(config), ToString(pass)));
  AQT_ASSIGN_OR_RETURN(plan.accumulator_dtype, ResolveAccumulator(plan, config.dg_accumulator_dtype));
  return plan;
}

}  // namespace aqt::internal
