// Products whose scales are multiplied in the epilogue of the kernels: of integers and of 8-bit floats. They have the
// bits of the general path.

#include <cstdint>
#include <optional>

#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/quant/contraction/engine/contract.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/engine/product_sides.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

// The smallest product of two e5m2 values, whose smallest is 2^-16. All sums are multiples of it.
constexpr double kSmallestFloat8Product = 0x1p-32;

class FusedRun {
 public:
  explicit FusedRun(const ProductSides& sides)
      : sides_(sides),
        plan_(sides.plan),
        call_(sides.call),
        context_(sides.context),
        rhs_is_packed_(sides.Input(Side::kRhs).panels != nullptr) {}

  void Run() {
    const bool sums_tiles_at_once = plan_.summed_tiles.has_value() && !plan_.AddsTiles(rhs_is_packed_);
    if (plan_.packs_as_quantized && !sums_tiles_at_once) return RunBytes();
    QuantizedSide lhs = sides_.Quantize(Side::kLhs), rhs = sides_.Quantize(Side::kRhs);
    const Contraction& contraction = plan_.fused_contraction();
    const bool scales_are_packed = contraction.scale_group != 0 && rhs_is_packed_;
    const RowScales lhs_scales = OutputScales(Side::kLhs, lhs);
    const RowScales rhs_scales = scales_are_packed ? RowScales() : OutputScales(Side::kRhs, rhs);
    sides_.Widen(lhs, rhs);
    ContractScaled(contraction, lhs.operand, rhs.operand, EpilogueOf(lhs_scales, rhs_scales), call_.out,
                   context_.workspace, context_.runtime,
                   {sides_.Input(Side::kLhs).panels, sides_.Input(Side::kRhs).panels});
  }

 private:
  // The scales of one side as the epilogue reads them: one per [batch, row], or one.
  struct RowScales {
    const float* scale = nullptr;
    int64_t count = 0;  // of all matrices
    int64_t rows = 0;   // of one matrix
    bool single = false;
    DType dtype = DType::kF32;
    std::optional<float> smallest = std::nullopt;  // magnitude, if already known

    float Smallest() const { return smallest.has_value() ? *smallest : SmallestMagnitude(scale, count); }
  };
  // One side in the form that a kernel reads.
  struct PackedSide {
    kernels::Operand source;
    const void* panels = nullptr;
    RowScales scales;
  };

  // The scales that multiply the product; none if the side has no such scale.
  RowScales OutputScales(Side side, const QuantizedSide& quantized) {
    return plan_.side(side).scales_output() ? Read(side, quantized.scale[0]) : RowScales();
  }

  // Operands are quantized directly into panels.
  void RunBytes() {
    const kernels::GemmKernel& kernel =
        rhs_is_packed_ ? *plan_.contraction.gemm_of_packed_rhs : *plan_.contraction.gemm;
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
    // The product's dtype if it rounds; otherwise the plan's.
    epilogue.sum_dtype = product == DType::kS32 || product == DType::kF32 ? plan_.dtype : product;
    epilogue.first_dtype = lhs.scale == nullptr ? plan_.dtype : Promote(plan_.dtype, lhs.dtype);
    epilogue.second_dtype = rhs.scale == nullptr ? epilogue.first_dtype : Promote(epilogue.first_dtype, rhs.dtype);
    epilogue.lhs_scale = lhs.scale;
    epilogue.lhs_stride = lhs.single ? 0 : 1;
    epilogue.lhs_batch_stride = lhs.single ? 0 : lhs.rows;
    epilogue.rhs_scale = rhs.scale;
    epilogue.rhs_stride = rhs.single ? 0 : 1;
    epilogue.rhs_batch_stride = rhs.single ? 0 : rhs.rows;
    epilogue.adds = plan_.AddsTiles(rhs_is_packed_);
    epilogue.block = call_.block_epilogue;
    // A nonzero sum of bytes has a known smallest magnitude, and scales are not subnormal. Usually neither products
    // with them nor sums of such products are subnormal, and the kernel need not check.
    const bool integers = plan_.contraction.sums_are_integers();
    const auto are_normal = epilogue.adds ? &SumsOfProductsAreNormal : &ProductsAreNormal;
    epilogue.subnormals_are_zero = !(integers || plan_.packs_as_quantized) ||
                                   !are_normal(integers ? 1 : kSmallestFloat8Product, lhs.Smallest(), rhs.Smallest());
    return epilogue;
  }

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
    return sides_.FloatBuffer(side, ScratchSlot::kLhsEpilogueScale, rows.count);
  }
  // Scales are read in place if they are stored as the epilogue reads them, and gathered otherwise.
  RowScales Read(Side side, const ArrayRef& scale) {
    const SidePlan& own = plan_.side(side);
    RowScales rows = ScaleRows(side, scale.dtype);
    // Always taken: the memory of a call does not depend on its values.
    float* const gathered = ScaleBuffer(side, rows);
    if (const float smallest = sides_.Input(side).smallest_scale; smallest != 0) {
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
    const CallOperand& in = sides_.Input(side);
    const SidePlan& own = plan_.side(side);
    const ArrayRef& x = in.integers.data != nullptr ? in.integers : in.x;
    // These structs are filled member by member: an initializer would first clear all their axes.
    PackedSide packed;
    packed.source = KernelOperand(x, own.axes);
    if (in.panels != nullptr) {
      packed.panels = in.panels;
      packed.scales = Read(side, in.prepared->scale[0]);
      return packed;
    }
    void* panels = sides_.Buffer(side, ScratchSlot::kLhsPacked, PanelBytes(format, packed.source));
    packed.panels = panels;

    // QuantizePack writes each qvalue at the offset of its source, and writes no masks.
    const bool kept_elsewhere = in.keep_mask != nullptr || (in.keep_qvalue != nullptr && !in.x.IsDense());
    if (!own.step.has_value() || kept_elsewhere || in.has_qvalue()) {
      const QuantizedSide quantized = sides_.Quantize(side);
      PackOperand(kernel, kernel_side, KernelOperand(quantized.operand, own.axes), panels, context_.runtime);
      packed.scales = Read(side, quantized.scale[0]);
      return packed;
    }
    QuantizeIntoPanels(side, x, kernel.target, format, panels, packed);
    return packed;
  }

  // Finds the scales, unless they are given, and quantizes x into panels and into the buffers that the caller keeps.
  void QuantizeIntoPanels(Side side, const ArrayRef& x, kernels::Target target, const kernels::PanelFormat& format,
                          void* panels, PackedSide& packed) {
    const CallOperand& in = sides_.Input(side);
    const SidePlan& own = plan_.side(side);
    kernels::QuantizeArgs args;
    args.src = packed.source;
    args.step = *own.step;
    if (in.factor.data != nullptr) args.k_factor = FactorAlongK(own, in);
    args.qvalues = in.keep_qvalue;
    args.panels = panels;
    const bool finds_scales = in.prepared == nullptr && own.row_scales != FusedScales::kNo;
    if (finds_scales) {
      packed.scales = ScaleRows(side, own.spec->scale_dtype);
      packed.scales.single = own.row_scales == FusedScales::kSingle;
      args.scale = ScaleBuffer(side, packed.scales);
      if (packed.scales.single) packed.scales.count = 1;
      args.scales =
          packed.scales.single ? kernels::QuantizeArgs::Scales::kSingle : kernels::QuantizeArgs::Scales::kPerRow;
    } else {
      const ArrayRef scale =
          in.prepared != nullptr ? in.prepared->scale[0].ref() : sides_.QuantizerOf(side).ComputeScaleOf(in.x);
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
    QuantizeInto(side, x, target, format, args);
    if (finds_scales && in.keep_scale != nullptr) {
      ScatterScales(packed.scales.scale, own.axes,
                    MutableArrayRef(own.spec->scale_dtype, own.spec->scale_shape, in.keep_scale));
    }
  }

  // Quantizes `x` with `args`, and with its noise if any.
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
    const std::optional<TensorDraws> draws = sides_.QuantizerOf(side).Draws();
    if (!draws.has_value()) return quantize();
    const kernels::RandomNumbers numbers = NumbersOf(spec.numerics, spec.scaled_dtype, *draws);
    const NoisyOperand noisy = KernelOperand(x, plan_.side(side).axes, numbers, draws->shape);
    args.src = noisy.source;
    args.noise = &noisy.noise;
    quantize();
  }

  // The factor of a gradient's lhs by batch and k, in its dtype.
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

  const ProductSides& sides_;
  const ProductPlan& plan_;
  const ProductCall& call_;
  const CallContext& context_;
  const bool rhs_is_packed_;
};

}  // namespace

bool CanFuse(const ProductSides& sides) {
  const ProductPlan& plan = sides.plan;
  if (!plan.fuses || sides.context.runtime.observer != nullptr || sides.context.runtime.product != nullptr)
    return false;
  for (const Side side : kSides) {
    const QTensor* prepared = sides.Input(side).prepared;
    // A float has no scale, and the epilogue takes at most one.
    if (prepared != nullptr && plan.side(side).scales_output() && prepared->scale.size() != 1) return false;
  }
  return true;
}

void RunFused(const ProductSides& sides) { FusedRun(sides).Run(); }

}  // namespace aqt::internal
