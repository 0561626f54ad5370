#ifndef AQT_QUANT_CONTRACTION_CONTRACT_H_
#define AQT_QUANT_CONTRACTION_CONTRACT_H_

// The plain contraction of two arrays: the product that a quantized contraction quantizes for. Internal.

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/contraction/workspace.h"

namespace aqt::internal {

// out = lhs x rhs, dense in the layout of the product (DotOutputShape). Operands: s2, s4, s8, e4m3fn, e5m2, bf16, f16,
// f32, any strides. out.dtype says how products are summed:
//   s32          exact (integer operands; wraps modulo 2^32)
//   s2, s4, s8   the exact sum, wrapped to that many bits
//   f32 .. e5m2  in f32, in ascending order of k, then rounded once. Targets with FMA round once per step, kScalar
//                twice (gemm_f32.h). Operands of different dtypes are converted to out.dtype first, and some sums are
//                rounded to bf16 on the way (product_types.h). Then subnormal f32 and bf16 operands are zero, and
//                so are subnormal f32 sums.
void Contract(const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims, const MutableArrayRef& out,
              Workspace& workspace, const Execution& runtime);

// x cast to `dtype`, dense, in the memory of `slot`.
ArrayRef CastIntoSlot(const ArrayRef& x, DType dtype, Workspace::Slot slot, Workspace& workspace);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_CONTRACT_H_
