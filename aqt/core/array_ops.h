#ifndef AQT_CORE_ARRAY_OPS_H_
#define AQT_CORE_ARRAY_OPS_H_

// Operations on whole arrays: copies, conversions, and walking over indices.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt {

// Calls f(element offset in a, element offset in b) for each index of `shape`, last axis fastest.
template <class F>
void ForEachIndex(const Shape& shape, absl::Span<const int64_t> a_strides, absl::Span<const int64_t> b_strides, F&& f) {
  if (shape.num_elements() == 0) return;
  absl::InlinedVector<int64_t, kInlineRank> index(shape.rank(), 0);
  int64_t a = 0, b = 0;
  while (true) {
    f(a, b);
    int64_t axis = shape.rank() - 1;
    for (; axis >= 0; --axis) {
      a += a_strides[axis];
      b += b_strides[axis];
      if (++index[axis] < shape[axis]) break;
      a -= a_strides[axis] * shape[axis];
      b -= b_strides[axis] * shape[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Copies src to dst; shapes and dtypes must be equal (InvalidArgument otherwise).
absl::Status CopyArray(const ArrayRef& src, const MutableArrayRef& dst);

// dst[i] = ConvertElement(src[i]) for any two dtypes; shapes must be equal (InvalidArgument otherwise).
absl::Status CastArray(const ArrayRef& src, const MutableArrayRef& dst, Overflow overflow = Overflow::kIeee);
// src converted to `dtype`, as a new array.
Array Cast(const ArrayRef& src, DType dtype, Overflow overflow = Overflow::kIeee);

}  // namespace aqt

#endif  // AQT_CORE_ARRAY_OPS_H_
