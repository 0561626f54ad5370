#ifndef AQT_KERNELS_ELEMENTWISE_H_
#define AQT_KERNELS_ELEMENTWISE_H_

// Elementwise kernels on dense arrays of n elements. Plain C++ with the same bits on every machine, except for the sign
// and payload of a NaN, which are not promised.
//
// Arithmetic types: f16, bf16, f32, f64, s32. f16 and bf16 are computed in f32 and rounded once, to nearest even. s32
// wraps modulo 2^32. A NaN operand gives NaN (also in max and min); max(-0, +0) = +0 and min(-0, +0) = -0, in either
// order.
// `out` may be one of the inputs. Pointers may be null when n is 0.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "aqt/core/dtype.h"

namespace aqt::kernels {

enum class UnaryKind : uint8_t {
  kNeg,
  kAbs,
  kRound,  // to an integer, ties to even; floats only
  kFloor,  // floats only
  kFlush,  // a zero with x's sign if |x| < 2^-126 (a subnormal f32 or bf16), otherwise x; floats only
  kExp,    // floats only. f32 and smaller: at most 0.5001 ulp; f64: 1 ulp
  kLog,    // floats only. f32 and smaller: at most 0.5001 ulp; f64: 1 ulp
};
enum class BinaryKind : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,  // s32: toward zero; x / 0 = -1 and -2^31 / -1 = -2^31
  kMax,
  kMin,
};
enum class CompareKind : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };  // IEEE: only kNe holds for NaN

absl::string_view ToString(UnaryKind kind);    // "neg", ...
absl::string_view ToString(BinaryKind kind);   // "add", ...
absl::string_view ToString(CompareKind kind);  // "eq", ...

// Whether `dtype` is one of the arithmetic types, which the kernels here and in reduce.h take.
bool IsArithmetic(DType dtype);

// out[i] = kind(x[i]).
void Unary(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out);
// out[i] = a[i] kind b[i].
void Binary(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out);
// out[i] = a[i] kind b[i]; arithmetic types and bool (false < true).
void Compare(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out);
// out[i] = pred[i] ? a[i] : b[i]; any dtype.
void Select(DType dtype, const bool* pred, const void* a, const void* b, int64_t n, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_ELEMENTWISE_H_
