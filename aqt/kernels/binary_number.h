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

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_BINARY_NUMBER_H_
