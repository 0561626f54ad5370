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

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

enum class UnaryKind : uint8_t {
  kNeg,
  kAbs,
  kSign,   // -1, 0 or 1; NaN and zeros are unchanged
  kRound,  // to an integer, ties to even; floats only, like all kinds below except kNot
  kFloor,
  kCeil,
  kFlush,     // a zero with x's sign if |x| < 2^-126 (a subnormal f32 or bf16), otherwise x
  kSqrt,      // correctly rounded; NaN below 0, -0 at -0
  kRsqrt,     // 1 / sqrt(x), 1.5, 0.5001 ulp; infinity with x's sign at a zero
  kCbrt,      // the cube root, with x's sign, 0.75 ulp; zeros and infinities are unchanged
  kExp,       // 1 (2 where the result is subnormal), 0.8 ulp
  kExpm1,     // e^x - 1, 2, 1.24 ulp; -0 at -0, like kLog1p, kSin, kTanh and kErf
  kLog,       // 1, 0.81 ulp; -infinity at a zero, NaN below
  kLog1p,     // ln(1 + x), 1.5, 1.39 ulp; -infinity at -1, NaN below
  kSin,       // 1 ulp, for any x; NaN at an infinity
  kCos,       // 1 ulp, for any x; NaN at an infinity
  kTanh,      // 2.5, 2.43 ulp
  kLogistic,  // 1 / (1 + e^-x), 2.5, 2.41 ulp
  kErf,       // 2.5, 1.08 ulp
  kNot,       // bool only
};
inline constexpr int kNumUnaryKinds = 20;

enum class BinaryKind : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,  // s32: toward zero; x / 0 = -1 and -2^31 / -1 = -2^31
  kMax,
  kMin,
  kPow,  // floats only; 2 ulp, with the exceptional cases of IEEE 754 and C
  kAnd,  // bool only
  kOr,   // bool only
};
inline constexpr int kNumBinaryKinds = 9;

enum class CompareKind : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };  // IEEE: with a NaN only kNe holds
inline constexpr int kNumCompareKinds = 6;

absl::string_view ToString(UnaryKind kind);    // "neg", ...
absl::string_view ToString(BinaryKind kind);   // "add", ...
absl::string_view ToString(CompareKind kind);  // "eq", ...

// Whether `dtype` is one of the arithmetic types that the kernels here and in reduce.h accept.
bool IsArithmetic(DType dtype);

// Whether the kind accepts operands of `dtype`; the result then has the same dtype.
bool Takes(UnaryKind kind, DType dtype);
bool Takes(BinaryKind kind, DType dtype);

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

// The float format with this many exponent and mantissa bits, as in XLA's reduce-precision. A type with more bits keeps
// its own.
struct Precision {
  int exponent_bits = 0;  // >= 1
  int mantissa_bits = 0;  // >= 0, without the leading 1
  bool operator==(const Precision&) const = default;
};

// out[i] = x[i] rounded to `precision`, ties to even. Below the smallest normal number (after rounding) the result is a
// zero, beyond the largest finite number an infinity, each with x's sign; NaN is unchanged. If exponent_bits is not
// below that of the dtype, subnormal numbers are kept too, and their bits are rounded like those of normal numbers.
// f16, bf16, f32, f64.
void ReducePrecision(DType dtype, Precision precision, const void* x, int64_t n, void* out,
                     Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
