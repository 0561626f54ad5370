#include "aqt/kernels/reduce/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "aqt/core/array_ops.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/reduce/reduction-inl.h"
#include "aqt/kernels/simd/arithmetic-inl.h"
#include "aqt/kernels/simd/target_highway.h"

#ifndef AQT_KERNELS_REDUCE_ROLES_
#define AQT_KERNELS_REDUCE_ROLES_
namespace aqt::kernels {
namespace {

// The axes of an array, grouped by role.
struct Roles {
  Shape kept, reduced;
  Strides kept_strides, reduced_strides;
};

}  // namespace
}  // namespace aqt::kernels
#endif  // AQT_KERNELS_REDUCE_ROLES_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/reduce/reduce.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

constexpr int kLanes = 16;

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

// One output after another.
template <class T, class C, class F>
void ReduceRows(const T* x, const Roles& roles, C initial, F combine, T* out) {
  const int64_t n = roles.reduced.num_elements();
  const bool contiguous = std::is_same_v<T, C> && roles.reduced_strides == DenseStrides(roles.reduced);
  std::vector<C> gathered(contiguous ? 0 : n);
  ForEachIndex(roles.kept, roles.kept_strides, DenseStrides(roles.kept), [&](int64_t from, int64_t index) {
    const C* row = gathered.data();
    if constexpr (std::is_same_v<T, C>) {
      if (contiguous) row = x + from;
    }
    if (!contiguous) {
      int64_t k = 0;
      ForEachIndex(roles.reduced, roles.reduced_strides, roles.reduced_strides,
                   [&](int64_t offset, int64_t) { gathered[k++] = internal::Load(x[from + offset]); });
    }
    out[index] = internal::Store<T>(ReduceLanes(row, n, initial, combine));
  });
}

// Adjacent outputs together: the last kept axis has stride 1. Each output has its own 16 partial results.
template <class T, class C, class F>
void ReduceColumns(const T* x, Roles roles, C initial, F combine, T* out) {
  constexpr int64_t kBlock = 64;
  const int64_t columns = roles.kept[roles.kept.rank() - 1];
  const Strides out_strides = DenseStrides(roles.kept);
  roles.kept[roles.kept.rank() - 1] = 1;
  ForEachIndex(roles.kept, roles.kept_strides, out_strides, [&](int64_t from, int64_t index) {
    for (int64_t begin = 0; begin < columns; begin += kBlock) {
      const int64_t m = std::min(kBlock, columns - begin);
      C lanes[kLanes][kBlock];
      for (auto& lane : lanes) std::fill_n(lane, kBlock, initial);
      int64_t k = 0;
      ForEachIndex(roles.reduced, roles.reduced_strides, roles.reduced_strides, [&](int64_t offset, int64_t) {
        const T* row = x + from + offset + begin;
        C* lane = lanes[k++ % kLanes];
        for (int64_t i = 0; i < m; ++i) lane[i] = combine(lane[i], internal::Load(row[i]));
      });
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; ++j) {
          for (int64_t i = 0; i < kBlock; ++i) lanes[j][i] = combine(lanes[j][i], lanes[j + width][i]);
        }
      }
      for (int64_t i = 0; i < m; ++i) out[index + begin + i] = internal::Store<T>(lanes[0][i]);
    }
  });
}

void ReduceAny(ReduceKind kind, const ArrayRef& x, const Roles& roles, void* out) {
  const int64_t last = roles.kept.rank() - 1;
  const bool columns = last >= 0 && roles.kept_strides[last] == 1 && roles.kept[last] >= 8;
  internal::VisitArithmetic(x.dtype, [&]<class T>() {
    internal::VisitReduction<internal::ComputeType<T>>(kind, [&](auto initial, auto combine) {
      if (columns) ReduceColumns(x.As<T>(), roles, initial, combine, static_cast<T*>(out));
      else ReduceRows(x.As<T>(), roles, initial, combine, static_cast<T*>(out));
    });
  });
}

template <class T, class F>
void ArgReduceOf(const T* x, int64_t outer, int64_t n, int64_t inner, F wins, int32_t* out) {
  using C = internal::ComputeType<T>;
  std::vector<C> best(inner);
  for (int64_t o = 0; o < outer; ++o, x += n * inner, out += inner) {
    for (int64_t i = 0; i < inner; ++i) best[i] = internal::Load(x[i]);
    std::fill_n(out, inner, 0);
    for (int64_t k = 1; k < n; ++k) {
      const T* row = x + k * inner;
      for (int64_t i = 0; i < inner; ++i) {
        const C value = internal::Load(row[i]);
        if (!wins(value, best[i])) continue;
        best[i] = value;
        out[i] = static_cast<int32_t>(k);
      }
    }
  }
}

void ArgReduceAny(ArgKind kind, DType dtype, const void* x, int64_t outer, int64_t n, int64_t inner, int32_t* out) {
  internal::VisitArithmetic(dtype, [&]<class T>() {
    using C = internal::ComputeType<T>;
    const T* from = static_cast<const T*>(x);
    if (kind == ArgKind::kMax) {
      ArgReduceOf(
          from, outer, n, inner, [](C a, C b) { return internal::IsAbove(a, b); }, out);
    } else {
      ArgReduceOf(
          from, outer, n, inner, [](C a, C b) { return internal::IsBelow(a, b); }, out);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void Reduce(ReduceKind kind, const ArrayRef& x, absl::Span<const int64_t> axes, void* out, Target target) {
  Roles roles;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    const bool is_reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    (is_reduced ? roles.reduced : roles.kept).push_back(x.shape[axis]);
    (is_reduced ? roles.reduced_strides : roles.kept_strides).push_back(x.strides[axis]);
  }
  AQT_HWY_DISPATCH(target, ReduceAny)(kind, x, roles, out);
}

void ArgReduce(ArgKind kind, DType dtype, const void* x, int64_t outer, int64_t n, int64_t inner, int32_t* out) {
  AQT_HWY_DISPATCH(BestTarget(), ArgReduceAny)(kind, dtype, x, outer, n, inner, out);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
