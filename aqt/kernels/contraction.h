#ifndef AQT_KERNELS_CONTRACTION_H_
#define AQT_KERNELS_CONTRACTION_H_

// A general contraction of any two dense or strided operands, plain C++.

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"

namespace aqt::kernels {

// out = lhs . rhs over `dims`; out is dense. Operands are converted, exactly, to the type of the sum and then, for each output
// element, multiplied and added one after the other in the order of the contracting axes (row-major over dims.lhs_contracting),
// starting at +0. The type of the sum and the rounding:
//   f64 operands: f64; f16, bf16 and f32: f32, each product and each sum rounded (no fused multiply-add);
//   integers of at most 32 bits: s32, modulo 2^32.
// The sum is rounded once to out.dtype: a float for float operands, s32 for integers. An empty sum is 0.
// The order depends on the contracting extents alone: the same bits on every machine, alone and in a batch.
//
// Precondition: ValidateDotDims(dims, ...), matching shapes. Allocates dense copies of both operands and the output.
void Contract(const DotDims& dims, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_CONTRACTION_H_
