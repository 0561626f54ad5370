#ifndef AQT_QUANT_CONTRACTION_ENGINE_CONTRACT_H_
#define AQT_QUANT_CONTRACTION_ENGINE_CONTRACT_H_

// The plain contraction of two arrays: the product that a quantized contraction quantizes for. Internal.

#include <cstdint>
#include <memory>
#include <optional>

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/windows.h"
#include "aqt/quant/contraction/engine/workspace.h"

namespace aqt::internal {

// The dtypes of a product of two operands, as XLA on CPU computes lax.dot_general. Every contraction follows this rule.
struct ProductTypes {
  // T, of the product: the accumulator dtype if there is one; else the operand dtype with the larger (greatest
  // exponent, mantissa bits), where a float ranks above an integer, and the wider of two integers is taken.
  DType product = DType::kF32;
  // Whether both operands are converted to T before they are multiplied (to an infinity if too large for it): a float
  // product of different dtypes, and one of f16 into bf16.
  bool converts_operands = false;
  // Whether the sum is rounded to bf16 before it is rounded to T: bf16 operands into f16.
  bool rounds_to_bf16_first = false;
};

// Operands: s2 .. s32, e4m3fn, e5m2, bf16, f16, f32. accumulator: null, s32 (two integers), f32, bf16 or f16.
ProductTypes ProductTypesOf(DType lhs, DType rhs, std::optional<DType> accumulator);

// Whether the float dtype `to` has every number of `from`, so that a conversion changes nothing.
bool HoldsAllOf(DType to, DType from);

// What is known about a contraction before there are data. The dtype of the product says how products are summed:
//   s32          exact (integer operands; wraps modulo 2^32)
//   s2, s4, s8   the exact sum, wrapped to that many bits
//   f32 .. e5m2  in f32, in ascending order of k, then rounded once; the steps depend on the target and on whether
//                both operands fit bf16 (gemm_table.h). Subnormal f32 and bf16 operands are zero, and so are subnormal
//                f32 sums. On digits the sum is that of kernels/digits.h instead, the same on all
//                targets.
struct Contraction {
  std::optional<Windows> windows = {};  // of a convolution; else by the dims
  DotDims dims = {};
  OperandAxes lhs = {}, rhs = {};
  DType product = DType::kF32;
  // Both operands of a product of floats are converted to this dtype first, unless it holds all of their numbers.
  std::optional<DType> converts_to = {};
  bool rounds_to_bf16_first = false;  // the sum, before it is rounded to the product's dtype
  // The kernel takes the rhs for its lhs, since the output is contiguous along rows. Nothing is packed ahead of time.
  bool exchanges_operands = false;
  // Bits of the integers of the rhs if they meet the lhs, floats or integers, on digits (kernels/digits.h); 0 if `gemm`
  // multiplies.
  int digit_bits = 0;
  // Of digits: that of kernels::DigitFormat. If not 0, each group of k has a scale of its own, a tile's.
  int64_t scale_group = 0;
  kernels::Target target = {};                // of digits
  const kernels::GemmKernel* gemm = nullptr;  // null: an operand is s32, and so is the product
  // The same for an rhs that is packed ahead of time: of floats, one that reads the narrowest panels that hold it.
  const kernels::GemmKernel* gemm_of_packed_rhs = nullptr;

  bool on_digits() const { return digit_bits != 0; }
  bool sums_are_integers() const { return IsInteger(product); }
};

// By dimension numbers, as XLA on CPU computes lax.dot_general. Operands: s2, s4, s8, s32, e4m3fn, e5m2, bf16, f16 or
// f32. `weight_only`: of a product of floats and integers.
struct ContractionOptions {
  bool exchanges_operands = false;
  WeightOnly weight_only = WeightOnly::kFloat;
  // Floats are added one by one, so that the sum over a part of k is that over all k with zeros elsewhere.
  bool adds_one_by_one = false;
};
Contraction MakeContraction(const DotDims& dims, const Aval& lhs, const Aval& rhs, DType product,
                            kernels::Target target, const ContractionOptions& options = {});
// Whether the kernels take both operands for bf16, which can change the order of a sum (gemm_table.h).
bool MeetInBf16(DType lhs, DType rhs);
// Whether a float lhs and integers of at most a byte may meet on digits. (A float rhs is a weight, prepared once: it
// would become digits in each call.)
bool MeetOnDigits(DType lhs, DType rhs, DType product);
// Of windows: s32 sums of two integers of at most a byte, or f32 sums of operands in `dtype`, rounded to `product`.
Contraction MakeWindowContraction(const Windows& windows, DType dtype, DType lhs, DType rhs, DType product,
                                  kernels::Target target);

// Operands that are packed already; null: they are packed in the call. Only the dtype and the shape of the array of a
// packed operand are read.
struct PackedOperands {
  const void* lhs = nullptr;
  const void* rhs = nullptr;
};

// out = lhs x rhs, dense in the layout of the product (DotOutputShape), of the product's dtype. Any strides.
void Contract(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Workspace& workspace, const Runtime& runtime, const PackedOperands& packed = {});

// The same with an epilogue, and an `out` of f32, bf16 or f16 with any strides and at most AxisGroup::kMaxRank axes.
// With windows the scale of lhs is one per example, and that of rhs one per output channel; else both are in the order
// of the epilogue. With scale groups the scales of rhs are those of [group, batch, row], and are read from its panels
// if it is packed.
void ContractScaled(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs,
                    const kernels::Epilogue& epilogue, const MutableArrayRef& out, Workspace& workspace,
                    const Runtime& runtime, const PackedOperands& packed = {});

// The kernel's side that an operand is on.
inline Side KernelSide(const Contraction& contraction, Side side) {
  return contraction.exchanges_operands ? Other(side) : side;
}

// The dtype of an operand in its panels, and their format (not of digits). Not for a product of s32.
DType PackedDType(const Contraction& contraction, DType operand);
const kernels::PanelFormat& PackedFormat(const Contraction& contraction, Side side);
// An operand packed ahead of time along `axes`, or, of windows, as their kernel; with scale groups, its scales as for
// ContractScaled.
std::shared_ptr<const void> PackAhead(const Contraction& contraction, Side side, const ArrayRef& x,
                                      const OperandAxes& axes, const float* group_scales, const Runtime& runtime);
int64_t PackedBytes(const Contraction& contraction, Side side, const Shape& x, const OperandAxes& axes);

// What Contract needs for operands of these avals, and ContractScaled; the latter with a scale of lhs or without.
void AddContractSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, int64_t product_elements,
                      SlotSizes& sizes);
void AddContractScaledSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, bool has_lhs_scale,
                            SlotSizes& sizes);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_CONTRACT_H_
