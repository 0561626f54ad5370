#include "aqt/kernels/reduce/reduce_parts.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/arithmetic-inl.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/reduce/reduce_parts.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/maximum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using internal::ComputeType;
using internal::Load;
using internal::Store;

constexpr int64_t kLanes = 16;
constexpr int64_t kConverted = 256;  // elements converted at a time; a multiple of kLanes

struct Sum {
  template <class C>
  static constexpr C kInitial = C{0};
  template <class V>
  static HWY_INLINE V Apply(V a, V b) {
    return hn::Add(a, b);
  }
};

struct Max {
  template <class C>
  static constexpr C kInitial = std::is_integral_v<C> ? std::numeric_limits<C>::min()
                                                      : -std::numeric_limits<C>::infinity();
  template <class V>
  static HWY_INLINE V Apply(V a, V b) {
    return MaximumOf(a, b);
  }
};

template <class C>
using Wide = hn::CappedTag<C, kLanes>;

// to[i] = to[i] kind x[i].
template <class K, class C>
HWY_INLINE void Combine(const C* x, int64_t n, C* to) {
  const Wide<C> d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(K::Apply(hn::LoadU(d, to + i), hn::LoadU(d, x + i)), d, to + i);
  const hn::CappedTag<C, 1> one;
  for (; i < n; ++i) hn::StoreU(K::Apply(hn::LoadU(one, to + i), hn::LoadU(one, x + i)), one, to + i);
}

// Combines n elements with 16 lanes; the first element belongs to lane 0.
template <class K, class C>
HWY_INLINE void AddRow(const C* x, int64_t n, C* lanes) {
  const Wide<C> d;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(Wide<C>()));
  constexpr int64_t kVectors = kLanes / kStep;
  hn::VFromD<Wide<C>> sums[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) sums[v] = hn::LoadU(d, lanes + v * kStep);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = K::Apply(sums[v], hn::LoadU(d, x + k + v * kStep));
  }
  for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, lanes + v * kStep);
  Combine<K>(x + k, n - k, lanes);
}

// Combines the partial results of each column as a tree, into the first of them.
template <class K, class C>
HWY_INLINE void Tree(int64_t columns, C* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) Combine<K>(lanes + width * columns, width * columns, lanes);
}

// Combines elements first, first + 1, ... of a row with its lanes.
template <class K, class T>
void AddPartOf(const T* x, int64_t first, int64_t n, ComputeType<T>* lanes) {
  using C = ComputeType<T>;
  const int64_t head = std::min((kLanes - first % kLanes) % kLanes, n);  // up to the next multiple of 16
  for (int64_t i = 0; i < n;) {
    const int64_t count = i < head ? head : std::min(n - i, std::is_same_v<T, C> ? n : kConverted);
    const C* from;
    [[maybe_unused]] C converted[std::is_same_v<T, C> ? 1 : kConverted];
    if constexpr (std::is_same_v<T, C>) {
      from = x + i;
    } else {
      for (int64_t j = 0; j < count; ++j) converted[j] = Load(x[i + j]);
      from = converted;
    }
    if (i < head) Combine<K>(from, count, lanes + first % kLanes);
    else AddRow<K>(from, count, lanes);
    i += count;
  }
}

// Several rows at a time, because the additions of one row wait for each other.
template <class K, int kRows, class C>
HWY_INLINE void RowsTogether(const C* x, int64_t columns, C* out) {
  const Wide<C> d;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(Wide<C>()));
  constexpr int64_t kVectors = kLanes / kStep;
  hn::VFromD<Wide<C>> sums[kRows][kVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Set(d, K::template kInitial<C>);
  }
  int64_t k = 0;
  for (; k + kLanes <= columns; k += kLanes) {
    for (int r = 0; r < kRows; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) {
        sums[r][v] = K::Apply(sums[r][v], hn::LoadU(d, x + r * columns + k + v * kStep));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    C lanes[kLanes];
    for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, lanes + v * kStep);
    Combine<K>(x + r * columns + k, columns - k, lanes);
    Tree<K>(1, lanes);
    out[r] = lanes[0];
  }
}

// The maxima of several rows by the processor's maximum, which may drop a NaN and confuse -0 with +0. Returns false and
// writes nothing where that could happen. `out` may alias x.
template <int kRows, class C>
HWY_INLINE bool QuickMaxima(const C* x, int64_t columns, C* out) {
  const Wide<C> d;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(Wide<C>()));
  hn::VFromD<Wide<C>> maxima[kRows], sums[kRows];
  for (int r = 0; r < kRows; ++r) {
    maxima[r] = hn::Set(d, Max::kInitial<C>);
    sums[r] = hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + kStep <= columns; k += kStep) {
    for (int r = 0; r < kRows; ++r) {
      const auto v = hn::LoadU(d, x + r * columns + k);
      maxima[r] = hn::Max(maxima[r], v);
      sums[r] = hn::Add(sums[r], v);  // NaN if any element is
    }
  }
  bool sure = true;
  C results[kRows];
  for (int r = 0; r < kRows; ++r) {
    C maximum = hn::GetLane(hn::MaxOfLanes(d, maxima[r])), sum = hn::GetLane(hn::SumOfLanes(d, sums[r]));
    for (int64_t i = k; i < columns; ++i) {
      maximum = std::max(maximum, x[r * columns + i]);
      sum += x[r * columns + i];
    }
    results[r] = maximum;
    sure &= sum == sum && maximum != 0;
  }
  if (sure) std::copy_n(results, kRows, out);
  return sure;
}

template <class K, class T>
void RowsOf(const T* x, int64_t rows, int64_t columns, T* out) {
  using C = ComputeType<T>;
  int64_t r = 0;
  if constexpr (std::is_same_v<T, C>) {
    for (; r + 4 <= rows; r += 4) {
      if constexpr (std::is_same_v<K, Max> && std::is_floating_point_v<C>) {
        if (QuickMaxima<4>(x + r * columns, columns, out + r)) continue;
      }
      RowsTogether<K, 4>(x + r * columns, columns, out + r);
    }
    for (; r + 2 <= rows; r += 2) RowsTogether<K, 2>(x + r * columns, columns, out + r);
  }
  for (; r < rows; ++r) {
    C lanes[kLanes];
    std::fill_n(lanes, kLanes, K::template kInitial<C>);
    AddPartOf<K>(x + r * columns, 0, columns, lanes);
    Tree<K>(1, lanes);
    out[r] = Store<T>(lanes[0]);
  }
}

template <class K, class T>
void AddOf(const T* x, int64_t row_stride, int64_t first, int64_t rows, int64_t columns, ComputeType<T>* lanes) {
  using C = ComputeType<T>;
  for (int64_t r = 0; r < rows; ++r, x += row_stride) {
    C* const to = lanes + (first + r) % kLanes * columns;
    if constexpr (std::is_same_v<T, C>) {
      Combine<K>(x, columns, to);
    } else {
      C converted[kConverted];
      for (int64_t c = 0; c < columns; c += kConverted) {
        const int64_t n = std::min(kConverted, columns - c);
        for (int64_t i = 0; i < n; ++i) converted[i] = Load(x[c + i]);
        Combine<K>(converted, n, to + c);
      }
    }
  }
}

template <class K, class T>
void FinishOf(int64_t columns, ComputeType<T>* lanes, T* out) {
  Tree<K>(columns, lanes);
  for (int64_t c = 0; c < columns; ++c) out[c] = Store<T>(lanes[c]);
}

// Calls f.template operator()<K>() with K the struct of the kind.
template <class F>
HWY_INLINE void VisitKind(ReduceKind kind, F&& f) {
  if (kind == ReduceKind::kSum) f.template operator()<Sum>();
  else f.template operator()<Max>();
}

void Rows(ReduceKind kind, DType dtype, const void* x, int64_t rows, int64_t columns, void* out) {
  VisitKind(kind, [&]<class K>() {
    internal::VisitArithmetic(
        dtype, [&]<class T>() { RowsOf<K>(static_cast<const T*>(x), rows, columns, static_cast<T*>(out)); });
  });
}

void Start(ReduceKind kind, DType dtype, int64_t columns, void* lanes) {
  VisitKind(kind, [&]<class K>() {
    internal::VisitArithmetic(dtype, [&]<class T>() {
      using C = ComputeType<T>;
      std::fill_n(static_cast<C*>(lanes), kLanes * columns, K::template kInitial<C>);
    });
  });
}

void Add(ReduceKind kind, DType dtype, const void* x, int64_t row_stride, int64_t first, int64_t rows, int64_t columns,
         void* lanes) {
  VisitKind(kind, [&]<class K>() {
    internal::VisitArithmetic(dtype, [&]<class T>() {
      AddOf<K>(static_cast<const T*>(x), row_stride, first, rows, columns, static_cast<ComputeType<T>*>(lanes));
    });
  });
}

void AddPart(ReduceKind kind, DType dtype, const void* x, int64_t first, int64_t n, void* lanes) {
  VisitKind(kind, [&]<class K>() {
    internal::VisitArithmetic(dtype, [&]<class T>() {
      AddPartOf<K>(static_cast<const T*>(x), first, n, static_cast<ComputeType<T>*>(lanes));
    });
  });
}

void Finish(ReduceKind kind, DType dtype, int64_t columns, void* lanes, void* out) {
  VisitKind(kind, [&]<class K>() {
    internal::VisitArithmetic(
        dtype, [&]<class T>() { FinishOf<K>(columns, static_cast<ComputeType<T>*>(lanes), static_cast<T*>(out)); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

std::optional<ReduceExtents> ReduceExtentsOf(const Shape& shape, absl::Span<const int64_t> axes) {
  ReduceExtents e;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 1) continue;
    const bool is_reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (is_reduced && e.inner != 1) return std::nullopt;
    (is_reduced ? e.k : e.k == 1 ? e.outer : e.inner) *= shape[axis];
  }
  return e;
}

bool ReducesParts(ReduceKind kind) { return kind == ReduceKind::kSum || kind == ReduceKind::kMax; }

int64_t LaneBytes(DType dtype, int64_t columns) {
  int64_t bytes = 0;
  internal::VisitArithmetic(dtype, [&]<class T>() { bytes = sizeof(internal::ComputeType<T>); });
  return 16 * columns * bytes;
}

void ReduceRows(ReduceKind kind, DType dtype, const void* x, int64_t rows, int64_t columns, void* out) {
  AQT_DCHECK(ReducesParts(kind));
  AQT_HWY_DISPATCH(BestTarget(), Rows)(kind, dtype, x, rows, columns, out);
}

void AddToRow(ReduceKind kind, DType dtype, const void* x, int64_t first, int64_t n, void* lanes) {
  AQT_HWY_DISPATCH(BestTarget(), AddPart)(kind, dtype, x, first, n, lanes);
}

void StartLanes(ReduceKind kind, DType dtype, int64_t columns, void* lanes) {
  AQT_DCHECK(ReducesParts(kind));
  AQT_HWY_DISPATCH(BestTarget(), Start)(kind, dtype, columns, lanes);
}

void AddToLanes(ReduceKind kind, DType dtype, const void* x, int64_t row_stride, int64_t first, int64_t rows,
                int64_t columns, void* lanes) {
  AQT_HWY_DISPATCH(BestTarget(), Add)(kind, dtype, x, row_stride, first, rows, columns, lanes);
}

void FinishLanes(ReduceKind kind, DType dtype, int64_t columns, void* lanes, void* out) {
  AQT_HWY_DISPATCH(BestTarget(), Finish)(kind, dtype, columns, lanes, out);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
