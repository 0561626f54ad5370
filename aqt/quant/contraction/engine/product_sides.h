#ifndef AQT_QUANT_CONTRACTION_ENGINE_PRODUCT_SIDES_H_
#define AQT_QUANT_CONTRACTION_ENGINE_PRODUCT_SIDES_H_

// The operands of one run of a ProductPlan, shared by the general and the fused path. Internal to the engine.

#include <cstdint>

#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/engine/quantize_side.h"

namespace aqt::internal {

// Holds references: the caller keeps the objects alive.
struct ProductSides {
  ProductSides(const ProductPlan& p, const ProductCall& c, const CallContext& x)
      : plan(p), call(c), context(x), names(NamesOf(p.pass)) {}

  const CallOperand& Input(Side side) const { return call.side(side); }

  // The operand that is calibrated and quantized: rotated, into scratch memory, if the plan says so.
  ArrayRef Operand(Side side) const;

  // Scratch of this side; `lhs` is the slot of the lhs.
  void* Buffer(Side side, ScratchSlot lhs, int64_t bytes) const {
    return context.workspace.Get(OfSide(side == Side::kLhs, lhs), bytes);
  }
  float* FloatBuffer(Side side, ScratchSlot lhs, int64_t n) const {
    return static_cast<float*>(Buffer(side, lhs, n * static_cast<int64_t>(sizeof(float))));
  }

  SideQuantizer QuantizerOf(Side side) const {
    return SideQuantizer(plan.side(side), side, Input(side), names.side(side), context);
  }
  // Finds the scale for `calibrated` and quantizes `quantized`. Only the shape and the scales of a packed operand are
  // read.
  QuantizedSide Quantize(Side side, const ArrayRef& calibrated, const ArrayRef& quantized) const;
  QuantizedSide Quantize(Side side) const {
    const ArrayRef x = Operand(side);
    return Quantize(side, x, x);
  }
  // Gives operands the dtypes that the kernel reads: the plan may have widened 4-bit integers, which are stored in a
  // byte each.
  void Widen(QuantizedSide& lhs, QuantizedSide& rhs) const;

  const ProductPlan& plan;
  const ProductCall& call;
  const CallContext& context;
  const PassNames& names;
};

// Whether the kernels do everything in this call: quantize into panels, multiply, and apply the scales.
bool CanFuse(const ProductSides& sides);
void RunFused(const ProductSides& sides);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_PRODUCT_SIDES_H_
