#include "aqt/kernels/elementwise/elementwise.h"

#include <algorithm>

#include "aqt/core/dtype.h"
#include "aqt/kernels/elementwise/internal.h"

namespace aqt::kernels {
namespace {

// f16 and bf16 are computed in f32, this many elements at a time.
constexpr int64_t kBlock = 512;

bool IsSmall(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// The address `begin` elements past x.
const void* Behind(const void* x, int64_t begin) { return static_cast<const char*>(x) + begin * 2; }
void* Behind(void* x, int64_t begin) { return static_cast<char*>(x) + begin * 2; }

// Calls f(x..., m, begin) for pieces of at most kBlock elements of f16 or bf16 arrays, with x converted to f32.
template <class F, class... In>
void InPieces(DType dtype, int64_t n, Target target, F f, const In*... x) {
  float pieces[sizeof...(In)][kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t m = std::min(kBlock, n - begin);
    int i = 0;
    (internal::Widen(dtype, Behind(x, begin), m, pieces[i++], target), ...);
    f(pieces, m, begin);
  }
}

// The same for f(x..., m, out) with f32 results, which are rounded to `out`.
template <class F, class... In>
void ToPieces(DType dtype, int64_t n, void* out, Target target, F f, const In*... x) {
  InPieces(
      dtype, n, target,
      [&](auto& pieces, int64_t m, int64_t begin) {
        f(pieces, m, pieces[0]);
        internal::Narrow(dtype, pieces[0], m, Behind(out, begin), target);
      },
      x...);
}

}  // namespace

absl::string_view ToString(UnaryKind kind) {
  switch (kind) {
    case UnaryKind::kNeg: return "neg";
    case UnaryKind::kAbs: return "abs";
    case UnaryKind::kSign: return "sign";
    case UnaryKind::kRound: return "round";
    case UnaryKind::kFloor: return "floor";
    case UnaryKind::kCeil: return "ceil";
    case UnaryKind::kFlush: return "flush";
    case UnaryKind::kSqrt: return "sqrt";
    case UnaryKind::kRsqrt: return "rsqrt";
    case UnaryKind::kCbrt: return "cbrt";
    case UnaryKind::kExp: return "exp";
    case UnaryKind::kExpm1: return "expm1";
    case UnaryKind::kLog: return "log";
    case UnaryKind::kLog1p: return "log1p";
    case UnaryKind::kSin: return "sin";
    case UnaryKind::kCos: return "cos";
    case UnaryKind::kTanh: return "tanh";
    case UnaryKind::kLogistic: return "logistic";
    case UnaryKind::kErf: return "erf";
    case UnaryKind::kNot: return "not";
  }
  return "?";
}

absl::string_view ToString(BinaryKind kind) {
  switch (kind) {
    case BinaryKind::kAdd: return "add";
    case BinaryKind::kSub: return "sub";
    case BinaryKind::kMul: return "mul";
    case BinaryKind::kDiv: return "div";
    case BinaryKind::kMax: return "max";
    case BinaryKind::kMin: return "min";
    case BinaryKind::kPow: return "pow";
    case BinaryKind::kAnd: return "and";
    case BinaryKind::kOr: return "or";
  }
  return "?";
}

absl::string_view ToString(CompareKind kind) {
  switch (kind) {
    case CompareKind::kEq: return "eq";
    case CompareKind::kNe: return "ne";
    case CompareKind::kLt: return "lt";
    case CompareKind::kLe: return "le";
    case CompareKind::kGt: return "gt";
    case CompareKind::kGe: return "ge";
  }
  return "?";
}

bool IsArithmetic(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64 ||
         dtype == DType::kS32;
}

bool Takes(UnaryKind kind, DType dtype) {
  if (kind == UnaryKind::kNot) return dtype == DType::kBool;
  const bool any = kind == UnaryKind::kNeg || kind == UnaryKind::kAbs || kind == UnaryKind::kSign;
  return IsArithmetic(dtype) && (any || IsFloat(dtype));
}

bool Takes(BinaryKind kind, DType dtype) {
  if (kind == BinaryKind::kAnd || kind == BinaryKind::kOr) return dtype == DType::kBool;
  return IsArithmetic(dtype) && (kind != BinaryKind::kPow || IsFloat(dtype));
}

void Unary(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out, Target target) {
  const auto run = internal::IsFunction(kind) ? internal::UnaryFunction : internal::UnaryArithmetic;
  if (!IsSmall(dtype)) return run(kind, dtype, x, n, out, target);
  ToPieces(
      dtype, n, out, target, [&](auto& in, int64_t m, float* to) { run(kind, DType::kF32, in[0], m, to, target); }, x);
}

void Binary(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out, Target target) {
  const auto run = [&](DType type, const void* x, const void* y, int64_t m, void* to) {
    if (kind == BinaryKind::kPow) internal::PowFunction(type, x, y, m, to, target);
    else internal::BinaryArithmetic(kind, type, x, y, m, to, target);
  };
  if (!IsSmall(dtype)) return run(dtype, a, b, n, out);
  ToPieces(
      dtype, n, out, target, [&](auto& in, int64_t m, float* to) { run(DType::kF32, in[0], in[1], m, to); }, a, b);
}

void Compare(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out, Target target) {
  if (!IsSmall(dtype)) return internal::CompareArithmetic(kind, dtype, a, b, n, out, target);
  InPieces(
      dtype, n, target,
      [&](auto& in, int64_t m, int64_t begin) {
        internal::CompareArithmetic(kind, DType::kF32, in[0], in[1], m, out + begin, target);
      },
      a, b);
}

void Clamp(DType dtype, const void* low, const void* x, const void* high, int64_t n, void* out, Target target) {
  if (!IsSmall(dtype)) return internal::ClampArithmetic(dtype, low, x, high, n, out, target);
  ToPieces(
      dtype, n, out, target,
      [&](auto& in, int64_t m, float* to) {
        internal::ClampArithmetic(DType::kF32, in[0], in[1], in[2], m, to, target);
      },
      low, x, high);
}

void IntegerPow(DType dtype, int64_t exponent, const void* x, int64_t n, void* out, Target target) {
  if (!IsSmall(dtype)) return internal::IntegerPowArithmetic(dtype, exponent, x, n, out, target);
  ToPieces(
      dtype, n, out, target,
      [&](auto& in, int64_t m, float* to) {
        internal::IntegerPowArithmetic(DType::kF32, exponent, in[0], m, to, target);
      },
      x);
}

}  // namespace aqt::kernels
