#ifndef AQT_KERNELS_MOVE_GATHER_H_
#define AQT_KERNELS_MOVE_GATHER_H_

// Selects rows of an array by index, and the counterpart: accumulates rows by index.
//
// A dense array [outer, rows, inner] holds `outer` times `rows` rows of `inner` elements. Indices are clamped to [0,
// rows - 1]. The bits are the same on every machine.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"

namespace aqt::kernels {

// out[o, i] = x[o, numbers[i]]; `out` is dense [outer, numbers.size(), inner]. Any dtype. `rows` is positive unless
// `out` is empty.
void TakeRows(DType dtype, const void* x, int64_t outer, int64_t rows, int64_t inner, absl::Span<const int32_t> numbers,
              void* out);

// out[o, r] = the sum of updates[o, i] over all i with numbers[i] = r, from +0 in ascending order of i; `updates` is
// dense [outer, numbers.size(), inner]. f16 and bf16 are summed in f32 and rounded once; s32 wraps. `rows` is positive
// unless `updates` is empty. Precondition: IsArithmetic(dtype).
void ScatterAddRows(DType dtype, const void* updates, int64_t outer, int64_t rows, int64_t inner,
                    absl::Span<const int32_t> numbers, void* out);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_MOVE_GATHER_H_
