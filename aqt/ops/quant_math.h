#ifndef AQT_OPS_QUANT_MATH_H_
#define AQT_OPS_QUANT_MATH_H_

// AQT's elementary operations (see quant/numerics/arith.h) in basic operations of the graph. As there, a value of f32,
// bf16 or f16 is held as f32; each operation computes in f32, flushes subnormals (except those of f16) and rounds to
// its dtype.

#include "aqt/core/dtype.h"
#include "aqt/graph/value.h"

namespace aqt::internal {

// x converted to f32 (any dtype; s32 is rounded to f32).
Value ToF32(const Value& x);
// The held v as an array of `dtype`: one rounding, or truncation and saturation for an integer.
Value FromF32(const Value& v, DType dtype);

// Rounds to a float dtype without a flush, like RoundRow.
Value RoundTo(DType dtype, const Value& v);
Value FlushTo(DType dtype, const Value& v);

Value MulIn(DType dtype, const Value& a, const Value& b);
Value AddIn(DType dtype, const Value& a, const Value& b);
Value SubIn(DType dtype, const Value& a, const Value& b);
Value DivIn(DType dtype, const Value& a, const Value& b);
// 1 / s, or 1 where that is infinite.
Value InverseScaleIn(DType dtype, const Value& s);

}  // namespace aqt::internal

#endif  // AQT_OPS_QUANT_MATH_H_
