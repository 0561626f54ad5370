// Runs a ProductPlan: the general way, or products of integers and of 8-bit floats with everything in the kernels. Both
// give the same bits.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/pack.h"
#include "aqt/kernels/panel_format.h"
#include "aqt/quant/contraction/contract.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/product_plan.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/qtensor_internal.h"

namespace aqt::internal {
namespace {

void* Advanced(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }
// Null (of a packed operand) stays null.
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

// Of two e5m2, whose smallest is 2^-16. All sums are multiples of it.
constexpr double kSmallestFloat8Product = 0x1p-32;

class Run {
 public:
  Run(const ProductPlan& plan, const ProductCall& call, const CallContext& context)
      : plan_(plan), call_(call), context_(context), names_(NamesOf(plan.pass)) {
    calibrated_[0] = quantized_[0] = &call.lhs.x;
    calibrated_[1] = quantized_[1] = &call.rhs.x;
  }

  void UpdateStatistics() {
    if (plan_.HasMidScales()) RescaleOperands();
    for (const Side side : kSides) {
      if (plan_.side(side).has_state()) QuantizerOf(side).ComputeScaleOf(*calibrated_[static_cast<int>(side)]);
    }
  }

  // call.out is the product; or, if SumsTiles(), the sum over its tiles (with adds_tiles in the shape of the product,
  // where it is zero).
  void operator()() {
    if (CanFuse()) {
      RunFused();
    } else {
      RunGeneral();
    }
  }
  bool SumsTiles() const { return plan_.sums_tiles() && CanFuse(); }

 private:
  // ---- any configuration: each step a pass over memory

  void RunGeneral() {
    if (plan_.HasMidScales()) RescaleOperands();
    QuantizedSide lhs = QuantizeSide(Side::kLhs), rhs = QuantizeSide(Side::kRhs);
    KeepForwardOperand(Side::kLhs, lhs);
    KeepForwardOperand(Side::kRhs, rhs);
    MultiplyIntoOther(Side::kLhs, lhs, rhs);
    MultiplyIntoOther(Side::kRhs, rhs, lhs);
    // The plan may have widened 4-bit operands, which have a byte each.
    if (lhs.operand.dtype == DType::kS4) lhs.operand.dtype = plan_.lhs.operand_dtype;
    if (rhs.operand.dtype == DType::kS4) rhs.operand.dtype = plan_.rhs.operand_dtype;
    context_.Observe(names_.lhs.operand, lhs.operand);
    context_.Observe(names_.rhs.operand, rhs.operand);

    const DType dtype = plan_.contraction.product;
    const MutableArrayRef product(
        dtype, plan_.product_shape,
        context_.workspace.Get(ScratchSlot::kAccumulator, plan_.product_shape.num_elements() * SizeOf(dtype)));
    if (plan_.geometry.groups == Groups::kNone) {
      Multiply(lhs.operand, rhs.operand, {Input(Side::kLhs).panels, Input(Side::kRhs).panels}, plan_.geometry.dims,
               product);
    } else {
      MultiplyGroups(lhs.operand, rhs.operand, product);
    }
    context_.Observe(names_.accum, product);

    absl::InlinedVector<ArrayRef, 2> scales;
    AppendOutputScales(Side::kLhs, lhs, scales);
    AppendOutputScales(Side::kRhs, rhs, scales);
    DequantizeInto(product, {.scale = scales}, plan_.dtype, call_.out, context_.runtime.executor);
    // Rows of no group are zero even if a scale is NaN.
    if (plan_.geometry.groups == Groups::kRows) {
      FillZeros(Rows(call_.out, GroupedRows(), call_.out.shape[0] - GroupedRows()));
    }
  }

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
      const void* panels = Input(Side::kRhs).panels;
      if (panels == nullptr) return {};
      const int64_t k = rhs.shape[1], n = rhs.shape[2];
      return {.rhs =
                  Advanced(panels, group * PackedBytes(plan_.contraction, Side::kRhs, {k, n}, plan_.contraction.rhs))};
    };
    if (call_.group_sizes.empty()) return FillZeros(product);
    // Buffers for the largest group: the others use them, too.
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

  void* Buffer(Side side, ScratchSlot lhs, int64_t bytes) {
    return context_.workspace.Get(OfSide(side == Side::kLhs, lhs), bytes);
  }
  float* FloatBuffer(Side side, ScratchSlot lhs, int64_t n) {
    return static_cast<float*>(Buffer(side, lhs, n * static_cast<int64_t>(sizeof(float))));
  }

  SideQuantizer QuantizerOf(Side side) {
    return SideQuantizer(plan_.side(side), side, Input(side), names_.side(side), context_);
  }
  QuantizedSide QuantizeSide(Side side) {
    const CallOperand& in = Input(side);
    if (in.panels != nullptr) {  // the products read only its shape and its scales
      QuantizedSide packed;
      packed.operand = packed.qvalue = ArrayRef(plan_.side(side).operand_dtype, plan_.side(side).x.shape, nullptr);
      for (const Array& scale : in.prepared->scale) packed.scale.push_back(scale);
      return packed;
    }
    const int i = static_cast<int>(side);
    return QuantizerOf(side).Quantize(*calibrated_[i], *quantized_[i]);
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
    const ArrayRef& x = Input(side).x;
    Shape shape = x.shape;
    for (const int64_t axis : plan_.side(side).axes.rows) shape[axis] = 1;
    const int64_t n = shape.num_elements();
    float* mid = FloatBuffer(side, ScratchSlot::kLhsMid, n);
    std::fill(mid, mid + n, 1.0f);
    if (alpha.has_value()) {
      AbsMaxInto(x, shape, mid);
      for (int64_t i = 0; i < n; ++i) mid[i] = mid[i] == 0 ? 1.0f : Power(x.dtype, mid[i], *alpha);
    }
    return ArrayRef(mid, shape);
  }

  void Rescale(Side side, const ArrayRef& own, const ArrayRef& other) {
    const ArrayRef& x = Input(side).x;
    const ArrayRef in_own_layout = BroadcastTo(*plan_.ScaleInOther(Other(side), other), own.shape);
    const MutableArrayRef ratio(FloatBuffer(side, ScratchSlot::kLhsMidRatio, own.shape.num_elements()), own.shape);
    DivideInto(own, in_own_layout, x.dtype, ratio);
    const MutableArrayRef rescaled(x.dtype, x.shape, Buffer(side, ScratchSlot::kLhsRescaled, x.aval().num_bytes()));
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

  // What a backward pass with use_fwd_quant takes for an operand that was quantized under mid scales: its qvalues as
  // numbers, times the ratio that the operand was divided by.
  void KeepForwardOperand(Side side, const QuantizedSide& own) {
    void* kept = Input(side).keep_forward_operand;
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
                                  Buffer(Other(side), ScratchSlot::kLhsOperand, aval.num_bytes()));
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

  // ---- products whose scales are multiplied in the epilogue of the kernels

  // The scales of one side as the epilogue reads them: one per [batch, row], or one.
  struct RowScales {
    const float* scale = nullptr;
    int64_t count = 0;  // of all matrices
    int64_t rows = 0;   // of one matrix
    bool single = false;
    DType dtype = DType::kF32;
    std::optional<float> smallest = std::nullopt;  // magnitude, where it is known already

    float Smallest() const { return smallest.has_value() ? *smallest : SmallestMagnitude(scale, count); }
  };
  // One side as a kernel reads it.
  struct PackedSide {
    kernels::Operand source;
    const void* panels = nullptr;
    RowScales scales;
  };

  bool CanFuse() const {
    if (!plan_.fuses || context_.runtime.observer != nullptr || context_.runtime.product != nullptr) return false;
    for (const Side side : kSides) {
      const QTensor* prepared = Input(side).prepared;
      // A float has no scale, and more than one do not fit the epilogue.
      if (prepared != nullptr && plan_.side(side).scales_output() && prepared->scale.size() != 1) return false;
    }
    return true;
  }

  void RunFused() {
    if (plan_.packs_as_quantized) return RunBytes();
    QuantizedSide lhs = QuantizeSide(Side::kLhs), rhs = QuantizeSide(Side::kRhs);
    const Contraction& contraction = plan_.fused_contraction();
    const bool scales_are_packed = contraction.scale_group != 0 && Input(Side::kRhs).panels != nullptr;
    const RowScales lhs_scales = OutputScales(Side::kLhs, lhs);
    const RowScales rhs_scales = scales_are_packed ? RowScales() : OutputScales(Side::kRhs, rhs);
    // The plan may have widened 4-bit operands, which have a byte each.
    if (lhs.operand.dtype == DType::kS4) lhs.operand.dtype = plan_.lhs.operand_dtype;
    if (rhs.operand.dtype == DType::kS4) rhs.operand.dtype = plan_.rhs.operand_dtype;
    ContractScaled(contraction, lhs.operand, rhs.operand, EpilogueOf(lhs_scales, rhs_scales), call_.out,
                   context_.workspace, context_.runtime, {Input(Side::kLhs).panels, Input(Side::kRhs).panels});
  }

  // The scales that multiply the product; none if the side has no such scale.
  RowScales OutputScales(Side side, const QuantizedSide& quantized) {
    return plan_.side(side).scales_output() ? Read(side, quantized.scale[0]) : RowScales();
  }

  // Operands go into panels as they are quantized.
  void RunBytes() {
    const kernels::GemmKernel& kernel =
        Input(Side::kRhs).panels != nullptr ? *plan_.contraction.gemm_of_packed_rhs : *plan_.contraction.gemm;
    const PackedSide lhs = PackSide(Side::kLhs, kernel), rhs = PackSide(Side::kRhs, kernel);
    GemmCall call;
    call.lhs = lhs.source;
    call.rhs = rhs.source;
    call.lhs_panels = lhs.panels;
    call.rhs_panels = rhs.panels;
    call.out = call_.out.data;
    call.out_dtype = plan_.dtype;
    call.out_axes = KernelOutput(call_.out, plan_.lhs.axes);
    call.epilogue = EpilogueOf(lhs.scales, rhs.scales);
    if (plan_.contraction.exchanges_operands) call.ExchangeOperands();
    RunGemmCall(kernel, call, context_.workspace, context_.runtime);
  }

  // The epilogue with these scales, either of which may be missing.
  kernels::Epilogue EpilogueOf(const RowScales& lhs, const RowScales& rhs) const {
    const DType product = plan_.contraction.product;
    kernels::Epilogue epilogue;
    // The product's dtype where that rounds; the plan's holds all of it.
    epilogue.sum_dtype = product == DType::kS32 || product == DType::kF32 ? plan_.dtype : product;
    epilogue.first_dtype = lhs.scale == nullptr ? plan_.dtype : Promote(plan_.dtype, lhs.dtype);
    epilogue.second_dtype = rhs.scale == nullptr ? epilogue.first_dtype : Promote(epilogue.first_dtype, rhs.dtype);
    epilogue.lhs_scale = lhs.scale;
    epilogue.lhs_stride = lhs.single ? 0 : 1;
    epilogue.lhs_batch_stride = lhs.single ? 0 : lhs.rows;
    epilogue.rhs_scale = rhs.scale;
    epilogue.rhs_stride = rhs.single ? 0 : 1;
    epilogue.rhs_batch_stride = rhs.single ? 0 : rhs.rows;
    epilogue.adds = plan_.adds_tiles;
    // A nonzero sum of bytes has at least a known magnitude, and a scale is not subnormal. Usually no product with them
    // is subnormal, and the tiles have nothing to check.
    const bool integers = plan_.contraction.sums_are_integers();
    epilogue.subnormals_are_zero =
        !(integers || plan_.packs_as_quantized) ||
        !ProductsAreNormal(integers ? 1 : kSmallestFloat8Product, lhs.Smallest(), rhs.Smallest());
    return epilogue;
  }

  const CallOperand& Input(Side side) const { return call_.side(side); }

  RowScales ScaleRows(Side side, DType dtype) {
    const SidePlan& own = plan_.side(side);
    RowScales rows{.rows = 1, .dtype = dtype};
    for (const int64_t axis : own.axes.rows) rows.rows *= own.x.shape[axis];
    rows.count = rows.rows;
    for (const int64_t axis : own.axes.batch) rows.count *= own.x.shape[axis];
    return rows;
  }
  // Where the scales of ScaleRows are written.
  float* ScaleBuffer(Side side, const RowScales& rows) {
    return FloatBuffer(side, ScratchSlot::kLhsEpilogueScale, rows.count);
  }
  // Scales that are read where they are, if they lie there as the epilogue reads them.
  RowScales Read(Side side, const ArrayRef& scale) {
    const SidePlan& own = plan_.side(side);
    RowScales rows = ScaleRows(side, scale.dtype);
    // Taken in any case: the memory of a call does not depend on its values.
    float* const gathered = ScaleBuffer(side, rows);
    if (const float smallest = Input(side).smallest_scale; smallest != 0) {
      rows.scale = static_cast<const float*>(scale.data);
      rows.smallest = smallest;
      return rows;
    }
    if (const ScalesInMemory dense = ScalesInPlace(scale, own.x.shape, own.axes); dense.values != nullptr) {
      rows.scale = dense.values;
      rows.smallest = dense.smallest;
      return rows;
    }
    GatherScales(scale, own.x.shape, own.axes, gathered);
    rows.scale = gathered;
    return rows;
  }

  PackedSide PackSide(Side side, const kernels::GemmKernel& kernel) {
    const Side kernel_side = KernelSide(plan_.contraction, side);
    const kernels::PanelFormat& format = kernel_side == Side::kLhs ? kernel.lhs : kernel.rhs;
    const CallOperand& in = Input(side);
    const SidePlan& own = plan_.side(side);
    const QuantizeSpec& spec = *own.spec;
    const ArrayRef& x = in.integers.data != nullptr ? in.integers : in.x;
    // These structs are filled member by member: an initializer would first clear all of their axes.
    PackedSide packed;
    packed.source = KernelOperand(x, own.axes);
    if (in.panels != nullptr) {
      packed.panels = in.panels;
      packed.scales = Read(side, in.prepared->scale[0]);
      return packed;
    }
    void* panels = Buffer(side, ScratchSlot::kLhsPacked, PanelBytes(format, packed.source));
    packed.panels = panels;

    // QuantizePack writes each qvalue at the place of its source, and writes no masks.
    const bool kept_elsewhere = in.keep_mask != nullptr || (in.keep_qvalue != nullptr && !in.x.IsDense());
    if (!own.step.has_value() || kept_elsewhere || in.has_qvalue()) {
      const QuantizedSide quantized = QuantizeSide(side);
      PackOperand(kernel, kernel_side, KernelOperand(quantized.operand, own.axes), panels, context_.runtime);
      packed.scales = Read(side, quantized.scale[0]);
      return packed;
    }
    kernels::QuantizeArgs args;
    args.src = packed.source;
    args.step = *own.step;
    if (in.factor.data != nullptr) args.k_factor = FactorAlongK(own, in);
    args.qvalues = in.keep_qvalue;
    args.panels = panels;
    const bool finds_scales = in.prepared == nullptr && own.row_scales != FusedScales::kNo;
    if (finds_scales) {
      packed.scales = ScaleRows(side, spec.scale_dtype);
      packed.scales.single = own.row_scales == FusedScales::kSingle;
      args.scale = ScaleBuffer(side, packed.scales);
      if (packed.scales.single) packed.scales.count = 1;
      args.scales =
          packed.scales.single ? kernels::QuantizeArgs::Scales::kSingle : kernels::QuantizeArgs::Scales::kPerRow;
    } else {
      const ArrayRef scale =
          in.prepared != nullptr ? in.prepared->scale[0].ref() : QuantizerOf(side).ComputeScaleOf(in.x);
      packed.scales = ScaleRows(side, scale.dtype);
      args.scale = ScaleBuffer(side, packed.scales);
      GatherScales(scale, own.x.shape, own.axes, args.scale);
      args.scales = kernels::QuantizeArgs::Scales::kGiven;
      args.scale_batch_stride = packed.source.rows.Count();
      args.scale_row_stride = 1;
    }
    packed.scales.scale = args.scale;
    args.step.scale_dtype = packed.scales.dtype;
    args.step.product_dtype = Promote(in.x.dtype, packed.scales.dtype);
    QuantizeInto(side, x, kernel.target, format, args);
    if (finds_scales && in.keep_scale != nullptr) {
      ScatterScales(packed.scales.scale, own.axes, MutableArrayRef(spec.scale_dtype, spec.scale_shape, in.keep_scale));
    }
    return packed;
  }

  // Quantizes `x` as `args` say, but with its noise if it has some.
  void QuantizeInto(Side side, const ArrayRef& x, kernels::Target target, const kernels::PanelFormat& format,
                    kernels::QuantizeArgs& args) {
    const QuantizeSpec& spec = *plan_.side(side).spec;
    CountPack(side, context_.runtime);
    const auto quantize = [&] {
      kernels::QuantizePack(
          target, format, args,
          [&](float* absmax, int64_t n) { ScalesFromAbsMax(spec, context_.semantics.arithmetic, absmax, n); },
          context_.runtime.executor);
    };
    const std::optional<TensorDraws> draws = QuantizerOf(side).Draws();
    if (!draws.has_value()) return quantize();
    const kernels::RandomNumbers numbers = NumbersOf(spec.numerics, spec.scaled_dtype, *draws);
    const NoisyOperand noisy = KernelOperand(x, plan_.side(side).axes, numbers, draws->shape);
    args.src = noisy.source;
    args.noise = &noisy.noise;
    quantize();
  }

  // The factor of the lhs of a gradient by batch and k, in its dtype.
  const float* FactorAlongK(const SidePlan& own, const CallOperand& in) {
    const OperandAxes axes{.batch = own.axes.batch, .rows = own.axes.k, .k = own.axes.rows};
    int64_t n = 1;
    for (const Axes* group : {&axes.batch, &axes.rows}) {
      for (const int64_t axis : *group) n *= own.x.shape[axis];
    }
    float* factor = static_cast<float*>(
        context_.workspace.Get(ScratchSlot::kScaledGradient, n * static_cast<int64_t>(sizeof(float))));
    GatherRows(in.factor, own.x.shape, axes, factor);
    RoundRow(own.x.dtype, factor, n);
    FlushRow(own.x.dtype, factor, n);
    return factor;
  }

  const ProductPlan& plan_;
  const ProductCall& call_;
  const CallContext& context_;
  const PassNames& names_;
  // What the scale of a side is found for, and what is quantized: the operand, unless mid scales rescale it.
  const ArrayRef* calibrated_[2];
  const ArrayRef* quantized_[2];
  ArrayRef rescaled_[2];
  ArrayRef ratio_[2];  // by which mid scales divide an operand
};

ProductCall Tiled(const TiledDot& tiled, const ProductCall& call) {
  ProductCall result = call;
  for (const Side side : kSides) {
    CallOperand& operand = result.side(side);
    if (!operand.has_qvalue()) operand.x = tiled.operand(side).View(operand.x);
  }
  return result;
}

}  // namespace

void RunProduct(const ProductPlan& plan, const ProductCall& call, const CallContext& context) {
  if (!plan.tiled.has_value()) {
    Run(plan, call, context)();
    return;
  }
  ProductCall tiled = Tiled(*plan.tiled, call);
  const MutableArrayRef sum = plan.tiled->OutView(call.out);
  Run run(plan, tiled, context);
  const bool sums = plan.tiled->num_sums > 0 && !run.SumsTiles();
  tiled.out = sums ? MutableArrayRef(plan.dtype, plan.product_shape,
                                     context.workspace.Get(ScratchSlot::kTiles,
                                                           plan.product_shape.num_elements() * SizeOf(plan.dtype)))
                   : sum;
  if (plan.adds_tiles && run.SumsTiles()) {
    FillZeros(sum);
    tiled.out.shape = plan.product_shape;
    tiled.out.strides.insert(tiled.out.strides.begin(), plan.tiled->num_sums, 0);
  }
  run();
  if (sums) SumLeadingInto(tiled.out, plan.tiled->num_sums, sum);
}

void UpdateStatisticsOf(const ProductPlan& plan, const ProductCall& call, const CallContext& context) {
  if (plan.tiled.has_value()) {
    const ProductCall tiled = Tiled(*plan.tiled, call);
    Run(plan, tiled, context).UpdateStatistics();
  } else {
    Run(plan, call, context).UpdateStatistics();
  }
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
  if (operand.dtype == DType::kS4) operand.dtype = own.operand_dtype;  // perhaps widened; a byte each
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
