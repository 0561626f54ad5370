// Runs a RawDotPlan: the general way, or integer products on the s8 kernels. Both give the same bits.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/gemm_s8.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/pack.h"
#include "aqt/kernels/panel_format.h"
#include "aqt/kernels/scalar_math.h"
#include "aqt/kernels/target.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/contract.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/raw_dot.h"
#include "aqt/quant/contraction/scale_layout.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

class Run {
 public:
  Run(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Execution& runtime)
      : plan_(plan), call_(call), workspace_(workspace), runtime_(runtime), names_(NamesOf(plan.pass)) {
    calibrated_[0] = quantized_[0] = call.lhs.x;
    calibrated_[1] = quantized_[1] = call.rhs.x;
  }

  void UpdateStatistics() {
    if (plan_.HasMidScales()) RescaleOperands();
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const std::optional<QuantizeSpec>& spec = plan_.side(side).spec;
      if (spec.has_value() && spec->has_state()) QuantizerOf(side).ComputeScaleOf(calibrated_[static_cast<int>(side)]);
    }
  }

  void operator()() {
    if (CanFuse()) {
      RunFused();
    } else {
      RunGeneral();
    }
  }

 private:
  // ---- any configuration: each step a pass over memory

  void RunGeneral() {
    if (plan_.HasMidScales()) RescaleOperands();
    QuantizedSide lhs = QuantizeSide(Side::kLhs), rhs = QuantizeSide(Side::kRhs);
    KeepForwardOperand(Side::kLhs, lhs);
    KeepForwardOperand(Side::kRhs, rhs);
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
    if (plan_.ragged == Ragged::kNo) {
      Multiply(lhs.operand, rhs.operand, plan_.dims, product);
    } else {
      ContractGroups(lhs.operand, rhs.operand, product);
    }
    Observe(names_.accum, product);

    absl::InlinedVector<ArrayRef, 2> scales;
    AppendOutputScales(Side::kLhs, lhs, scales);
    AppendOutputScales(Side::kRhs, rhs, scales);
    DequantizeInto(product, {.scale = scales}, plan_.dtype, call_.out);
    // Rows of no group are zero even if a scale is NaN.
    if (plan_.ragged == Ragged::kRows) {
      FillZeros(Rows(call_.out, GroupedRows(), call_.out.shape[0] - GroupedRows()));
    }
  }

  void Multiply(const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims, const MutableArrayRef& product) {
    if (runtime_.product != nullptr) {
      runtime_.product->Contract(ToString(plan_.pass), lhs, rhs, dims, product);
    } else {
      Contract(lhs, rhs, dims, product, workspace_, runtime_);
    }
  }

  int64_t GroupedRows() const {
    return std::accumulate(call_.group_sizes.begin(), call_.group_sizes.end(), int64_t{0});
  }
  // `count` elements of axis 0 of x.
  template <class Ref>
  static Ref Rows(const Ref& x, int64_t first, int64_t count) {
    Ref rows = x;
    rows.data = Advanced(x.data, first * x.strides[0] * SizeOf(x.dtype));
    rows.shape[0] = count;
    return rows;
  }
  // Element `index` of axis 0, without that axis.
  template <class Ref>
  static Ref Element(const Ref& x, int64_t index) {
    return Ref(x.dtype, Shape(x.shape.extents().subspan(1)), Strides(x.strides.begin() + 1, x.strides.end()),
               Advanced(x.data, index * x.strides[0] * SizeOf(x.dtype)));
  }
  static void* Advanced(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }
  static const void* Advanced(const void* data, int64_t bytes) { return static_cast<const char*>(data) + bytes; }

  // A matrix product per group. `product` is dense.
  void ContractGroups(const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& product) {
    const bool by_rows = plan_.ragged == Ragged::kRows;
    DotDims dims{.lhs_contracting = {plan_.dims.lhs_contracting[0]},
                 .rhs_contracting = {plan_.dims.rhs_contracting[0]}};
    if (by_rows) --dims.rhs_contracting[0];  // in one group's matrix
    int64_t first = 0;
    for (size_t i = 0; i < call_.group_sizes.size(); ++i) {
      const int64_t group = static_cast<int64_t>(i), rows = call_.group_sizes[i];
      Multiply(Rows(lhs, first, rows), by_rows ? Element(rhs, group) : Rows(rhs, first, rows), dims,
               by_rows ? Rows(product, first, rows) : Element(product, group));
      first += rows;
    }
    if (by_rows) FillZeros(Rows(product, first, product.shape[0] - first));
  }

  void Observe(absl::string_view name, const ArrayRef& value) const {
    if (runtime_.observer != nullptr) runtime_.observer->OnTensor(name, value);
  }
  void* Buffer(Side side, Workspace::Slot lhs, Workspace::Slot rhs, int64_t bytes) {
    return workspace_.Get(side == Side::kLhs ? lhs : rhs, bytes);
  }

  SideQuantizer QuantizerOf(Side side) {
    return SideQuantizer(plan_.side(side), side, Input(side), call_.layout, names_.side(side), workspace_, runtime_);
  }
  QuantizedSide QuantizeSide(Side side) {
    const int i = static_cast<int>(side);
    return QuantizerOf(side).Quantize(calibrated_[i], quantized_[i]);
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
    const DotDims own = side == Side::kLhs ? plan_.dims : plan_.dims.Swapped();
    Shape shape = x.shape;
    for (const int64_t axis : RemainingAxes(x.shape.rank(), own.lhs_contracting, own.lhs_batch)) shape[axis] = 1;
    const int64_t n = shape.num_elements();
    float* mid = static_cast<float*>(
        Buffer(side, Workspace::kLhsMid, Workspace::kRhsMid, n * static_cast<int64_t>(sizeof(float))));
    std::fill(mid, mid + n, 1.0f);
    if (alpha.has_value()) {
      AbsMaxInto(x, shape, mid);
      for (int64_t i = 0; i < n; ++i) mid[i] = mid[i] == 0 ? 1.0f : Power(x.dtype, mid[i], *alpha);
    }
    return ArrayRef(mid, shape);
  }

  void Rescale(Side side, const ArrayRef& own, const ArrayRef& other) {
    const ArrayRef& x = Input(side).x;
    const ArrayRef in_own_layout =
        BroadcastTo(*ScaleToOther(other, Other(side), plan_.dims, x.shape.rank()), own.shape);
    const MutableArrayRef ratio(DType::kF32, own.shape,
                                Buffer(side, Workspace::kLhsMidRatio, Workspace::kRhsMidRatio,
                                       own.shape.num_elements() * static_cast<int64_t>(sizeof(float))));
    DivideInto(own, in_own_layout, x.dtype, ratio);
    const MutableArrayRef rescaled(
        x.dtype, x.shape,
        Buffer(side, Workspace::kLhsRescaled, Workspace::kRhsRescaled, x.shape.num_elements() * SizeOf(x.dtype)));
    // XLA divides by a broadcast operand as it divides by a constant: it multiplies by the reciprocal.
    if (runtime_.semantics.arithmetic == Arithmetic::kXlaCompatible && own.shape != x.shape) {
      DivideByBroadcastInto(x, ratio, x.dtype, rescaled);
    } else {
      DivideInto(x, ratio, x.dtype, rescaled);
    }
    ratio_[static_cast<int>(side)] = ratio;
    calibrated_[static_cast<int>(side)] = rescaled;
    if (!runtime_.semantics.compat.mid_scales_on_original_operands) quantized_[static_cast<int>(side)] = rescaled;
  }

  // What a backward pass with use_fwd_quant takes for an operand that was quantized under mid scales: its qvalues as
  // numbers, times the ratio that the operand was divided by.
  void KeepForwardOperand(Side side, const QuantizedSide& own) {
    void* kept = Input(side).keep_forward_operand;
    if (kept == nullptr) return;
    const Aval& aval = plan_.side(side).x;
    const MutableArrayRef operand(aval.dtype, aval.shape, kept);
    DequantizeInto(own.qvalue, {}, aval.dtype, operand);
    if (runtime_.semantics.compat.mid_scales_on_original_operands) return;
    MultiplyInto(operand, ratio_[static_cast<int>(side)], aval.dtype, operand);
  }

  // other.operand *= each scale of `own`, in the dtype of the other operand.
  void MultiplyIntoOther(Side side, const QuantizedSide& own, QuantizedSide& other) {
    const Aval aval = other.operand.aval();
    const Side other_side = Other(side);
    const MutableArrayRef product(aval.dtype, aval.shape,
                                  Buffer(other_side, Workspace::kLhsOperand, Workspace::kRhsOperand, aval.num_bytes()));
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
    for (const ArrayRef& scale : own.scale) {
      ArrayRef view = *ScaleToOutput(scale, side, plan_.dims, other_rank);
      if (plan_.ragged == Ragged::kContracting) {  // shared by all groups
        Shape shape{1};
        for (const int64_t extent : view.shape) shape.push_back(extent);
        view.shape = shape;
        view.strides.insert(view.strides.begin(), 0);
      }
      scales.push_back(std::move(view));
    }
  }

  // ---- integer products: panels, the s8 kernels, scales in their epilogue

  // One side as a kernel reads it.
  struct PackedSide {
    kernels::Operand source;
    const void* panels = nullptr;
    float* scale = nullptr;  // one per [batch, row], or one
    bool single = false;
    int64_t num_scales() const { return single ? 1 : source.batch.Count() * source.rows.Count(); }
  };

  // Sums of bytes in s32: both sides are integers that are dequantized on the product.
  bool CanFuse() const {
    if (runtime_.observer != nullptr || runtime_.product != nullptr || plan_.ragged != Ragged::kNo) return false;
    if (!plan_.IsProductOfBytes() || plan_.HasMidScales()) return false;
    for (const RawOperand* in : {&call_.lhs, &call_.rhs}) {
      if (in->x.shape.rank() > kernels::AxisGroup::kMaxRank) return false;
      if (in->given != nullptr && in->given->scale.size() != 1) return false;
    }
    return plan_.product_shape.rank() <= kernels::AxisGroup::kMaxRank;
  }

  void RunFused() {
    const kernels::GemmKernel& kernel = kernels::GemmS8(runtime_.target.value_or(kernels::BestTarget()));
    const PackedSide lhs = PackSide(Side::kLhs, kernel.target, kernel.lhs);
    const PackedSide rhs = PackSide(Side::kRhs, kernel.target, kernel.rhs);
    kernels::GemmArgs args;
    args.batch = lhs.source.batch.Count();
    args.m = lhs.source.rows.Count();
    args.n = rhs.source.rows.Count();
    args.k = lhs.source.k.Count();
    args.lhs = lhs.panels;
    args.rhs = rhs.panels;
    args.lhs_batch_bytes = kernel.lhs.PackedBytes(args.m, args.k);
    args.rhs_batch_bytes = kernel.rhs.PackedBytes(args.n, args.k);
    args.out = call_.out.data;
    args.out_dtype = plan_.dtype;
    const OutputAxes axes = KernelOutput(call_.out, plan_.dims, plan_.lhs.x.shape.rank());
    args.out_batch = axes.batch;
    args.out_rows = axes.rows;
    args.out_cols = axes.cols;
    kernels::Epilogue& epilogue = args.epilogue;
    epilogue.lhs_scale = lhs.scale;
    epilogue.lhs_stride = lhs.single ? 0 : 1;
    epilogue.lhs_batch_stride = lhs.single ? 0 : args.m;
    epilogue.rhs_scale = rhs.scale;
    epilogue.rhs_stride = rhs.single ? 0 : 1;
    epilogue.rhs_batch_stride = rhs.single ? 0 : args.n;
    epilogue.sum_dtype = plan_.dtype;
    epilogue.first_dtype = Promote(plan_.dtype, ScaleDType(Side::kLhs));
    epilogue.second_dtype = Promote(epilogue.first_dtype, ScaleDType(Side::kRhs));
    // A nonzero sum is at least 1, and a scale is not subnormal: only the second product can be subnormal. Usually it
    // cannot, and the tiles have nothing to check.
    epilogue.subnormals_are_zero = !ProductsAreNormal(lhs.scale, lhs.num_scales(), rhs.scale, rhs.num_scales());
    kernels::RunGemm(kernel, args, runtime_.executor);
  }

  const RawOperand& Input(Side side) const { return side == Side::kLhs ? call_.lhs : call_.rhs; }

  DType ScaleDType(Side side) const {
    const QTensor* given = Input(side).given;
    return given != nullptr ? given->scale[0].dtype() : plan_.side(side).spec->scale_dtype;
  }

  PackedSide PackSide(Side side, kernels::Target target, const kernels::PanelFormat& format) {
    const RawOperand& in = Input(side);
    const QuantizeSpec& spec = *plan_.side(side).spec;
    PackedSide packed;
    packed.source = KernelOperand(in.x, side, plan_.dims);
    packed.scale = static_cast<float*>(Buffer(side, Workspace::kLhsEpilogueScale, Workspace::kRhsEpilogueScale,
                                              packed.num_scales() * static_cast<int64_t>(sizeof(float))));
    const auto gather = [&](const ArrayRef& scale) { GatherScales(scale, in.x.shape, side, plan_.dims, packed.scale); };
    if (in.panels != nullptr && in.panels->Fits(format, side, plan_.dims)) {
      packed.panels = in.panels->data.get();
      gather(in.given->scale[0]);
      return packed;
    }
    void* panels = Buffer(side, Workspace::kLhsPacked, Workspace::kRhsPacked, PanelBytes(format, packed.source));
    packed.panels = panels;

    std::optional<kernels::QuantizeStep> step = FusedStep(spec);
    // QuantizePack writes each qvalue at the place of its source, and writes no masks.
    const bool kept_elsewhere = in.keep_mask != nullptr || (in.keep_qvalue != nullptr && !in.x.IsDense());
    const bool given_qvalue = in.given != nullptr && in.given->IsFull();
    if (!step.has_value() || kept_elsewhere || given_qvalue) {
      const QuantizedSide quantized = QuantizeSide(side);
      kernels::Pack(target, format, KernelOperand(quantized.operand, side, plan_.dims), panels, runtime_.executor);
      gather(quantized.scale[0]);
      return packed;
    }
    step->scale_dtype = ScaleDType(side);
    step->product_dtype = Promote(in.x.dtype, step->scale_dtype);
    kernels::QuantizeArgs args;
    args.src = packed.source;
    args.step = *step;
    args.scale = packed.scale;
    args.qvalues = static_cast<int8_t*>(in.keep_qvalue);
    args.panels = panels;
    const FusedScales fused = in.given != nullptr ? FusedScales::kNo : FusedScalesOf(spec, side, plan_.dims);
    if (fused == FusedScales::kNo) {
      gather(in.given != nullptr ? in.given->scale[0].ref() : QuantizerOf(side).ComputeScaleOf(in.x));
      args.scales = kernels::QuantizeArgs::Scales::kGiven;
      args.scale_batch_stride = packed.source.rows.Count();
      args.scale_row_stride = 1;
    } else {
      packed.single = fused == FusedScales::kSingle;
      args.scales = packed.single ? kernels::QuantizeArgs::Scales::kSingle : kernels::QuantizeArgs::Scales::kPerRow;
    }
    kernels::QuantizePack(
        target, format, args,
        [&](float* absmax, int64_t n) { ScalesFromAbsMax(spec, runtime_.semantics.arithmetic, absmax, n); },
        runtime_.executor);
    if (fused != FusedScales::kNo && in.keep_scale != nullptr) {
      ScatterScales(packed.scale, side, plan_.dims, MutableArrayRef(spec.scale_dtype, spec.scale_shape, in.keep_scale));
    }
    return packed;
  }

  const RawDotPlan& plan_;
  const RawCall& call_;
  Workspace& workspace_;
  const Execution& runtime_;
  const PassNames& names_;
  // What the scale of a side is found for, and what is quantized: the operand, unless mid scales rescale it.
  ArrayRef calibrated_[2], quantized_[2];
  ArrayRef ratio_[2];  // by which mid scales divide an operand
};

RawCall CutOperands(const LocalSplit& split, const RawCall& call) {
  RawCall cut = call;
  cut.lhs.x = split.lhs.Tile(call.lhs.x);
  cut.rhs.x = split.rhs.Tile(call.rhs.x);
  return cut;
}

}  // namespace

void RunRawDot(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Execution& runtime) {
  if (!plan.split.has_value()) {
    Run(plan, call, workspace, runtime)();
    return;
  }
  RawCall cut = CutOperands(*plan.split, call);
  cut.out = MutableArrayRef(plan.dtype, plan.product_shape,
                            workspace.Get(Workspace::kParts, plan.product_shape.num_elements() * SizeOf(plan.dtype)));
  Run(plan, cut, workspace, runtime)();
  SumLeadingInto(cut.out, 1, call.out);
}

void UpdateStatisticsOf(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Execution& runtime) {
  Run(plan, plan.split.has_value() ? CutOperands(*plan.split, call) : call, workspace, runtime).UpdateStatistics();
}

std::shared_ptr<const Panels> PackPrepared(const RawDotPlan& plan, Side side, const QTensor& qtensor,
                                           const Execution& runtime) {
  if (!qtensor.IsFull() || !plan.IsProductOfBytes() || plan.ragged != Ragged::kNo ||
      qtensor.qvalue->shape().rank() > kernels::AxisGroup::kMaxRank) {
    return nullptr;
  }
  const kernels::GemmKernel& kernel = kernels::GemmS8(runtime.target.value_or(kernels::BestTarget()));
  const kernels::PanelFormat& format = side == Side::kLhs ? kernel.lhs : kernel.rhs;
  const kernels::Operand operand = KernelOperand(*qtensor.qvalue, side, plan.dims);
  std::shared_ptr<void> data = AllocateAligned(PanelBytes(format, operand));
  kernels::Pack(kernel.target, format, operand, data.get(), runtime.executor);
  const DotDims own = side == Side::kLhs ? plan.dims : plan.dims.Swapped();
  return std::make_shared<const Panels>(Panels{format, own.lhs_contracting, own.lhs_batch, std::move(data)});
}

}  // namespace aqt::internal
