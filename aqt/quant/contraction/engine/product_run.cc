// Runs a ProductPlan. This is the general path: each step is a pass over memory. product_fused.cc has the fused path.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "aqt/quant/contraction/engine/contract.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/engine/product_sides.h"
#include "aqt/quant/contraction/engine/rotate.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/qtensor_internal.h"

namespace aqt::internal {

ArrayRef ProductSides::Operand(Side side) const {
  const SidePlan& own = plan.side(side);
  const CallOperand& in = Input(side);
  if (own.hadamard_block == 0 || in.has_qvalue()) return in.x;
  return RotateInto(in.x, own.axes, own.hadamard_block, context.target, context.runtime.executor,
                    Buffer(side, ScratchSlot::kLhsRotated, own.x.num_bytes()));
}

QuantizedSide ProductSides::Quantize(Side side, const ArrayRef& calibrated, const ArrayRef& quantized) const {
  const CallOperand& in = Input(side);
  if (in.panels == nullptr) return QuantizerOf(side).Quantize(calibrated, quantized);
  QuantizedSide packed;
  packed.operand = packed.qvalue = ArrayRef(plan.side(side).operand_dtype, plan.side(side).x.shape, nullptr);
  for (const Array& scale : in.prepared->scale) packed.scale.push_back(scale);
  return packed;
}

void ProductSides::Widen(QuantizedSide& lhs, QuantizedSide& rhs) const {
  if (lhs.operand.dtype == DType::kS4) lhs.operand.dtype = plan.lhs.operand_dtype;
  if (rhs.operand.dtype == DType::kS4) rhs.operand.dtype = plan.rhs.operand_dtype;
}

namespace {

void* Advanced(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }
// Null (for a packed operand) stays null.
const void* Advanced(const void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

// `count` elements of axis 0 of x.
template <class Ref>
Ref Rows(const Ref& x, int64_t first, int64_t count) {
  Ref rows = x;
  rows.data = Advanced(x.data, first * x.strides[0] * SizeOf(x.dtype));
  rows.shape[0] = count;
  return rows;
}

// Element `index` of axis 0, without that axis.
template <class Ref>
Ref Element(const Ref& x, int64_t index) {
  return Ref(x.dtype, Shape(x.shape.extents().subspan(1)), Strides(x.strides.begin() + 1, x.strides.end()),
             Advanced(x.data, index * x.strides[0] * SizeOf(x.dtype)));
}

class GeneralRun {
 public:
  explicit GeneralRun(const ProductSides& sides)
      : sides_(sides), plan_(sides.plan), call_(sides.call), context_(sides.context) {
    for (const Side side : kSides) {
      const int i = static_cast<int>(side);
      operand_[i] = sides.Operand(side);
      calibrated_[i] = quantized_[i] = &operand_[i];
    }
  }

  void UpdateStatistics() {
    if (plan_.HasMidScales()) RescaleOperands();
    for (const Side side : kSides) {
      if (plan_.side(side).has_state()) sides_.QuantizerOf(side).ComputeScaleOf(*calibrated_[static_cast<int>(side)]);
    }
  }

  void Run() {
    if (plan_.HasMidScales()) RescaleOperands();
    QuantizedSide lhs = QuantizeSide(Side::kLhs), rhs = QuantizeSide(Side::kRhs);
    KeepForwardOperand(Side::kLhs, lhs);
    KeepForwardOperand(Side::kRhs, rhs);
    MultiplyIntoOther(Side::kLhs, lhs, rhs);
    MultiplyIntoOther(Side::kRhs, rhs, lhs);
    sides_.Widen(lhs, rhs);
    context_.Observe(sides_.names.lhs.operand, lhs.operand);
    context_.Observe(sides_.names.rhs.operand, rhs.operand);

    const DType dtype = plan_.contraction.product;
    const MutableArrayRef product(
        dtype, plan_.product_shape,
        context_.workspace.Get(ScratchSlot::kAccumulator, plan_.product_shape.num_elements() * SizeOf(dtype)));
    if (plan_.geometry.groups == Groups::kNone) {
      Multiply(lhs.operand, rhs.operand, {sides_.Input(Side::kLhs).panels, sides_.Input(Side::kRhs).panels},
               plan_.geometry.dims, product);
    } else {
      MultiplyGroups(lhs.operand, rhs.operand, product);
    }
    context_.Observe(sides_.names.accum, product);

    absl::InlinedVector<ArrayRef, 2> scales;
    AppendOutputScales(Side::kLhs, lhs, scales);
    AppendOutputScales(Side::kRhs, rhs, scales);
    DequantizeInto(product, {.scale = scales}, plan_.dtype, call_.out, context_.runtime.executor);
    // Rows of no group are zero even if a scale is NaN.
    if (plan_.geometry.groups == Groups::kRows) {
      FillZeros(Rows(call_.out, GroupedRows(), call_.out.shape[0] - GroupedRows()));
    }
  }

 private:
  void Multiply(const ArrayRef& lhs, const ArrayRef& rhs, const PackedOperands& packed, const DotDims& dims,
                const MutableArrayRef& product) {
    if (context_.runtime.product != nullptr) {
      context_.runtime.product->Contract(ToString(plan_.pass), lhs, rhs, dims, product);
    } else {
      Contract(plan_.contraction, lhs, rhs, product, context_.workspace, context_.runtime, packed);
    }
  }

  int64_t GroupedRows() const {
    return std::accumulate(call_.group_sizes.begin(), call_.group_sizes.end(), int64_t{0});
  }

  // A matrix product per group. `product` is dense.
  void MultiplyGroups(const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& product) {
    const bool by_rows = plan_.geometry.groups == Groups::kRows;
    const auto matrix = [&](int64_t group, int64_t first, int64_t rows) {
      return by_rows ? Element(rhs, group) : Rows(rhs, first, rows);
    };
    const auto result = [&](int64_t group, int64_t first, int64_t rows) {
      return by_rows ? Rows(product, first, rows) : Element(product, group);
    };
    const auto packed = [&](int64_t group) -> PackedOperands {
      const void* panels = sides_.Input(Side::kRhs).panels;
      if (panels == nullptr) return {};
      const int64_t k = rhs.shape[1], n = rhs.shape[2];
      return {.rhs =
                  Advanced(panels, group * PackedBytes(plan_.contraction, Side::kRhs, {k, n}, plan_.contraction.rhs))};
    };
    if (call_.group_sizes.empty()) return FillZeros(product);
    // Buffers are sized for the largest group and reused by the others.
    const int64_t largest = *std::max_element(call_.group_sizes.begin(), call_.group_sizes.end());
    SlotSizes sizes;
    AddContractSlots(plan_.contraction, Rows(lhs, 0, largest).aval(), matrix(0, 0, largest).aval(),
                     result(0, 0, largest).shape.num_elements(), sizes);
    context_.workspace.Take(sizes);
    int64_t first = 0;
    for (size_t i = 0; i < call_.group_sizes.size(); ++i) {
      const int64_t group = static_cast<int64_t>(i), rows = call_.group_sizes[i];
      Multiply(Rows(lhs, first, rows), matrix(group, first, rows), packed(group), plan_.contraction.dims,
               result(group, first, rows));
      first += rows;
    }
    if (by_rows) FillZeros(Rows(product, first, product.shape[0] - first));
  }

  QuantizedSide QuantizeSide(Side side) {
    const int i = static_cast<int>(side);
    return sides_.Quantize(side, *calibrated_[i], *quantized_[i]);
  }

  // Mid scales: m = absmax over the remaining axes, to the power of alpha (1 without an alpha), per side. Each operand
  // is divided by c = m / (m of the other side), which moves range from the side that varies more along the contracting
  // axes to the other; in the product the two c cancel.
  void RescaleOperands() {
    const ArrayRef lhs = MidScale(Side::kLhs, plan_.lhs_mid_alpha), rhs = MidScale(Side::kRhs, plan_.rhs_mid_alpha);
    Rescale(Side::kLhs, lhs, rhs);
    Rescale(Side::kRhs, rhs, lhs);
  }

  ArrayRef MidScale(Side side, std::optional<double> alpha) {
    const ArrayRef& x = sides_.Input(side).x;
    Shape shape = x.shape;
    for (const int64_t axis : plan_.side(side).axes.rows) shape[axis] = 1;
    const int64_t n = shape.num_elements();
    float* mid = sides_.FloatBuffer(side, ScratchSlot::kLhsMid, n);
    std::fill(mid, mid + n, 1.0f);
    if (alpha.has_value()) {
      AbsMaxInto(x, shape, mid);
      for (int64_t i = 0; i < n; ++i) mid[i] = mid[i] == 0 ? 1.0f : Power(x.dtype, mid[i], *alpha);
    }
    return ArrayRef(mid, shape);
  }

  void Rescale(Side side, const ArrayRef& own, const ArrayRef& other) {
    const ArrayRef& x = sides_.Input(side).x;
    const ArrayRef in_own_layout = BroadcastTo(*plan_.ScaleInOther(Other(side), other), own.shape);
    const MutableArrayRef ratio(sides_.FloatBuffer(side, ScratchSlot::kLhsMidRatio, own.shape.num_elements()),
                                own.shape);
    DivideInto(own, in_own_layout, x.dtype, ratio);
    const MutableArrayRef rescaled(x.dtype, x.shape,
                                   sides_.Buffer(side, ScratchSlot::kLhsRescaled, x.aval().num_bytes()));
    // XLA divides by a broadcast operand as it divides by a constant: it multiplies by the reciprocal.
    if (context_.semantics.arithmetic == Arithmetic::kXlaCompatible && own.shape != x.shape) {
      DivideByBroadcastInto(x, ratio, x.dtype, rescaled);
    } else {
      DivideInto(x, ratio, x.dtype, rescaled);
    }
    const int i = static_cast<int>(side);
    ratio_[i] = ratio;
    rescaled_[i] = rescaled;
    calibrated_[i] = &rescaled_[i];
    if (!context_.semantics.compat.mid_scales_on_original_operands) quantized_[i] = &rescaled_[i];
  }

  // Stores the operand of a backward pass with use_fwd_quant if it was quantized under mid scales: its qvalues as
  // numbers, times the ratio that the operand was divided by.
  void KeepForwardOperand(Side side, const QuantizedSide& own) {
    void* kept = sides_.Input(side).keep_forward_operand;
    if (kept == nullptr) return;
    const Aval& aval = plan_.side(side).x;
    const MutableArrayRef operand(aval.dtype, aval.shape, kept);
    DequantizeInto(own.qvalue, {}, aval.dtype, operand);
    if (context_.semantics.compat.mid_scales_on_original_operands) return;
    MultiplyInto(operand, ratio_[static_cast<int>(side)], aval.dtype, operand);
  }

  // DEQUANT_MODE_OTHER_INPUT: other.operand *= each scale of `own`, in the dtype of the other operand.
  void MultiplyIntoOther(Side side, const QuantizedSide& own, QuantizedSide& other) {
    if (!plan_.side(side).is_quantized() || plan_.side(side).config.dequant_mode != DequantMode::kOtherInput) return;
    const Aval aval = other.operand.aval();
    const MutableArrayRef product(aval.dtype, aval.shape,
                                  sides_.Buffer(Other(side), ScratchSlot::kLhsOperand, aval.num_bytes()));
    for (const ArrayRef& scale : own.scale) {
      MultiplyInto(other.operand, *plan_.ScaleInOther(side, scale), aval.dtype, product,
                   context_.runtime.executor);  // checked when planned
      other.operand = product;
    }
  }

  void AppendOutputScales(Side side, const QuantizedSide& own, absl::InlinedVector<ArrayRef, 2>& scales) const {
    if (!plan_.side(side).scales_output()) return;
    for (const ArrayRef& scale : own.scale) scales.push_back(*plan_.ScaleInOutput(side, scale));
  }

  const ProductSides& sides_;
  const ProductPlan& plan_;
  const ProductCall& call_;
  const CallContext& context_;
  ArrayRef operand_[2];  // ProductSides::Operand
  // The arrays for which the scale of a side is found and that are quantized: the operand, unless mid scales rescale
  // it.
  const ArrayRef* calibrated_[2];
  const ArrayRef* quantized_[2];
  ArrayRef rescaled_[2];
  ArrayRef ratio_[2];  // divisors of the operands for mid scales
};

ProductCall Tiled(const TiledDot& tiled, const ProductCall& call) {
  ProductCall result = call;
  for (const Side side : kSides) {
    CallOperand& operand = result.side(side);
    if (!operand.has_qvalue()) operand.x = tiled.operand(side).View(operand.x);
  }
  return result;
}

// call.out is the product or, if the kernels sum the tiles, their sum (if the call AddsTiles, in the shape of the
// product and initially zero).
void Run(const ProductSides& sides) {
  if (CanFuse(sides)) {
    RunFused(sides);
  } else {
    GeneralRun(sides).Run();
  }
}

}  // namespace

void RunProduct(const ProductPlan& plan, const ProductCall& call, const CallContext& context) {
  if (!plan.tiled.has_value()) {
    Run(ProductSides(plan, call, context));
    return;
  }
  ProductCall tiled = Tiled(*plan.tiled, call);
  const MutableArrayRef sum = plan.tiled->OutView(call.out);
  const ProductSides sides(plan, tiled, context);
  const bool kernel_sums = plan.sums_tiles() && CanFuse(sides);
  const bool sums = plan.tiled->num_sums > 0 && !kernel_sums;
  tiled.out = sums ? MutableArrayRef(plan.dtype, plan.product_shape,
                                     context.workspace.Get(ScratchSlot::kTiles,
                                                           plan.product_shape.num_elements() * SizeOf(plan.dtype)))
                   : sum;
  if (sums) tiled.block_epilogue = nullptr;
  if (kernel_sums && plan.AddsTiles(/*rhs_is_packed=*/call.rhs.panels != nullptr)) {
    FillZeros(sum);
    tiled.out.shape = plan.product_shape;
    tiled.out.strides.insert(tiled.out.strides.begin(), plan.tiled->num_sums, 0);
  }
  Run(sides);
  if (sums) SumLeadingInto(tiled.out, plan.tiled->num_sums, sum);
}

void UpdateStatisticsOf(const ProductPlan& plan, const ProductCall& call, const CallContext& context) {
  const ProductCall tiled = plan.tiled.has_value() ? Tiled(*plan.tiled, call) : call;
  GeneralRun(ProductSides(plan, tiled, context)).UpdateStatistics();
}

std::shared_ptr<const Panels> PackPrepared(const ProductPlan& plan, Side side, const QTensor& qtensor,
                                           const Runtime& runtime) {
  const std::optional<PanelKey>& key = plan.panels(side);
  if (!qtensor.IsFull() || !key.has_value()) return nullptr;
  if (key->scale_group != 0 && qtensor.scale.size() != 1) return nullptr;
  const SidePlan& own = plan.side(side);
  ArrayRef operand = *qtensor.qvalue;
  Array dequantized;
  if (key->dequantized) {
    ArrayBuilder builder = ArrayBuilder::ForOverwrite(own.x);
    DequantizeInto(operand, AffineOf(qtensor).get(), own.x.dtype, builder.ref());
    dequantized = std::move(builder).Build();
    operand = dequantized;
  }
  if (operand.dtype == DType::kS4) operand.dtype = own.operand_dtype;  // may be widened; a byte each
  std::vector<float> group_scales;
  if (key->scale_group != 0) {
    int64_t count = 1;
    for (const Axes* axes : {&own.axes.batch, &own.axes.rows}) {
      for (const int64_t axis : *axes) count *= own.x.shape[axis];
    }
    group_scales.resize(count);
    GatherScales(qtensor.scale[0], own.x.shape, own.axes, group_scales.data());
  }
  const bool scales_output = own.scales_output() && qtensor.scale.size() == 1;
  const Contraction& contraction = plan.fused_contraction();
  return std::make_shared<const Panels>(Panels{
      .key = *key,
      .source = qtensor.qvalue->aval(),
      .data = PackAhead(contraction, side, operand, key->axes, group_scales.data(), runtime),
      .bytes = PackedBytes(contraction, side, own.x.shape, key->axes),
      .smallest_scale = scales_output ? ScalesInPlace(qtensor.scale[0], own.x.shape, own.axes).smallest : 0,
  });
}

}  // namespace aqt::internal
