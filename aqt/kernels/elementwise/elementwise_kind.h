#ifndef AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_KIND_H_
#define AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_KIND_H_

// The kinds of elementwise operations and their parameters.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"

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

// The float format with this many exponent and mantissa bits, as in XLA's reduce-precision. A type with more bits keeps
// its own.
struct Precision {
  int exponent_bits = 0;  // >= 1
  int mantissa_bits = 0;  // >= 0, without the leading 1
  bool operator==(const Precision&) const = default;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_ELEMENTWISE_KIND_H_
