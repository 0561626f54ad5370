#ifndef AQT_OPS_EINSUM_VALUES_H_
#define AQT_OPS_EINSUM_VALUES_H_

// An einsum in operations of a program, around a given product: float or quantized. Internal.

#include "absl/functional/function_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/value.h"
#include "aqt/quant/contraction/einsum_lowering.h"

namespace aqt::internal {

// The product of two operands of one float dtype: those of the equation, possibly exchanged (EinsumLowering::swapped).
using EinsumProduct = absl::FunctionRef<Value(const Value& lhs, const Value& rhs, const DotDims& dims)>;

// The result of the equation for lhs and rhs: diagonals, conversions and sums of each operand, the product, and its
// axes in the order of the result. If the product has the bits of EinsumPlan's, so do the result and the gradients.
// `sums_in_dtype`: Compat::einsum_sums_in_dtype.
Value EinsumValue(const EinsumLowering& lowering, const Value& lhs, const Value& rhs, EinsumProduct product,
                  bool sums_in_dtype = false);

}  // namespace aqt::internal

#endif  // AQT_OPS_EINSUM_VALUES_H_
