#include "aqt/quant/contraction/engine/product_plan.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/quant/contraction/engine/contract.h"
#include "aqt/quant/contraction/engine/dot_tiling.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/validate.h"
#include "aqt/quant/tensor/scale_layout.h"

namespace aqt::internal {
namespace {

// "dlhs.rhs: "...
absl::Status Invalid(Pass pass, Side side, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(ToString(pass), ".", Name(side), ": ", message));
}

// Checks that the scale's shape allows dequantization; only custom shared axes can prevent it.
absl::Status CheckScaleLayout(const ProductPlan& plan, Side side) {
  const SidePlan& own = plan.side(side);
  if (!own.is_quantized()) return absl::OkStatus();
  return Annotate(plan.CheckScale(side, ArrayRef(own.spec->scale_dtype, own.spec->scale_shape, nullptr)),
                  absl::StrCat(ToString(plan.pass), ".", Name(side), ": ", ToString(own.config.dequant_mode)));
}

// Checks that the scale of one side can be multiplied into the other side's operand.
absl::Status CheckOtherInput(const ProductPlan& plan, Side side) {
  const SidePlan& own = plan.side(side);
  if (!own.is_quantized() || own.config.dequant_mode != DequantMode::kOtherInput) return absl::OkStatus();
  const DType other = plan.side(Other(side)).operand_dtype;
  if (other == DType::kF32 || other == DType::kBF16) return absl::OkStatus();
  return Invalid(
      plan.pass, side,
      absl::StrCat("DEQUANT_MODE_OTHER_INPUT multiplies the scale into the other operand, which is ", ToString(other),
                   "; it must be f32 or bf16: do not quantize that side, or give it "
                   "DEQUANT_MODE_THIS_INPUT"));
}

// Whether sums of `length` products of qvalues fit s32.
bool SumsFitS32(const ProductPlan& plan, int64_t length, const Compat& compat) {
  return static_cast<double>(length) * MaxMagnitude(plan.lhs, compat) * MaxMagnitude(plan.rhs, compat) <=
         std::numeric_limits<int32_t>::max();
}

// The dtype of the product of a convolution. AQT's builder always asks for s32 sums, and its convolution ignores that.
absl::StatusOr<DType> WindowAccumulator(const ProductPlan& plan, std::optional<DType> wanted, const Compat& compat) {
  if (wanted == DType::kS32) wanted.reset();
  if (wanted.has_value() && !IsArithmeticFloat(*wanted)) {
    return absl::InvalidArgumentError(
        absl::StrCat("accumulator dtype ", ToString(*wanted), ", expected s32, f32, bf16, f16 or none"));
  }
  if (IsByteInteger(plan.lhs.operand_dtype) && IsByteInteger(plan.rhs.operand_dtype) &&
      SumsFitS32(plan, plan.geometry.windows->conv.SumLength(), compat)) {
    return DType::kS32;
  }
  return compat.conv_ignores_accumulator_dtype ? plan.dtype : wanted.value_or(plan.dtype);
}

// The dtype of any other product, after ValidateAccumulator has passed.
absl::StatusOr<DType> DenseAccumulator(const ProductPlan& plan, std::optional<DType> wanted, const Compat& compat) {
  const DType dtype = ProductTypesOf(plan.lhs.operand_dtype, plan.rhs.operand_dtype, wanted).product;
  if (dtype != DType::kS32) return dtype;
  int64_t k = 1;
  for (const int64_t axis : plan.lhs.axes.k) k *= plan.lhs.x.shape[axis];
  if (!SumsFitS32(plan, k, compat)) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(plan.pass), ": a sum of ", k, " products of up to ",
                                                   MaxMagnitude(plan.lhs, compat), " * ",
                                                   MaxMagnitude(plan.rhs, compat),
                                                   " can overflow the s32 accumulator; use fewer bits, or an f32 "
                                                   "accumulator"));
  }
  return DType::kS32;
}

// LocalAqt as a tiling of the operands; null without it.
absl::StatusOr<std::optional<TiledDot>> LocalTiling(Pass pass, const DotGeneralRawConfig& config, const DotDims& dims,
                                                    const Shape& lhs, const Shape& rhs) {
  if (!config.local_aqt.has_value()) return std::optional<TiledDot>();
  for (const Side side : kSides) {
    const absl::Status status = ValidateTensorOfLocalAqt(side == Side::kLhs ? config.lhs : config.rhs);
    if (!status.ok()) return Invalid(pass, side, status.message());
  }
  absl::StatusOr<std::optional<TiledDot>> tiled = MakeLocalTiling(*config.local_aqt, dims, lhs, rhs);
  if (!tiled.ok()) return Annotate(tiled.status(), ToString(pass));
  return tiled;
}

// The axes of an operand. In a convolution, rows are the axes along which a scale of the product may vary: the example,
// or the output channel.
OperandAxes AxesOf(const ProductGeometry& geometry, Side side, int64_t rank) {
  if (!geometry.windows.has_value()) return OperandAxesOf(geometry.dims, side, rank);
  OperandAxes axes;
  const int64_t row = side == Side::kLhs ? 0 : rank - 1;
  for (int64_t axis = 0; axis < rank; ++axis) (axis == row ? axes.rows : axes.k).push_back(axis);
  return axes;
}

Shape ProductShape(const ProductGeometry& geometry, const Shape& lhs, const Shape& rhs) {
  if (geometry.windows.has_value()) {
    switch (geometry.windows->pass) {
      case Pass::kFwd: return geometry.windows->conv.OutShape();
      case Pass::kDlhs: return geometry.windows->conv.LhsShape();
      case Pass::kDrhs: return geometry.windows->conv.RhsShape();
    }
  }
  const Shape shape = DotOutputShape(geometry.dims, lhs, rhs);
  if (geometry.groups != Groups::kContracting) return shape;
  Shape grouped{geometry.num_groups};
  for (const int64_t extent : shape) grouped.push_back(extent);
  return grouped;
}

Contraction ContractionOf(const ProductPlan& plan, DType product, WeightOnly weight_only) {
  const ProductGeometry& geometry = plan.geometry;
  if (geometry.windows.has_value()) {
    return MakeWindowContraction(*geometry.windows, plan.dtype, plan.lhs.operand_dtype, plan.rhs.operand_dtype, product,
                                 plan.target);
  }
  const Aval lhs{plan.lhs.operand_dtype, plan.lhs.x.shape}, rhs{plan.rhs.operand_dtype, plan.rhs.x.shape};
  if (plan.pass != Pass::kFwd) weight_only = WeightOnly::kFloat;
  if (geometry.groups == Groups::kNone) {
    return MakeContraction(geometry.dims, lhs, rhs, product, plan.target,
                           {.exchanges_operands = geometry.out_is_contiguous_along_rows, .weight_only = weight_only});
  }
  const DotDims& all = geometry.dims;
  DotDims dims{.lhs_contracting = {all.lhs_contracting[0]}, .rhs_contracting = {all.rhs_contracting[0]}};
  Aval matrix = rhs;
  if (geometry.groups == Groups::kRows) {  // one group's matrix has no axis of groups
    --dims.rhs_contracting[0];
    matrix.shape = Shape(rhs.shape.extents().subspan(1));
  }
  return MakeContraction(dims, lhs, matrix, product, plan.target,
                         {.weight_only = weight_only, .adds_one_by_one = geometry.groups == Groups::kContracting});
}

std::optional<PanelKey> PanelKeyOf(const ProductPlan& plan, Side side) {
  const SidePlan &own = plan.side(side), &other = plan.side(Other(side));
  const ProductGeometry& geometry = plan.geometry;
  if (plan.pass != Pass::kFwd || plan.contraction.gemm == nullptr || plan.HasMidScales()) return std::nullopt;
  if (own.x.shape.num_elements() == 0) return std::nullopt;  // it may have 2^40 rows
  if (other.is_quantized() && other.config.dequant_mode == DequantMode::kOtherInput) return std::nullopt;
  const bool is_dense = !geometry.windows.has_value() && geometry.groups == Groups::kNone;
  if (side == Side::kLhs && !is_dense) return std::nullopt;
  const bool digits = plan.fused_contraction().on_digits();
  if (digits && side == Side::kLhs) return std::nullopt;  // it is converted to digits in each call
  PanelKey key{.format = PackedFormat(plan.contraction, side),
               .digits = digits,
               .scale_group = plan.fused_contraction().scale_group,
               .axes = plan.summed_tiles.has_value() ? plan.summed_tiles->rhs : own.axes,
               .hadamard_block = own.hadamard_block,
               .dequantized = own.is_quantized() && own.config.dequant_mode == DequantMode::kThisInput,
               .dtype = PackedDType(plan.contraction, own.operand_dtype)};
  if (geometry.windows.has_value()) key.feature_groups = geometry.windows->conv.groups;
  if (geometry.groups == Groups::kRows) key.axes = {.batch = {0}, .rows = {2}, .k = {1}};  // a matrix per group
  return key;
}

// Whether the kernels' epilogue can do everything after the sums.
bool Fuses(const ProductPlan& plan) {
  const Contraction& contraction = plan.contraction;
  if (contraction.gemm == nullptr || plan.HasMidScales()) return false;
  if (plan.product_shape.num_elements() == 0) return false;
  if (contraction.product == DType::kS32) {
    if (!plan.lhs.scales_output() || !plan.rhs.scales_output()) return false;
  } else {
    if (!IsArithmeticFloat(contraction.product) || contraction.rounds_first_to.has_value()) return false;
    if (contraction.product != DType::kF32 && !HoldsAllOf(plan.dtype, contraction.product)) return false;
    for (const SidePlan* side : {&plan.lhs, &plan.rhs}) {
      if (side->is_quantized() && side->config.dequant_mode == DequantMode::kOtherInput) return false;
    }
  }
  if (plan.geometry.windows.has_value()) return true;
  if (plan.geometry.groups != Groups::kNone) return false;
  for (const Shape* shape : {&plan.lhs.x.shape, &plan.rhs.x.shape, &plan.product_shape}) {
    if (shape->rank() > kernels::AxisGroup::kMaxRank) return false;
  }
  return true;
}

// Whether a call may sum the products of tiles as it computes them: only if they are rounded to f32.
bool FusesSums(const ProductPlan& plan) {
  return plan.fuses && plan.tiled.has_value() && plan.tiled->num_sums > 0 && plan.dtype == DType::kF32;
}

// The contraction over all tiles at once, which are groups of k. Partial sums are rounded only to f32.
std::optional<Contraction> SummedTiles(const ProductPlan& plan) {
  if (!FusesSums(plan)) return std::nullopt;
  Contraction sum = plan.contraction;
  sum.scale_group = 1;
  for (const int64_t axis : sum.rhs.k) sum.scale_group *= plan.rhs.x.shape[axis];
  if (sum.on_digits()) {
    if (sum.product != DType::kF32 || plan.lhs.scales_output() || !plan.rhs.scales_output()) return std::nullopt;
  } else if (plan.pass != Pass::kFwd || !sum.sums_are_integers() ||
             !kernels::PrefersDigitsOfIntegers(plan.target, sum.scale_group)) {
    return std::nullopt;
  }
  sum.digit_bits = BitWidth(plan.rhs.operand_dtype);
  for (OperandAxes* axes : {&sum.lhs, &sum.rhs}) {
    const auto first_batch = axes->batch.begin() + plan.tiled->num_sums;
    axes->k.insert(axes->k.begin(), axes->batch.begin(), first_batch);
    axes->batch.erase(axes->batch.begin(), first_batch);
  }
  return sum;
}

bool PacksAsQuantized(const ProductPlan& plan) {
  if (!plan.fuses || plan.geometry.windows.has_value()) return false;
  if (plan.contraction.sums_are_integers()) return true;
  const auto is_float8 = [](DType dtype) { return dtype == DType::kE4M3FN || dtype == DType::kE5M2; };
  return plan.contraction.product == DType::kF32 && plan.lhs.scales_output() && plan.rhs.scales_output() &&
         is_float8(plan.lhs.operand_dtype) && is_float8(plan.rhs.operand_dtype);
}

}  // namespace

absl::StatusOr<ArrayRef> ProductPlan::ScaleInOutput(Side s, const ArrayRef& scale) const {
  if (geometry.windows.has_value()) {
    for (const int64_t axis : side(s).axes.k) {
      if (scale.shape[axis] == 1) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "scale of ", Name(s), " has shape ", scale.shape.ToString(), ": it varies along axis ", axis,
          ", but only along ", s == Side::kLhs ? "the example (axis 0)" : "the output channel (the last axis)",
          " can it be multiplied onto the result; use DEQUANT_MODE_THIS_INPUT for others"));
    }
    return scale;
  }
  AQT_ASSIGN_OR_RETURN(ArrayRef view, ScaleToOutput(scale, s, geometry.dims, side(Other(s)).x.shape.rank()));
  if (geometry.groups == Groups::kContracting) {  // shared by all groups
    Shape shape{1};
    for (const int64_t extent : view.shape) shape.push_back(extent);
    view.shape = shape;
    view.strides.insert(view.strides.begin(), 0);
  }
  return view;
}

absl::StatusOr<ArrayRef> ProductPlan::ScaleInOther(Side s, const ArrayRef& scale) const {
  return ScaleToOther(scale, s, geometry.dims, side(Other(s)).x.shape.rank());
}

absl::Status ProductPlan::CheckScale(Side s, const ArrayRef& scale) const {
  switch (side(s).config.dequant_mode) {
    case DequantMode::kThisInput: return absl::OkStatus();
    case DequantMode::kOutput: return ScaleInOutput(s, scale).status();
    case DequantMode::kOtherInput: return ScaleInOther(s, scale).status();
  }
  return absl::OkStatus();
}

absl::StatusOr<ProductPlan> MakeProductPlan(Pass pass, const DotGeneralRawConfig& config, const Aval& lhs_in,
                                            const Aval& rhs_in, ProductGeometry geometry, std::optional<TiledDot> tiled,
                                            const PlanOptions& options) {
  ProductPlan plan;
  plan.pass = pass;
  plan.dtype = lhs_in.dtype;
  plan.target = options.target.value_or(kernels::BestTarget());
  plan.geometry = std::move(geometry);
  plan.tiled = std::move(tiled);
  if (!plan.tiled.has_value()) {
    AQT_ASSIGN_OR_RETURN(plan.tiled, LocalTiling(pass, config, plan.geometry.dims, lhs_in.shape, rhs_in.shape));
  }
  Aval lhs = lhs_in, rhs = rhs_in;
  if (plan.tiled.has_value()) {
    plan.geometry.dims = plan.tiled->dims;
    plan.geometry.out_is_contiguous_along_rows = false;  // the product of tiles is first stored elsewhere
    lhs.shape = plan.tiled->lhs.shape;
    rhs.shape = plan.tiled->rhs.shape;
  }
  plan.product_shape = ProductShape(plan.geometry, lhs.shape, rhs.shape);
  // Tiles and shards of one operand are also axes of the other operand and of the product.
  for (const Shape& shape : {lhs.shape, rhs.shape, plan.product_shape}) {
    AQT_RETURN_IF_ERROR(Annotate(CheckShape(shape), ToString(pass)));
  }
  AQT_RETURN_IF_ERROR(Annotate(ValidateMidAlphas(config), ToString(pass)));
  AQT_RETURN_IF_ERROR(Annotate(ValidateHadamard(config), ToString(pass)));
  plan.lhs_mid_alpha = config.lhs_mid_alpha;
  plan.rhs_mid_alpha = config.rhs_mid_alpha;
  for (const Side side : kSides) {
    const TensorConfig& tensor = side == Side::kLhs ? config.lhs : config.rhs;
    const Aval& x = side == Side::kLhs ? lhs : rhs;
    OperandAxes axes = AxesOf(plan.geometry, side, x.shape.rank());
    const Axes shared = CalibrationAxes(tensor.calibration_mode, axes);
    SidePlan& own = side == Side::kLhs ? plan.lhs : plan.rhs;
    AQT_ASSIGN_OR_RETURN(own, MakeSidePlan(pass, side, tensor, x, std::move(axes), shared, options.semantics));
    if (config.hadamard.has_value()) own.hadamard_block = config.hadamard->block;
  }
  for (const Side side : kSides) {
    AQT_RETURN_IF_ERROR(CheckScaleLayout(plan, side));
    AQT_RETURN_IF_ERROR(CheckOtherInput(plan, side));
  }
  if (plan.geometry.windows.has_value()) {
    AQT_ASSIGN_OR_RETURN(const DType product,
                         WindowAccumulator(plan, config.dg_accumulator_dtype, options.semantics.compat));
    plan.contraction = ContractionOf(plan, product, options.semantics.WeightOnlySums());
  } else {
    // As AQT on CPU does: two 4-bit operands are widened.
    if (plan.lhs.operand_dtype == DType::kS4 && plan.rhs.operand_dtype == DType::kS4) {
      plan.lhs.operand_dtype = plan.rhs.operand_dtype = DType::kS8;
    }
    AQT_RETURN_IF_ERROR(Annotate(ValidateAccumulator(config), ToString(pass)));
    AQT_ASSIGN_OR_RETURN(const DType product,
                         DenseAccumulator(plan, config.dg_accumulator_dtype, options.semantics.compat));
    plan.contraction = ContractionOf(plan, product, options.semantics.WeightOnlySums());
  }
  plan.fuses = Fuses(plan);
  plan.packs_as_quantized = PacksAsQuantized(plan);
  plan.summed_tiles = SummedTiles(plan);
  plan.adds_tiles = FusesSums(plan) && !plan.contraction.on_digits();
  plan.lhs_panels = PanelKeyOf(plan, Side::kLhs);
  plan.rhs_panels = PanelKeyOf(plan, Side::kRhs);
  return plan;
}

void ProductPlan::AddSlots(SlotSizes& sizes) const {
  constexpr int64_t kFloat = sizeof(float);
  const auto count = [](const Shape& shape, const Axes& axes) {
    int64_t n = 1;
    for (const int64_t axis : axes) n *= shape[axis];
    return n;
  };
  if (tiled.has_value() && tiled->num_sums > 0 && !sums_tiles()) {
    sizes.Add(ScratchSlot::kTiles, product_shape.num_elements() * SizeOf(dtype));
  }
  for (const Side s : kSides) {
    const bool is_lhs = s == Side::kLhs;
    const SidePlan& own = side(s);
    AddQuantizeSlots(own, s, /*packs=*/packs_as_quantized && own.step.has_value(), sizes);
    if (own.hadamard_block != 0) sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsRotated), own.x.num_bytes());
    if (fuses) {
      if (own.scales_output()) {
        sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsEpilogueScale),
                  count(own.x.shape, own.axes.batch) * count(own.x.shape, own.axes.rows) * kFloat);
      }
      if (packs_as_quantized) {
        const kernels::GemmKernel& kernel = *contraction.gemm;
        sizes.Add(
            OfSide(is_lhs, ScratchSlot::kLhsPacked),
            PanelBytes(KernelSide(contraction, s) == Side::kLhs ? kernel.lhs : kernel.rhs, own.x.shape, own.axes));
      }
      continue;
    }
    if (HasMidScales()) {
      const int64_t mids = count(own.x.shape, own.axes.batch) * count(own.x.shape, own.axes.k);
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsMid), mids * kFloat);
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsMidRatio), mids * kFloat);
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsRescaled), own.x.num_bytes());
    }
    const SidePlan& other = side(Other(s));
    if (other.is_quantized() && other.config.dequant_mode == DequantMode::kOtherInput) {
      sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsOperand), own.x.shape.num_elements() * SizeOf(own.operand_dtype));
    }
  }
  if (fuses) {
    if (packs_as_quantized && !summed_tiles.has_value()) return;
    if (packs_as_quantized) AddQuantizeSlots(lhs, Side::kLhs, /*packs=*/false, sizes);
    AddContractScaledSlots(fused_contraction(), {lhs.operand_dtype, lhs.x.shape}, {rhs.operand_dtype, rhs.x.shape},
                           /*has_lhs_scale=*/lhs.scales_output(), sizes);
    return;
  }
  sizes.Add(ScratchSlot::kAccumulator, product_shape.num_elements() * SizeOf(contraction.product));
  Aval matrix{rhs.operand_dtype, rhs.x.shape};
  if (geometry.groups == Groups::kRows) matrix.shape = Shape(rhs.x.shape.extents().subspan(1));
  AddContractSlots(contraction, {lhs.operand_dtype, lhs.x.shape}, matrix, product_shape.num_elements(), sizes);
}

}  // namespace aqt::internal
