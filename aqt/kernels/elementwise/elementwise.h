#ifndef AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
#define AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_

// Elementwise kernels on dense arrays of n elements. All targets give the same bits, except for the sign and payload of
// a NaN, which are unspecified.
//
// Arithmetic types: f16, bf16, f32, f64, s32. f16 and bf16 are computed in f32 and rounded once, to nearest even. s32
// wraps modulo 2^32. A NaN operand gives NaN, in max and min too. max(-0, +0) = +0 and min(-0, +0) = -0, in either
// order.
// The stated errors of functions are upper bounds: "1.5, 0.81 ulp" is 1.5 ulp in f64 and 0.81 in f32. A single number
// is for f64; f32 is then computed in f64 and is off by at most 0.5001 ulp. f16 and bf16 are off by at most 0.5003 ulp.
// `out` may be one of the inputs. Pointers may be null when n is 0.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise_kind.h"

namespace aqt::kernels {

// out[i] = kind(x[i]).
void Unary(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out, Target target = BestTarget());
// out[i] = a[i] kind b[i].
void Binary(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out,
            Target target = BestTarget());
// out[i] = a[i] kind b[i]; arithmetic types and bool (false < true).
void Compare(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out,
             Target target = BestTarget());
// out[i] = pred[i] ? a[i] : b[i]; any dtype.
void Select(DType dtype, const bool* pred, const void* a, const void* b, int64_t n, void* out,
            Target target = BestTarget());

// out[i] = min(max(x[i], low[i]), high[i]), with kMin and kMax; arithmetic types.
void Clamp(DType dtype, const void* low, const void* x, const void* high, int64_t n, void* out,
           Target target = BestTarget());

// out[i] = whether x[i] is neither infinite nor NaN; arithmetic types.
void IsFinite(DType dtype, const void* x, int64_t n, bool* out, Target target = BestTarget());

// out[i] = x[i]^exponent: the product of those of x, x^2, x^4, ... that the bits of |exponent| select, from the lowest
// bit up, with each square and product rounded (f16 and bf16: to f32). 1 for exponent 0. For a negative exponent, 1
// divided by that product; floats only.
void IntegerPow(DType dtype, int64_t exponent, const void* x, int64_t n, void* out, Target target = BestTarget());

// out[i] = x[i] rounded to `precision`, ties to even. Below the smallest normal number (after rounding) the result is a
// zero, beyond the largest finite number an infinity, each with x's sign; NaN is unchanged. If exponent_bits is not
// below that of the dtype, subnormal numbers are kept too, and their bits are rounded like those of normal numbers.
// f16, bf16, f32, f64.
void ReducePrecision(DType dtype, Precision precision, const void* x, int64_t n, void* out,
                     Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
