#include "aqt/kernels/reduce/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
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

// Calls f with the two offsets of each index, like ForEachIndex, but is compiled once and not once per kind, type and
// target.
using OffsetFn = absl::FunctionRef<void(int64_t, int64_t)>;
void ForEachOffset(const Shape& shape, const Strides& a_strides, const Strides& b_strides, OffsetFn f) {
  ForEachIndex(shape, a_strides, b_strides, f);
}

// The axes of an array, grouped by role. The reduced elements of an output are runs along the last reduced axis.
struct Roles {
  // Calls f(offset in x, number of the first element) for each run, in order.
  void ForEachRun(OffsetFn f) const {
    if (reduced.rank() == 0) return f(0, 0);
    int64_t number = 0;
    ForEachOffset(reduced, reduced_strides, reduced_strides, [&](int64_t offset, int64_t) {
      f(offset, number);
      number += run;
    });
  }

  Shape kept, reduced;  // reduced: without the last axis
  Strides kept_strides, reduced_strides;
  int64_t run = 1, run_stride = 0;
  bool dense = false;  // whether the reduced elements are adjacent
};

Roles RolesOf(const ArrayRef& x, absl::Span<const int64_t> axes) {
  Roles roles;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    const bool is_reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    (is_reduced ? roles.reduced : roles.kept).push_back(x.shape[axis]);
    (is_reduced ? roles.reduced_strides : roles.kept_strides).push_back(x.strides[axis]);
  }
  roles.dense = roles.reduced_strides == DenseStrides(roles.reduced);
  if (const int64_t rank = roles.reduced.rank(); rank > 0) {
    roles.run = roles.reduced[rank - 1];
    roles.run_stride = roles.reduced_strides.back();
    roles.reduced = Shape(roles.reduced.extents().first(rank - 1));
    roles.reduced_strides.pop_back();
  }
  return roles;
}

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

// One level of the tree; a constant width lets the compiler use vectors of that width.
template <int kWidth, class C, class F>
void Halve(C* lanes, F combine) {
  for (int j = 0; j < kWidth; ++j) lanes[j] = combine(lanes[j], lanes[j + kWidth]);
}

// Computes the 16 partial results of one output and combines them as a tree.
template <class C, class F>
C ReduceLanes(const C* x, int64_t n) {
  constexpr F combine;
  C lanes[kLanes];
  std::fill_n(lanes, kLanes, F::kInitial);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = combine(lanes[j], x[k + j]);
  }
  for (int j = 0; k + j < n; ++j) lanes[j] = combine(lanes[j], x[k + j]);
  Halve<8>(lanes, combine);
  Halve<4>(lanes, combine);
  Halve<2>(lanes, combine);
  Halve<1>(lanes, combine);
  return lanes[0];
}

// One output after another.
template <class T, class C>
void ReduceRows(const T* x, const Roles& roles, C (*reduce)(const C*, int64_t), T* out) {
  const int64_t n = roles.reduced.num_elements() * roles.run;
  const bool contiguous = std::is_same_v<T, C> && roles.dense;
  std::vector<C> gathered(contiguous ? 0 : n);
  ForEachOffset(roles.kept, roles.kept_strides, DenseStrides(roles.kept), [&](int64_t from, int64_t index) {
    const C* row = gathered.data();
    if constexpr (std::is_same_v<T, C>) {
      if (contiguous) row = x + from;
    }
    if (!contiguous) {
      roles.ForEachRun([&](int64_t offset, int64_t number) {
        const T* run = x + from + offset;
        C* to = gathered.data() + number;
        for (int64_t k = 0; k < roles.run; ++k) to[k] = internal::Load(run[k * roles.run_stride]);
      });
    }
    out[index] = internal::Store<T>(reduce(row, n));
  });
}

// At most 64 adjacent outputs together, each with its own 16 partial results.
constexpr int64_t kBlock = 64;

template <class T, class F>
void ReduceBlock(const T* x, const Roles& roles, int64_t columns, F combine, T* out) {
  internal::ComputeType<T> lanes[kLanes * kBlock];
  std::fill_n(lanes, kLanes * kBlock, F::kInitial);
  roles.ForEachRun([&](int64_t offset, int64_t number) {
    const T* row = x + offset;
    for (int64_t k = 0; k < roles.run; ++k, row += roles.run_stride) {
      auto* lane = lanes + (number + k) % kLanes * kBlock;
      for (int64_t i = 0; i < columns; ++i) lane[i] = combine(lane[i], internal::Load(row[i]));
    }
  });
  for (int64_t half = kLanes / 2 * kBlock; half >= kBlock; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[half + i]);
  }
  for (int64_t i = 0; i < columns; ++i) out[i] = internal::Store<T>(lanes[i]);
}

// Adjacent outputs together: the last kept axis has stride 1.
template <class T>
void ReduceColumns(const T* x, Roles roles, absl::FunctionRef<void(const T*, int64_t, T*)> reduce_block, T* out) {
  int64_t& columns = roles.kept[roles.kept.rank() - 1];
  const int64_t n = columns;
  const Strides out_strides = DenseStrides(roles.kept);
  columns = 1;
  ForEachOffset(roles.kept, roles.kept_strides, out_strides, [&](int64_t from, int64_t index) {
    for (int64_t i = 0; i < n; i += kBlock) reduce_block(x + from + i, std::min(kBlock, n - i), out + index + i);
  });
}

void ReduceAny(ReduceKind kind, const ArrayRef& x, const Roles& roles, void* out) {
  const int64_t last = roles.kept.rank() - 1;
  const bool columns = last >= 0 && roles.kept_strides[last] == 1 && roles.kept[last] >= 8;
  internal::VisitArithmetic(x.dtype, [&]<class T>() {
    using C = internal::ComputeType<T>;
    const T* from = x.As<T>();
    T* to = static_cast<T*>(out);
    internal::VisitReduction<C>(kind, [&]<class F>(F combine) {
      if (columns) {
        ReduceColumns<T>(
            from, roles, [&](const T* x, int64_t n, T* out) { ReduceBlock(x, roles, n, combine, out); }, to);
      } else {
        ReduceRows(from, roles, &ReduceLanes<C, F>, to);
      }
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
  AQT_HWY_DISPATCH(target, ReduceAny)(kind, x, RolesOf(x, axes), out);
}

void ArgReduce(ArgKind kind, DType dtype, const void* x, int64_t outer, int64_t n, int64_t inner, int32_t* out) {
  AQT_HWY_DISPATCH(BestTarget(), ArgReduceAny)(kind, dtype, x, outer, n, inner, out);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
