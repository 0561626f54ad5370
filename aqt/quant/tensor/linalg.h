#ifndef AQT_QUANT_TENSOR_LINALG_H_
#define AQT_QUANT_TENSOR_LINALG_H_

// Dense linear algebra in f64 for work done once per model, in plain C++. The bits are the same on every machine and
// for any number of threads. Matrices are row-major and dense.

#include <cstdint>

#include "aqt/core/executor.h"

namespace aqt::kernels {

// The sum of a[i] * b[i]. Products are added to partial sum s[i mod 8] in the order of i; then s[j] += s[j + 4] for j <
// 4, and likewise with + 2 and + 1.
double Dot(const double* a, const double* b, int64_t n);

// y[i] += a * x[i], with the product rounded first.
void AddScaled(double a, const double* x, double* y, int64_t n);

// Overwrites the lower triangle of a[n, n] with L, where a = L L^T and L is lower triangular with a positive diagonal.
// Elements above the diagonal are neither read nor written. Returns -1, or the first row whose pivot is not a finite
// number > 0. The matrix is then not positive definite to the precision of f64 (or holds a NaN), and its contents are
// meaningless.
int64_t CholeskyLower(int64_t n, double* a, Executor* executor);

// Computes inverse[n, n] of l[n, n], a lower triangle with a nonzero diagonal; the inverse has zeros above the
// diagonal. Elements of l above the diagonal are not read. The two must not overlap.
void InvertLower(int64_t n, const double* l, double* inverse, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_QUANT_TENSOR_LINALG_H_
