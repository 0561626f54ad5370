// Products whose scales are multiplied in the epilogue of the kernels: of integers and of 8-bit floats. They have the
// bits of the general path.

#include <cstdint>
#include <optional>
#include <utility>

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

  // The scales that multiply the product; none if the side has no such scale.
  RowScales OutputScales(Side side, const QuantizedSide& quantized) {
    return plan_.side(side).scales_output() ? Read(side, quantized.scale[0]) : RowScales();
  }

  // Operands are quantized directly into panels.
  void RunBytes() {
    const kernels::GemmKernel& kernel =
        rhs_is_packed_ ? *plan_.contraction.gemm_of_packed_rhs : *plan_.contraction.gemm;
    kernels::GemmPanels panels;
    const RowScales lhs = PackSide(Side::kLhs, kernel, panels.lhs), rhs = PackSide(Side::kRhs, kernel, panels.rhs);
    const SidePlan& left = plan_.lhs;
    kernels::GemmProblem problem = {.batch = kernels::Extent(left.x.shape, left.axes.batch),
                                    .m = lhs.rows,
                                    .n = rhs.rows,
                                    .k = kernels::Extent(left.x.shape, left.axes.k),
                                    .out = kernels::OutputOf(call_.out, plan_.lhs.axes),
                                    .epilogue = EpilogueOf(lhs, rhs)};
    if (!problem.HasBlocks()) problem.epilogue.block = nullptr;
    if (plan_.contraction.exchanges_operands) {
      problem.ExchangeOperands();
      std::swap(panels.lhs, panels.rhs);
    }
    PackAndMultiply(kernel, problem, panels, context_.workspace, context_.runtime);
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
    const int64_t rows = kernels::Extent(own.x.shape, own.axes.rows);
    return {.count = rows * kernels::Extent(own.x.shape, own.axes.batch), .rows = rows, .dtype = dtype};
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

  // Packs a side as a kernel reads it, unless it is packed already. Returns its scales.
  RowScales PackSide(Side side, const kernels::GemmKernel& kernel, const void*& panels) {
    const Side kernel_side = KernelSide(plan_.contraction, side);
    const kernels::PanelFormat& format = kernel_side == Side::kLhs ? kernel.lhs : kernel.rhs;
    const CallOperand& in = sides_.Input(side);
    const SidePlan& own = plan_.side(side);
    if (in.panels != nullptr) {
      panels = in.panels;
      return Read(side, in.prepared->scale[0]);
    }
    void* const to = sides_.Buffer(side, ScratchSlot::kLhsPacked, PanelBytes(format, own.x.shape, own.axes));
    panels = to;

    // QuantizePack writes each qvalue at the offset of its source, and writes no masks.
    const bool keeps_layout = in.x.IsDense() && (own.hadamard_block == 0 || FindsScalesWhilePacking(side));
    const bool kept_elsewhere = in.keep_mask != nullptr || (in.keep_qvalue != nullptr && !keeps_layout);
    if (!own.step.has_value() || kept_elsewhere || in.has_qvalue()) {
      const QuantizedSide quantized = sides_.Quantize(side);
      PackOperand(kernel, kernel_side, kernels::OperandOf(quantized.operand, own.axes), to, context_.runtime);
      return Read(side, quantized.scale[0]);
    }
    return QuantizeIntoPanels(side, kernel.target, format, to);
  }

  // Whether QuantizePack finds the scales or takes those of the caller.
  bool FindsScalesWhilePacking(Side side) const {
    return sides_.Input(side).prepared != nullptr || plan_.side(side).row_scales != FusedScales::kNo;
  }

  // Rotates a side if needed, and quantizes it into panels, with its noise if it has some, and into what the caller
  // keeps. Finds the scales, unless they are given.
  RowScales QuantizeIntoPanels(Side side, kernels::Target target, const kernels::PanelFormat& format, void* panels) {
    const CallOperand& in = sides_.Input(side);
    const SidePlan& own = plan_.side(side);
    const QuantizeSpec& spec = *own.spec;
    ArrayRef x = in.integers.data != nullptr ? in.integers : in.x;
    kernels::QuantizeArgs args;
    args.step = *own.step;
    if (own.hadamard_block != 0 && FindsScalesWhilePacking(side)) {
      args.hadamard_block = own.hadamard_block;
      args.rotated = sides_.Buffer(side, ScratchSlot::kLhsRotated, own.x.num_bytes());
    } else if (own.hadamard_block != 0) {
      x = sides_.Operand(side);
    }
    if (in.factor.data != nullptr) args.k_factor = FactorAlongK(own, in);
    args.qvalues = in.keep_qvalue;
    args.panels = panels;
    const RowScales scales = ScalesWhilePacking(side, x, args);
    args.step.scale_dtype = scales.dtype;
    args.step.product_dtype = Promote(in.x.dtype, scales.dtype);

    std::optional<NoisyOperand> noisy;
    if (const std::optional<TensorDraws> draws = sides_.QuantizerOf(side).Draws(); draws.has_value()) {
      noisy = NoisyOperandOf(x, own.axes, NumbersOf(spec.numerics, spec.scaled_dtype, *draws), draws->shape);
      args.noise = &noisy->noise;
    }
    args.src = noisy.has_value() ? noisy->source : kernels::OperandOf(x, own.axes);
    CountPack(side, context_.runtime);
    kernels::QuantizePack(
        target, format, args, [&](float* absmax, int64_t n) { ScalesFromAbsMax(spec, context_.semantics, absmax, n); },
        context_.runtime.executor);
    if (args.scales != kernels::QuantizeArgs::Scales::kGiven && in.keep_scale != nullptr) {
      ScatterScales(scales.scale, own.axes, MutableArrayRef(spec.scale_dtype, spec.scale_shape, in.keep_scale));
    }
    return scales;
  }

  // The scales of x that QuantizePack finds or reads, and how.
  RowScales ScalesWhilePacking(Side side, const ArrayRef& x, kernels::QuantizeArgs& args) {
    const CallOperand& in = sides_.Input(side);
    const SidePlan& own = plan_.side(side);
    RowScales scales;
    if (in.prepared == nullptr && own.row_scales != FusedScales::kNo) {
      scales = ScaleRows(side, own.spec->scale_dtype);
      args.scale = ScaleBuffer(side, scales);
      scales.single = own.row_scales == FusedScales::kSingle;
      if (scales.single) scales.count = 1;
      args.scales = scales.single ? kernels::QuantizeArgs::Scales::kSingle : kernels::QuantizeArgs::Scales::kPerRow;
    } else {
      const ArrayRef scale =
          in.prepared != nullptr ? in.prepared->scale[0].ref() : sides_.QuantizerOf(side).ComputeScaleOf(x);
      scales = ScaleRows(side, scale.dtype);
      args.scale = ScaleBuffer(side, scales);
      GatherScales(scale, own.x.shape, own.axes, args.scale);
      args.scales = kernels::QuantizeArgs::Scales::kGiven;
      args.scale_batch_stride = scales.rows;
      args.scale_row_stride = 1;
    }
    scales.scale = args.scale;
    return scales;
  }

  // The factor of a gradient's lhs by batch and k, in its dtype.
  const float* FactorAlongK(const SidePlan& own, const CallOperand& in) {
    const OperandAxes axes{.batch = own.axes.batch, .rows = own.axes.k, .k = own.axes.rows};
    const int64_t n = kernels::Extent(own.x.shape, axes.batch) * kernels::Extent(own.x.shape, axes.rows);
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
