#ifndef AQT_KERNELS_BINARY_NUMBER_H_
#define AQT_KERNELS_BINARY_NUMBER_H_

// Binary operations of an array and one number, without a copy of the number for each element.

#include <cstdint>

#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

// Whether BinaryWithNumber takes the kind: add, sub, mul, div, max, min.
bool TakesNumber(BinaryKind kind);
// out[i] = x[i] op number, or number op x[i] if `number_first`, for i < n; the bits of Binary. `out` may be x.
void BinaryWithNumber(BinaryKind kind, const float* x, float number, bool number_first, int64_t n, float* out,
                      Target target = BestTarget());

// An array times up to two numbers, one after the other.
struct ScaledRow {
  const float* x;
  float first = 1, second = 1;
};
// out[i] = a.x[i] * a.first * a.second + b.x[i] * b.first * b.second, or their difference, for i < n; the bits of these
// operations one after the other: each is rounded. `out` may be either array.
void SumOfScaled(const ScaledRow& a, const ScaledRow& b, bool subtract, int64_t n, float* out,
                 Target target = BestTarget());

// The same for the rows of a dense matrix, each with a number of its own: numbers[r] for row r.
void BinaryWithNumbers(BinaryKind kind, const float* x, const float* numbers, bool number_first, int64_t rows,
                       int64_t columns, float* out, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_BINARY_NUMBER_H_
