#include "aqt/quant/tensor/window_sums.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/reduce/xla_windows.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

bool IsSummed(const Shape& x, const Shape& groups, int64_t axis) { return groups[axis] != x[axis]; }

bool HasWindows(const Shape& x, const Shape& groups) {
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (IsSummed(x, groups, axis) && x[axis] > kernels::kXlaWindow) return true;
  }
  return false;
}

// The shape of the sums of all windows.
Shape WindowsOf(const Shape& x, const Shape& groups) {
  Shape windows = x;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (IsSummed(x, groups, axis)) windows[axis] = kernels::NumXlaWindows(x[axis]);
  }
  return windows;
}

// Writes the sum of each window to `sums`, dense in WindowsOf(x), in row-major order.
void SumEachWindow(const ArrayRef& x, const Shape& groups, absl::FunctionRef<void(float*, int64_t)> terms,
                   float* sums) {
  const int64_t rank = x.shape.rank();
  const Shape windows = WindowsOf(x.shape, groups);
  std::fill(sums, sums + windows.num_elements(), 0.0f);
  const Strides dense = DenseStrides(windows);
  Shape window = x.shape;
  Strides to = dense;  // within a window
  int64_t count = 1;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (!IsSummed(x.shape, groups, axis)) continue;
    to[axis] = 0;
    count *= windows[axis];
  }
  const StridesSpan strides[] = {x.strides, to};
  std::array<float, kPiece> piece;
  for (int64_t w = 0; w < count; ++w) {
    int64_t from = 0, first = 0;
    for (int64_t axis = rank - 1, rest = w; axis >= 0; --axis) {
      if (!IsSummed(x.shape, groups, axis)) continue;
      const int64_t i = rest % windows[axis], begin = kernels::XlaWindowBegin(x.shape[axis], i);
      rest /= windows[axis];
      window[axis] = kernels::XlaWindowBegin(x.shape[axis], i + 1) - begin;
      from += begin * x.strides[axis];
      first += i * dense[axis];
    }
    ForEachPiece(window, strides, [&](const int64_t* offsets, int64_t n, int64_t) {
      LoadRow(x.dtype, x.data, from + offsets[0], InnerStride(x.strides), n, piece.data());
      terms(piece.data(), n);
      float* sum = sums + first + offsets[1];
      for (int64_t i = 0; i < n; ++i) sum[i * InnerStride(to)] += piece[i];
    });
  }
}

}  // namespace

int64_t WindowSumFloats(const Shape& x, const Shape& groups_shape) {
  if (!HasWindows(x, groups_shape)) return 0;
  const Shape windows = WindowsOf(x, groups_shape);
  return windows.num_elements() + WindowSumFloats(windows, groups_shape);
}

void WindowSumsInto(const ArrayRef& x, const Shape& groups_shape, absl::FunctionRef<void(float* y, int64_t n)> terms,
                    float* work, float* sums) {
  if (!HasWindows(x.shape, groups_shape)) {
    SumEachWindow(x, groups_shape, terms, sums);
    return;
  }
  const Shape windows = WindowsOf(x.shape, groups_shape);
  SumEachWindow(x, groups_shape, terms, work);
  WindowSumsInto(
      ArrayRef(work, windows), groups_shape, [](float*, int64_t) {}, work + windows.num_elements(), sums);
}

}  // namespace aqt::internal
