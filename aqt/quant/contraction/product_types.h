#ifndef AQT_QUANT_CONTRACTION_PRODUCT_TYPES_H_
#define AQT_QUANT_CONTRACTION_PRODUCT_TYPES_H_

// The dtypes of a product of two operands, as XLA on CPU computes lax.dot_general. Internal; every contraction here
// follows this rule.

#include <optional>

#include "aqt/core/dtype.h"

namespace aqt::internal {

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

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_PRODUCT_TYPES_H_
