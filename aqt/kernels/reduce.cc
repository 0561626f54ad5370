#include "aqt/kernels/reduce.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "aqt/core/shape.h"
#include "aqt/kernels/arithmetic-inl.h"

namespace aqt::kernels {
namespace {

using internal::ComputeType;

constexpr int kLanes = 16;

template <class C>
C Initial(ReduceKind kind) {
  if (kind == ReduceKind::kSum) return C{0};
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::min();
  else return -std::numeric_limits<C>::infinity();
}

// Computes the 16 partial results of one output and combines them as a tree.
template <class C, class F>
C ReduceLanes(const C* x, int64_t n, C initial, F combine) {
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, initial);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = combine(lanes[j], x[k + j]);
  }
  for (int j = 0; k + j < n; ++j) lanes[j] = combine(lanes[j], x[k + j]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] = combine(lanes[j], lanes[j + width]);
  }
  return lanes[0];
}

template <class T>
void ReduceOf(ReduceKind kind, const T* data, const Shape& kept, const Strides& kept_strides, const Shape& reduced,
              const Strides& reduced_strides, void* out) {
  using C = ComputeType<T>;
  const int64_t n = reduced.num_elements();
  const C initial = Initial<C>(kind);
  const bool contiguous = std::is_same_v<T, C> && reduced_strides == DenseStrides(reduced);
  std::vector<C> gathered(contiguous ? 0 : n);
  T* to = static_cast<T*>(out);
  ForEachIndex(kept, kept_strides, DenseStrides(kept), [&](int64_t from, int64_t index) {
    const C* row = gathered.data();
    if constexpr (std::is_same_v<T, C>) {
      if (contiguous) row = data + from;
    }
    if (!contiguous) {
      const T* base = data + from;
      int64_t k = 0;
      ForEachIndex(reduced, reduced_strides, reduced_strides,
                   [&](int64_t offset, int64_t) { gathered[k++] = internal::Load(base[offset]); });
    }
    const C result = kind == ReduceKind::kSum
                         ? ReduceLanes(row, n, initial, [](C a, C b) { return internal::AddWrapping(a, b); })
                         : ReduceLanes(row, n, initial, [](C a, C b) { return internal::Maximum(a, b); });
    to[index] = internal::Store<T>(result);
  });
}

}  // namespace

absl::string_view ToString(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum: return "sum";
    case ReduceKind::kMax: return "max";
  }
  return "?";
}

void Reduce(ReduceKind kind, const ArrayRef& x, absl::Span<const int64_t> axes, void* out) {
  Shape kept, reduced;
  Strides kept_strides, reduced_strides;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    const bool is_reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    (is_reduced ? reduced : kept).push_back(x.shape[axis]);
    (is_reduced ? reduced_strides : kept_strides).push_back(x.strides[axis]);
  }
  internal::VisitArithmetic(
      x.dtype, [&]<class T>() { ReduceOf(kind, x.As<T>(), kept, kept_strides, reduced, reduced_strides, out); });
}

}  // namespace aqt::kernels
