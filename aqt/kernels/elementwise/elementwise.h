#ifndef AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
#define AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_

// Elementwise kernels on dense arrays of n elements. All targets give the same bits, except for the sign and payload of
// a NaN, which are not promised.
//
// Arithmetic types: f16, bf16, f32, f64, s32. f16 and bf16 are computed in f32 and rounded once, to nearest even. s32
// wraps modulo 2^32. A NaN operand gives NaN (also in max and min); max(-0, +0) = +0 and min(-0, +0) = -0, in either
// order.
// The errors of functions are at most those stated: "1.5, 0.81 ulp" is 1.5 ulp of f64 and 0.81 of f32. A single number
// is of f64; then f32 is computed in f64, and is at most 0.5001 ulp off. f16 and bf16 are at most 0.5003 ulp off.
// `out` may be one of the inputs. Pointers may be null when n is 0.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

enum class UnaryKind : uint8_t {
  kNeg,
  kAbs,
  kSign,   // -1, 0 or 1; NaN and zeros stay
  kRound,  // to an integer, ties to even; floats only, like all that follow except kNot
  kFloor,
  kCeil,
  kFlush,     // a zero with x's sign if |x| < 2^-126 (a subnormal f32 or bf16), otherwise x
  kSqrt,      // correctly rounded; NaN below 0, -0 of -0
  kRsqrt,     // 1 / sqrt(x), 1.5, 0.5001 ulp; infinity of x's sign at a zero
  kCbrt,      // the cube root, with x's sign, 0.75 ulp; zeros and infinities stay
  kExp,       // 1 (2 where the result is subnormal), 0.8 ulp
  kExpm1,     // e^x - 1, 2, 1.24 ulp; -0 of -0, as kLog1p, kSin, kTanh and kErf
  kLog,       // 1, 0.81 ulp; -infinity at a zero, NaN below
  kLog1p,     // ln(1 + x), 1.5, 1.39 ulp; -infinity at -1, NaN below
  kSin,       // 1 ulp, for any x; NaN at an infinity
  kCos,       // 1 ulp, for any x; NaN at an infinity
  kTanh,      // 2.5, 2.43 ulp
  kLogistic,  // 1 / (1 + e^-x), 2.5, 2.41 ulp
  kErf,       // 2.5, 1.08 ulp
  kNot,       // of bool
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
  kAnd,  // of bool
  kOr,   // of bool
};
inline constexpr int kNumBinaryKinds = 9;

enum class CompareKind : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };  // IEEE: only kNe holds for NaN
inline constexpr int kNumCompareKinds = 6;

absl::string_view ToString(UnaryKind kind);    // "neg", ...
absl::string_view ToString(BinaryKind kind);   // "add", ...
absl::string_view ToString(CompareKind kind);  // "eq", ...

// Whether `dtype` is one of the arithmetic types, which the kernels here and in reduce.h take.
bool IsArithmetic(DType dtype);

// Whether the kind takes operands of `dtype`, and so gives a result of it.
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

// out[i] = min(max(x[i], low[i]), high[i]), as kMin and kMax; arithmetic types.
void Clamp(DType dtype, const void* low, const void* x, const void* high, int64_t n, void* out,
           Target target = BestTarget());

// out[i] = x[i] is neither infinite nor NaN; arithmetic types.
void IsFinite(DType dtype, const void* x, int64_t n, bool* out, Target target = BestTarget());

// out[i] = x[i]^exponent: the product of those of x, x^2, x^4, ... that the bits of |exponent| name, from the lowest
// on, each square and product rounded (f16 and bf16: to f32); 1 if there are none. For a negative exponent, 1 divided
// by that product; floats only.
void IntegerPow(DType dtype, int64_t exponent, const void* x, int64_t n, void* out, Target target = BestTarget());

// The floats with so many bits of exponent and of mantissa, as XLA's reduce-precision: a type that has more bits keeps
// them.
struct Precision {
  int exponent_bits = 0;  // >= 1
  int mantissa_bits = 0;  // >= 0, without the leading 1
  bool operator==(const Precision&) const = default;
};

// out[i] = x[i] rounded to these floats, ties to even: below the smallest normal number (after rounding) a zero, beyond
// the largest finite one an infinity, each with x's sign; NaN stays. Without fewer exponent bits than the dtype has,
// subnormal numbers stay, too, and are rounded as if their bits were those of normal ones. f16, bf16, f32, f64.
void ReducePrecision(DType dtype, Precision precision, const void* x, int64_t n, void* out,
                     Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
