#ifndef AQT_KERNELS_ELEMENTWISE_INTERNAL_H_
#define AQT_KERNELS_ELEMENTWISE_INTERNAL_H_

// The parts of elementwise.cc that are compiled once per target. They take the compute types: f32, f64, s32, and bool
// where elementwise.h says so.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"

namespace aqt::kernels::internal {

// f16 or bf16 to f32.
void Widen(DType dtype, const void* x, int64_t n, float* out, Target target);
// f32 to f16 or bf16, rounded to nearest even.
void Narrow(DType dtype, const float* x, int64_t n, void* out, Target target);

// Whether UnaryFunction computes the kind.
bool IsFunction(UnaryKind kind);
// Computes all other kinds.
void UnaryArithmetic(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out, Target target);
// The functions of math-inl.h; f32 and f64.
void UnaryFunction(UnaryKind kind, DType dtype, const void* x, int64_t n, void* out, Target target);

void BinaryArithmetic(BinaryKind kind, DType dtype, const void* a, const void* b, int64_t n, void* out, Target target);
void PowFunction(DType dtype, const void* a, const void* b, int64_t n, void* out, Target target);

void CompareArithmetic(CompareKind kind, DType dtype, const void* a, const void* b, int64_t n, bool* out,
                       Target target);
void ClampArithmetic(DType dtype, const void* low, const void* x, const void* high, int64_t n, void* out,
                     Target target);
void IntegerPowArithmetic(DType dtype, int64_t exponent, const void* x, int64_t n, void* out, Target target);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_ELEMENTWISE_INTERNAL_H_
