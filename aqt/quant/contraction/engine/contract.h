#ifndef AQT_QUANT_CONTRACTION_ENGINE_CONTRACT_H_
#define AQT_QUANT_CONTRACTION_ENGINE_CONTRACT_H_

// The plain contraction of two arrays, after quantization. Internal.

#include <cstdint>
#include <memory>
#include <optional>

#include "aqt/core/array_ref.h"
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
  // T, the dtype of the product: the accumulator dtype if set; else the operand dtype with the larger (greatest
  // exponent, mantissa bits). A float ranks above an integer, and the wider of two integers is taken.
  DType product = DType::kF32;
  // Whether both operands are converted to T before they are multiplied (to an infinity if too large for it): true for
  // a float product of different dtypes, and for f16 into bf16.
  bool converts_operands = false;
  // What the sum is rounded to before it is rounded to T: bf16 for bf16 operands into f16, f16 for a T of 8 bits.
  std::optional<DType> rounds_first_to = {};
};

// Operands: s2 .. s32, e4m3fn, e5m2, bf16, f16, f32. accumulator: null, s32 (two integers), f32, bf16 or f16.
ProductTypes ProductTypesOf(DType lhs, DType rhs, std::optional<DType> accumulator);

// Whether the float dtype `to` can represent every number of `from`, so that a conversion changes nothing.
bool HoldsAllOf(DType to, DType from);

// Everything about a contraction that does not depend on data. The dtype of the product determines how products are
// summed:
//   s32          exact (integer operands; wraps modulo 2^32)
//   s2, s4, s8   the exact sum, wrapped to that many bits
//   f32 .. e5m2  in f32, in ascending order of k, then rounded (ProductTypes); the steps depend on the target and on
//                whether both operands fit bf16 (kernels/gemm/table.h). Subnormal f32 and bf16 operands are zero, and
//                so are subnormal f32 sums. On digits the sum is that of kernels/digits/digits.h instead, the same on
//                all targets.
struct Contraction {
  std::optional<Windows> windows = {};  // for a convolution; else `dims` apply
  DotDims dims = {};
  OperandAxes lhs = {}, rhs = {};
  DType product = DType::kF32;
  // Both operands of a float product are converted to this dtype first, unless it can represent all of their numbers.
  std::optional<DType> converts_to = {};
  std::optional<DType> rounds_first_to = {};  // the sum, before it is rounded to the product's dtype
  // The kernel takes the rhs as its lhs, because the output is contiguous along rows. Nothing is packed ahead of time.
  bool exchanges_operands = false;
  // Bits of the rhs integers if they are multiplied with the lhs (floats or integers) on digits
  // (kernels/digits/digits.h); 0 if `gemm` multiplies.
  int digit_bits = 0;
  // For digits: that of kernels::DigitFormat. If not 0, each group of k, a tile, has its own scale.
  int64_t scale_group = 0;
  kernels::Target target = {};                // for digits
  const kernels::GemmKernel* gemm = nullptr;  // null: an operand is s32, and so is the product
  // The same for an rhs packed ahead of time. For floats it reads the narrowest panels that can hold them.
  const kernels::GemmKernel* gemm_of_packed_rhs = nullptr;

  bool on_digits() const { return digit_bits != 0; }
  bool sums_are_integers() const { return IsInteger(product); }
};

// Options of MakeContraction.
struct ContractionOptions {
  bool exchanges_operands = false;
  // For products of floats and integers.
  WeightOnly weight_only = WeightOnly::kFloat;
  // Floats are added one by one, so the sum over a part of k equals the sum over all k with zeros elsewhere.
  bool adds_one_by_one = false;
};
// A contraction by dimension numbers, as XLA on CPU computes lax.dot_general. Operands: s2, s4, s8, s32, e4m3fn, e5m2,
// bf16, f16 or f32.
Contraction MakeContraction(const DotDims& dims, const Aval& lhs, const Aval& rhs, DType product,
                            kernels::Target target, const ContractionOptions& options = {});
// Whether the kernels read both operands as bf16, which can change the order of a sum (kernels/gemm/table.h).
bool MeetInBf16(DType lhs, DType rhs);
// Whether a float lhs and integers of at most a byte may be multiplied on digits. (A float rhs is a weight prepared
// once, but it would be converted to digits in each call.)
bool MeetOnDigits(DType lhs, DType rhs, DType product);
// A contraction over windows: s32 sums of two integers of at most a byte, or f32 sums of operands in `dtype`, rounded
// to `product`.
Contraction MakeWindowContraction(const Windows& windows, DType dtype, DType lhs, DType rhs, DType product,
                                  kernels::Target target);

// Operands that are already packed; null: packed in the call. Only the dtype and shape of a packed operand's array are
// read.
struct PackedOperands {
  const void* lhs = nullptr;
  const void* rhs = nullptr;
};

// out = lhs x rhs, dense in the layout of the product (DotOutputShape), in the product's dtype. Operands may have any
// strides.
void Contract(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Workspace& workspace, const Runtime& runtime, const PackedOperands& packed = {});

// The same with an epilogue, and an `out` of f32, bf16 or f16 with any strides and at most AxisGroup::kMaxRank axes.
// With windows lhs has one scale per example and rhs one per output channel; otherwise both are in the order of the
// epilogue. With scale groups the scales of rhs are in the order [group, batch, row], and are read from its panels if
// it is packed.
void ContractScaled(const Contraction& contraction, const ArrayRef& lhs, const ArrayRef& rhs,
                    const kernels::Epilogue& epilogue, const MutableArrayRef& out, Workspace& workspace,
                    const Runtime& runtime, const PackedOperands& packed = {});

// The kernel's side that takes an operand.
inline Side KernelSide(const Contraction& contraction, Side side) {
  return contraction.exchanges_operands ? Other(side) : side;
}

// The dtype of an operand in its panels, and the format of the panels (not for digits). Not for s32 products.
DType PackedDType(const Contraction& contraction, DType operand);
const kernels::PanelFormat& PackedFormat(const Contraction& contraction, Side side);
// Packs an operand ahead of time along `axes`, or as the kernel of windows. With scale groups, `group_scales` are as
// for ContractScaled.
std::shared_ptr<const void> PackAhead(const Contraction& contraction, Side side, const ArrayRef& x,
                                      const OperandAxes& axes, const float* group_scales, const Runtime& runtime);
int64_t PackedBytes(const Contraction& contraction, Side side, const Shape& x, const OperandAxes& axes);

// The scratch memory that Contract and ContractScaled need for operands of these avals, the latter with or without a
// scale of lhs.
void AddContractSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, int64_t product_elements,
                      SlotSizes& sizes);
void AddContractScaledSlots(const Contraction& contraction, const Aval& lhs, const Aval& rhs, bool has_lhs_scale,
                            SlotSizes& sizes);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_CONTRACT_H_
