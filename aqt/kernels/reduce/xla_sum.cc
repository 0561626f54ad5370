#include "aqt/kernels/reduce/xla_sum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/kernels/reduce/xla_windows.h"
#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kLibraryElements = 4096;  // XLA calls its library from this many elements on

template <class T>
float Rounded(float x) {
  return internal::Load(internal::Store<T>(FlushSubnormal(x)));
}

bool NeedsWindows(const Shape& shape) {
  const auto extents = shape.extents();
  return std::any_of(extents.begin(), extents.end(), [](int64_t n) { return n > kXlaWindow; });
}

// The number of windows along each axis.
Shape WindowsOf(const Shape& shape) {
  Shape windows;
  for (const int64_t n : shape.extents()) windows.push_back(NumXlaWindows(n));
  return windows;
}

// The sum of the elements of one output, row-major. A single element is not added to anything.
template <class T>
float SumOf(std::vector<float> values, Shape shape) {
  if (values.size() == 1) return values[0];
  while (NeedsWindows(shape)) {
    const Shape windows = WindowsOf(shape);
    std::vector<float> sums(static_cast<size_t>(windows.num_elements()), 0.0f);
    // The row-major order within a window is that of the whole array.
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      int64_t rest = i, at = 0, stride = 1;
      for (int64_t axis = shape.rank() - 1; axis >= 0; --axis) {
        const int64_t n = shape[axis];
        at += XlaWindowOf(n, rest % n) * stride;
        stride *= windows[axis];
        rest /= n;
      }
      float& sum = sums[static_cast<size_t>(at)];
      sum = Rounded<T>(sum + FlushSubnormal(values[static_cast<size_t>(i)]));
    }
    values = std::move(sums);
    shape = windows;
  }
  float sum = 0;
  for (const float value : values) sum = Rounded<T>(sum + FlushSubnormal(value));
  return sum;
}

template <class T>
void SumAll(const ArrayRef& x, absl::Span<const int64_t> axes, T* out) {
  Shape kept, reduced;
  Strides kept_strides, reduced_strides;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    const bool is_reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    (is_reduced ? reduced : kept).push_back(x.shape[axis]);
    (is_reduced ? reduced_strides : kept_strides).push_back(x.strides[axis]);
  }
  const T* const from = x.As<T>();
  ForEachIndex(kept, kept_strides, DenseStrides(kept), [&](int64_t begin, int64_t index) {
    std::vector<float> values;
    values.reserve(static_cast<size_t>(reduced.num_elements()));
    ForEachIndex(reduced, reduced_strides, reduced_strides,
                 [&](int64_t offset, int64_t) { values.push_back(internal::Load(from[begin + offset])); });
    out[index] = internal::Store<T>(SumOf<T>(std::move(values), reduced));
  });
}

}  // namespace

void SumAsXla(const ArrayRef& x, absl::Span<const int64_t> axes, void* out) {
  const bool is_rows = axes.size() == 1 && axes[0] == x.shape.rank() - 1;
  if (x.dtype == DType::kF32 && x.shape.num_elements() >= kLibraryElements && is_rows) {
    return Reduce(ReduceKind::kSum, x, axes, out);
  }
  switch (x.dtype) {
    case DType::kF32: return SumAll(x, axes, static_cast<float*>(out));
    case DType::kBF16: return SumAll(x, axes, static_cast<BFloat16*>(out));
    case DType::kF16: return SumAll(x, axes, static_cast<Float16*>(out));
    default: AQT_CHECK(!"SumAsXla: x is f32, bf16 or f16");
  }
}

}  // namespace aqt::kernels
