#include "aqt/quant/contraction/engine/contraction_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/scale_layout.h"

namespace aqt::internal {
namespace {

// use_fwd_quant is set on the rhs of a backward pass; `side` is the forward operand that it refers to.
absl::Status CheckUseFwdQuant(const DotGeneralConfig& config, Side side) {
  const bool lhs = side == Side::kLhs;
  const DotGeneralRawConfig& backward = lhs ? config.drhs : config.dlhs;
  if (!backward.rhs.use_fwd_quant) return absl::OkStatus();
  return Annotate(ValidateUseFwdQuant(config.fwd, side), lhs ? "drhs.rhs" : "dlhs.rhs");
}

absl::Status CheckFlagPlaces(const DotGeneralConfig& config, PlanPasses passes) {
  const std::pair<const char*, const TensorConfig*> places[] = {{"fwd.lhs", &config.fwd.lhs},
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

// The geometry of a gradient's product, and the operand axis for each of its axes.
struct GradientGeometry {
  ProductGeometry product;
  Axes to_operand;
};

GradientGeometry GradientGeometryOf(const ContractionShape& shape, const ProductPlan& fwd, Side side) {
  const Pass pass = side == Side::kLhs ? Pass::kDlhs : Pass::kDrhs;
  GradientGeometry geometry;
  if (shape.conv.has_value()) {
    geometry.product.windows = Windows{*shape.conv, pass};
    for (int64_t axis = 0; axis < shape.lhs.shape.rank(); ++axis) geometry.to_operand.push_back(axis);
    return geometry;
  }
  if (shape.grouped) {
    // The group axis is contracted but has no partner: all groups share a scale.
    geometry.product.num_groups = shape.rhs.shape[0];
    if (side == Side::kLhs) {
      geometry.product.dims = {.lhs_contracting = {1}, .rhs_contracting = {2, 0}};
      geometry.product.groups = Groups::kRows;
      geometry.to_operand = {0, 1};
    } else {
      geometry.product.dims = {.lhs_contracting = {0}, .rhs_contracting = {0}};
      geometry.product.groups = Groups::kContracting;
      geometry.to_operand = {0, 2, 1};
    }
    return geometry;
  }
  const BackwardDotDims dims =
      MakeBackwardDotDims(fwd.geometry.dims, fwd.lhs.x.shape.rank(), fwd.rhs.x.shape.rank(), side);
  geometry.product.dims = dims.dims;
  geometry.to_operand = dims.to_operand;
  const auto rank = static_cast<int64_t>(dims.to_operand.size());
  const auto last = std::find(dims.to_operand.begin(), dims.to_operand.end(), rank - 1);
  const int64_t batch = static_cast<int64_t>(dims.dims.lhs_batch.size());
  const int64_t rows = fwd.product_shape.rank() - batch - static_cast<int64_t>(dims.dims.lhs_contracting.size());
  geometry.product.out_is_contiguous_along_rows = !fwd.tiled.has_value() && last - dims.to_operand.begin() >= batch &&
                                                  last - dims.to_operand.begin() < batch + rows;
  return geometry;
}

}  // namespace

absl::StatusOr<ContractionPlan> ContractionPlan::Make(const DotGeneralConfig& config, ContractionShape shape,
                                                      const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(Validate(options));
  AQT_RETURN_IF_ERROR(CheckFlagPlaces(config, options.passes));
  ContractionPlan plan;
  plan.config_ = config;
  plan.options_ = options;
  plan.shape_ = std::move(shape);
  const ContractionShape& own = plan.shape_;
  for (const Side side : kSides) {
    plan.tensor_name_[static_cast<int>(side)] =
        absl::StrCat(own.name, ": the tensor for ", own.conv.has_value() ? "" : "fwd.", Name(side));
  }
  ProductGeometry geometry{.dims = own.dims, .groups = own.grouped ? Groups::kRows : Groups::kNone};
  if (own.conv.has_value()) geometry.windows = Windows{*own.conv, Pass::kFwd};
  std::optional<TiledDot> tiled;
  if (config.tiling.has_value()) {
    AQT_ASSIGN_OR_RETURN(tiled, MakeTiledDot(*config.tiling, own.dims, own.lhs.shape, own.rhs.shape));
  }
  AQT_ASSIGN_OR_RETURN(plan.fwd_, MakeProductPlan(Pass::kFwd, config.fwd, own.lhs, own.rhs, std::move(geometry),
                                                  std::move(tiled), options));
  plan.AddState(plan.fwd_);
  if (options.passes == PlanPasses::kForwardAndBackward) {
    AQT_RETURN_IF_ERROR(CheckUseFwdQuant(config, Side::kLhs));
    AQT_RETURN_IF_ERROR(CheckUseFwdQuant(config, Side::kRhs));
    for (const Side side : kSides) AQT_RETURN_IF_ERROR(plan.MakeGradient(side));
    for (const Side side : kSides) {
      plan.AddState(plan.gradient(side).product);
      plan.AddResiduals(side);
    }
  }
  plan.scratch_bytes_ = plan.CountScratch();
  return plan;
}

absl::Status ContractionPlan::MakeGradient(Side side) {
  const Pass pass = side == Side::kLhs ? Pass::kDlhs : Pass::kDrhs;
  const Side other = Other(side);
  GradientPlan& gradient = side == Side::kLhs ? dlhs_ : drhs_;
  GradientGeometry geometry = GradientGeometryOf(shape_, fwd_, side);
  const Aval g{shape_.out.dtype, fwd_.product_shape}, y{operand(other).dtype, fwd_.side(other).x.shape};
  gradient.dims = geometry.product.dims;
  AQT_ASSIGN_OR_RETURN(gradient.product,
                       MakeProductPlan(pass, raw(pass), g, y, std::move(geometry.product), std::nullopt, options_));
  gradient.to_operand = std::move(geometry.to_operand);
  const std::optional<QuantizeSpec>& spec = fwd_.side(other).spec;
  if (raw(pass).rhs.use_fwd_quant) {
    gradient.other = OtherOperand::kForwardQvalue;
    // The forward scale must fit the gradient.
    const ArrayRef scale(spec->scale_dtype, spec->scale_shape, nullptr);
    AQT_RETURN_IF_ERROR(Annotate(ForwardScaleInGradient(gradient, scale).status(), "use_fwd_quant"));
  } else if (shape_.conv.has_value()) {
    if (spec.has_value()) gradient.other = OtherOperand::kDequantized;
    const std::optional<QuantizeSpec>& own = fwd_.side(side).spec;
    const bool integer = own.has_value() && std::holds_alternative<IntSymmetric>(own->numerics);
    gradient.is_zero = operand(side).shape.num_elements() == 0 || shape_.conv->SumLength() == 0 ||
                       (integer && options_.semantics.compat.conv_integer_gradient_is_zero);
  }
  return absl::OkStatus();
}

void ContractionPlan::AddResiduals(Side side) {
  const auto add = [&](ResidualKind kind, Aval aval) {
    residual_index_[static_cast<int>(side)][static_cast<int>(kind)] = static_cast<int>(residuals_.size());
    residuals_.push_back({side, kind, std::move(aval)});
  };
  const std::optional<QuantizeSpec>& spec = fwd_.side(side).spec;
  const Shape& shape = fwd_.side(side).x.shape;
  const bool keeps_qvalue = reader(side).other != OtherOperand::kFloat, clips = ClipsGradient(side);
  if (keeps_qvalue) {
    add(ResidualKind::kQvalue, {fwd_.HasMidScales() ? operand(side).dtype : spec->q_dtype, shape});
  } else {
    add(ResidualKind::kValue, operand(side));
  }
  // Backward can compute the mask from the float operand and its scale only if that operand was quantized.
  const bool is_rotated = fwd_.side(side).hadamard_block != 0;
  const bool keeps_mask = clips && (keeps_qvalue || fwd_.HasMidScales() || is_rotated);
  if (keeps_qvalue || (clips && !keeps_mask)) add(ResidualKind::kScale, {spec->scale_dtype, spec->scale_shape});
  if (keeps_mask) add(ResidualKind::kClipMask, {DType::kS8, shape});
}

void ContractionPlan::AddState(const ProductPlan& product) {
  std::vector<StateSlot>& slots = state_[product.pass == Pass::kFwd ? 0 : 1];
  for (const Side side : kSides) {
    state_begin_[static_cast<int>(product.pass)][static_cast<int>(side)] = slots.size();
    AppendStateSlots(product.pass, side, product.side(side), slots);
  }
}

bool ContractionPlan::ClipsGradient(Side side) const {
  const std::optional<QuantizeSpec>& spec = fwd_.side(side).spec;
  return spec.has_value() && GradientBound(spec->numerics, spec->scaled_dtype).has_value();
}

int64_t ContractionPlan::ClipMaskWorkDoubles(Side side) const {
  return options_.semantics.compat.clip_gradient_at_bound ? fwd_.side(side).spec->num_work_doubles() : 0;
}

bool ContractionPlan::GradientIsRotated(Side side) const {
  return fwd_.side(side).hadamard_block != 0 && gradient(side).other == OtherOperand::kForwardQvalue;
}

absl::StatusOr<ArrayRef> ContractionPlan::ForwardScaleInGradient(const GradientPlan& gradient,
                                                                 const ArrayRef& scale) const {
  return ScaleToOther(scale, Side::kRhs, gradient.dims, fwd_.product_shape.rank());
}

bool ContractionPlan::QuantizesIntoPanels(Side side, Side operand) const {
  const GradientPlan& plan = gradient(side);
  const ProductPlan& product = plan.product;
  return plan.other == OtherOperand::kForwardQvalue && product.fuses && product.contraction.product == DType::kS32 &&
         product.lhs.hadamard_block == 0 && !product.tiled.has_value() && !product.geometry.windows.has_value() &&
         product.side(operand).PacksDirectly();
}

bool ContractionPlan::MultipliesWhilePacking(Side side) const {
  if (!QuantizesIntoPanels(side, Side::kLhs)) return false;
  const QuantizeSpec& spec = *fwd_.side(Other(side)).spec;
  const ArrayRef scale = *ForwardScaleInGradient(
      gradient(side), ArrayRef(spec.scale_dtype, spec.scale_shape, nullptr));  // checked when planned
  for (const int64_t axis : gradient(side).product.lhs.axes.rows) {
    if (scale.shape[axis] != 1) return false;
  }
  return true;
}

bool ContractionPlan::PacksQvalue(Side side) const {
  return QuantizesIntoPanels(side, Side::kRhs) && IsByteInteger(fwd_.side(Other(side)).spec->q_dtype) &&
         !fwd_.HasMidScales();
}

int64_t ContractionPlan::ForwardScratchBytes(bool lhs_is_packed, bool rhs_is_packed) const {
  SlotSizes sizes;
  fwd_.AddSlots(sizes);
  for (const Side side : kSides) {
    if (!(side == Side::kLhs ? lhs_is_packed : rhs_is_packed)) continue;
    for (const ScratchSlot slot :
         {ScratchSlot::kLhsScaleWork, ScratchSlot::kLhsScale, ScratchSlot::kLhsQvalue, ScratchSlot::kLhsOperand,
          ScratchSlot::kLhsGathered, ScratchSlot::kLhsConverted, ScratchSlot::kLhsPacked, ScratchSlot::kLhsRotated}) {
      sizes.Remove(OfSide(side == Side::kLhs, slot));
    }
  }
  return sizes.Total();
}

int64_t ContractionPlan::CountScratch() const {
  int64_t most = ForwardScratchBytes(/*lhs_is_packed=*/false, /*rhs_is_packed=*/false);
  if (options_.passes == PlanPasses::kForwardOnly) return most;
  for (const Side side : kSides) {
    const GradientPlan& plan = gradient(side);
    const int64_t size = SizeOf(operand(side).dtype);
    if (plan.is_zero) continue;
    SlotSizes sizes;
    plan.product.AddSlots(sizes);
    if (MultipliesWhilePacking(side)) {
      int64_t factors = 1;
      for (const Axes* group : {&plan.product.lhs.axes.batch, &plan.product.lhs.axes.k}) {
        for (const int64_t axis : *group) factors *= fwd_.product_shape[axis];
      }
      sizes.Add(ScratchSlot::kScaledGradient, factors * static_cast<int64_t>(sizeof(float)));
    } else if (plan.other == OtherOperand::kForwardQvalue) {
      sizes.Add(ScratchSlot::kScaledGradient, fwd_.product_shape.num_elements() * size);
    }
    if (plan.other != OtherOperand::kFloat && !PacksQvalue(side)) {
      sizes.Add(ScratchSlot::kForwardOperand, fwd_.side(Other(side)).x.shape.num_elements() * size);
    }
    const int64_t elements = fwd_.side(side).x.shape.num_elements();
    if (ClipsGradient(side) && ResidualIndex(side, ResidualKind::kClipMask) < 0) {
      sizes.Add(ScratchSlot::kClipMask, elements + ClipMaskWorkDoubles(side) * static_cast<int64_t>(sizeof(double)));
    }
    if (fwd_.side(side).hadamard_block != 0 && (ClipsGradient(side) || GradientIsRotated(side)))
      sizes.Add(ScratchSlot::kRotatedGradient, elements * size);
    if (fwd_.tiled.has_value() && fwd_.tiled->operand(side).num_other > 0)
      sizes.Add(ScratchSlot::kRepeated, elements * size);
    most = std::max(most, sizes.Total());
  }
  return most;
}

}  // namespace aqt::internal
