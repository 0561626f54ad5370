#include "aqt/kernels/reduce/reduce_window.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/reduce/reduction-inl.h"
#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::kernels {
namespace {

using internal::ComputeType;
using internal::Load;
using internal::Store;

// Elements that are processed together.
constexpr int64_t kBlock = 128;

// The windows of all axes except trailing ones along which each element is its own window. Those axes form `inner`
// adjacent elements.
class Windows {
 public:
  explicit Windows(absl::Span<const WindowAxis> axes) {
    while (!axes.empty() && axes.back() == WindowAxis{axes.back().size, 1, 1, 0, axes.back().size}) {
      inner_ *= axes.back().size;
      axes.remove_suffix(1);
    }
    axes_.assign(axes.begin(), axes.end());
    int64_t stride = inner_;
    strides_.resize(axes.size());
    for (size_t i = axes.size(); i-- > 0;) {
      strides_[i] = stride;
      stride *= axes[i].size;
    }
  }

  int64_t inner() const { return inner_; }

  // Calls f(window number) for each window, in order.
  void ForEachWindow(absl::FunctionRef<void(int64_t)> f) {
    int64_t count = 1;
    for (const WindowAxis& axis : axes_) count *= axis.windows;
    index_.assign(axes_.size(), 0);
    for (int64_t number = 0; number < count; ++number) {
      f(number);
      for (size_t i = axes_.size(); i-- > 0;) {
        if (++index_[i] < axes_[i].windows) break;
        index_[i] = 0;
      }
    }
  }

  // The elements of a window, row-major, are runs along its last axis.
  int64_t run_stride() const { return axes_.empty() ? 0 : strides_[axes_.size() - 1]; }
  using RunFn = absl::FunctionRef<void(int64_t, int64_t)>;
  // Calls f(offset in x, number of elements) for each run of the current window, in order.
  void ForEachRun(RunFn f) const {
    if (axes_.empty()) f(0, 1);
    else ForEachRun(0, 0, f);
  }

 private:
  void ForEachRun(size_t i, int64_t offset, RunFn f) const {
    const WindowAxis& axis = axes_[i];
    const int64_t first = index_[i] * axis.stride - axis.low;
    const int64_t begin = std::max<int64_t>(first, 0), end = std::min(first + axis.window, axis.size);
    if (i + 1 == axes_.size()) return f(offset + begin * strides_[i], end - begin);
    for (int64_t k = begin; k < end; ++k) ForEachRun(i + 1, offset + k * strides_[i], f);
  }

  absl::InlinedVector<WindowAxis, kInlineRank> axes_;
  Strides strides_;
  Axes index_;
  int64_t inner_ = 1;
};

template <class T, class F>
void ReduceWindowOf(Windows& windows, const T* x, T* out, F combine) {
  using C = ComputeType<T>;
  const int64_t inner = windows.inner(), stride = windows.run_stride();
  windows.ForEachWindow([&](int64_t number) {
    for (int64_t begin = 0; begin < inner; begin += kBlock) {
      const int64_t n = std::min(kBlock, inner - begin);
      C results[kBlock];
      std::fill_n(results, n, F::kInitial);
      windows.ForEachRun([&](int64_t offset, int64_t count) {
        const T* from = x + offset + begin;
        for (; count > 0; --count, from += stride) {
          for (int64_t i = 0; i < n; ++i) results[i] = combine(results[i], Load(from[i]));
        }
      });
      T* to = out + number * inner + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = Store<T>(results[i]);
    }
  });
}

template <class T, class F>
void ArgReduceWindowOf(Windows& windows, const T* x, int32_t* out, F wins) {
  using C = ComputeType<T>;
  const int64_t inner = windows.inner(), stride = windows.run_stride();
  windows.ForEachWindow([&](int64_t number) {
    for (int64_t i = 0; i < inner; ++i) {
      int64_t best = -1;
      C value{};
      windows.ForEachRun([&](int64_t offset, int64_t count) {
        int64_t at = offset + i;
        for (; count > 0; --count, at += stride) {
          const C candidate = Load(x[at]);
          if (best >= 0 && !wins(candidate, value)) continue;
          best = at;
          value = candidate;
        }
      });
      out[number * inner + i] = static_cast<int32_t>(std::max<int64_t>(best, 0));
    }
  });
}

}  // namespace

void ReduceWindow(ReduceKind kind, DType dtype, absl::Span<const WindowAxis> axes, const void* x, void* out) {
  Windows windows(axes);
  internal::VisitArithmetic(dtype, [&]<class T>() {
    internal::VisitReduction<ComputeType<T>>(
        kind, [&](auto combine) { ReduceWindowOf(windows, static_cast<const T*>(x), static_cast<T*>(out), combine); });
  });
}

void ArgReduceWindow(ArgKind kind, DType dtype, absl::Span<const WindowAxis> axes, const void* x, int32_t* out) {
  Windows windows(axes);
  internal::VisitArithmetic(dtype, [&]<class T>() {
    using C = ComputeType<T>;
    const T* from = static_cast<const T*>(x);
    if (kind == ArgKind::kMax) {
      ArgReduceWindowOf(windows, from, out, [](C a, C b) { return internal::IsAbove(a, b); });
    } else {
      ArgReduceWindowOf(windows, from, out, [](C a, C b) { return internal::IsBelow(a, b); });
    }
  });
}

}  // namespace aqt::kernels
