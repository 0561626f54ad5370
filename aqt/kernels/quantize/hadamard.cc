#include "aqt/kernels/quantize/hadamard.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize/hadamard.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using HadamardTag = hn::ScalableTag<float>;
using HadamardVec = hn::Vec<HadamardTag>;
constexpr int64_t kHadamardLanes = static_cast<int64_t>(hn::MaxLanes(HadamardTag()));
static_assert(kHadamardLanes == 1 || kHadamardLanes == 4 || kHadamardLanes == 8 || kHadamardLanes == 16);

// Elements of other dtypes that are transformed as f32 at a time: whole blocks.
constexpr int64_t kHadamardStrip = kMaxHadamardBlock;

// Lane i gets lane i ^ h.
template <int64_t h>
HWY_INLINE HadamardVec Partner(HadamardVec v) {
  static_assert(h < kHadamardLanes);
#if HWY_TARGET == HWY_AVX3
  if constexpr (h == 8) return HadamardVec{_mm512_shuffle_f32x4(v.raw, v.raw, 0x4e)};
#endif
#if HWY_TARGET != HWY_SCALAR
  if constexpr (h == 1) return hn::Shuffle2301(v);
  if constexpr (h == 2) return hn::Shuffle1032(v);
  if constexpr (h == 4) return hn::SwapAdjacentBlocks(v);
  if constexpr (h == 8) return hn::SwapAdjacentBlocks(hn::ReverseBlocks(HadamardTag(), v));
#endif
  return v;
}

// -1 in the lanes whose bit h is set, 1 in the others.
template <int64_t h>
HWY_INLINE HadamardVec SignsOf() {
  HWY_ALIGN static constexpr struct Table {
    constexpr Table() : signs() {
      for (int64_t i = 0; i < kHadamardLanes; ++i) signs[i] = (i & h) != 0 ? -1.0f : 1.0f;
    }
    float signs[kHadamardLanes];
  } kTable;
  return hn::LoadU(HadamardTag(), kTable.signs);
}

// Step h in each of V vectors: lanes with bit h clear become v + partner, the others partner - v. The product with a
// sign is exact, so a fused multiplication rounds like the sum.
template <int64_t h, int V>
HWY_INLINE void StepInside(HadamardVec (&v)[V]) {
  if constexpr (h < kHadamardLanes) {
    const HadamardVec signs = SignsOf<h>();
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) v[i] = hn::MulAdd(v[i], signs, Partner<h>(v[i]));
  }
}

// Step H * lanes: between the vectors.
template <int H, int V>
HWY_INLINE void StepBetween(HadamardVec (&v)[V]) {
  if constexpr (H < V) {
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) {
      if ((i & H) != 0) continue;
      const HadamardVec a = v[i], b = v[i + H];
      v[i] = hn::Add(a, b);
      v[i + H] = hn::Sub(a, b);
    }
  }
}

// The steps below V * lanes of V vectors; with `last`, also the factor.
template <int V>
HWY_INLINE void TransformVectors(const float* x, float scale, bool last, float* out) {
  const HadamardTag d;
  HadamardVec v[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) v[i] = hn::LoadU(d, x + i * kHadamardLanes);
  StepInside<1>(v);
  StepInside<2>(v);
  StepInside<4>(v);
  StepInside<8>(v);
  StepBetween<1>(v);
  StepBetween<2>(v);
  StepBetween<4>(v);
  if (!last) {
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) hn::StoreU(v[i], d, out + i * kHadamardLanes);
    return;
  }
  const HadamardVec s = hn::Set(d, scale);
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) hn::StoreU(hn::Mul(v[i], s), d, out + i * kHadamardLanes);
}

// `count` parts of m elements, each at least V vectors.
template <int V>
void TransformParts(const float* x, int64_t m, int64_t count, float* out) {
  constexpr int64_t kElements = V * kHadamardLanes;
  const HadamardTag d;
  const float scale = HadamardScale(m);
  const HadamardVec s = hn::Set(d, scale);
  for (int64_t part = 0; part < count; ++part, x += m, out += m) {
    for (int64_t i = 0; i < m; i += kElements) TransformVectors<V>(x + i, scale, m == kElements, out + i);
    for (int64_t h = kElements; h < m; h *= 2) {
      const bool last = 2 * h == m;
      for (int64_t i = 0; i < m; i += 2 * h) {
        for (float* at = out + i; at < out + i + h; at += kHadamardLanes) {
          const HadamardVec a = hn::LoadU(d, at), b = hn::LoadU(d, at + h);
          const HadamardVec sum = hn::Add(a, b), difference = hn::Sub(a, b);
          if (last) {
            hn::StoreU(hn::Mul(sum, s), d, at);
            hn::StoreU(hn::Mul(difference, s), d, at + h);
          } else {
            hn::StoreU(sum, d, at);
            hn::StoreU(difference, d, at + h);
          }
        }
      }
    }
  }
}

// Parts of less than a vector, in n elements: whole vectors, then the rest in a padded copy.
void TransformSmallParts(const float* x, int64_t m, int64_t n, float* out) {
  const HadamardTag d;
  const HadamardVec s = hn::Set(d, HadamardScale(m));
  const auto transform = [&](const float* from, float* to) HWY_ATTR {
    HadamardVec v[1] = {hn::LoadU(d, from)};
    if (m > 1) StepInside<1>(v);
    if (m > 2) StepInside<2>(v);
    if (m > 4) StepInside<4>(v);
    hn::StoreU(hn::Mul(v[0], s), d, to);
  };
  int64_t i = 0;
  for (; i + kHadamardLanes <= n; i += kHadamardLanes) transform(x + i, out + i);
  if (i == n) return;
  float padded[kHadamardLanes] = {};
  std::copy(x + i, x + n, padded);
  transform(padded, padded);
  std::copy(padded, padded + (n - i), out + i);
}

void TransformRow(const float* x, int64_t n, int64_t block, float* out) {
  ForEachHadamard(n, block, [&](int64_t first, int64_t m, int64_t count) HWY_ATTR {
    const int64_t vectors = m / kHadamardLanes;
    if (vectors >= 8) return TransformParts<8>(x + first, m, count, out + first);
    if (vectors == 4) return TransformParts<4>(x + first, m, count, out + first);
    if (vectors == 2) return TransformParts<2>(x + first, m, count, out + first);
    if (vectors == 1) return TransformParts<1>(x + first, m, count, out + first);
    TransformSmallParts(x + first, m, count * m, out + first);
  });
}

template <class T>
void LoadStrip(const T* x, int64_t n, float* strip) {
  const HadamardTag d;
  int64_t i = 0;
  for (; i + kHadamardLanes <= n; i += kHadamardLanes) hn::StoreU(LoadFloat(d, x + i), d, strip + i);
  for (; i < n; ++i) strip[i] = ToFloat(x[i]);
}

template <class T>
void StoreStrip(const float* strip, int64_t n, T* out) {
  const HadamardTag d;
  int64_t i = 0;
  for (; i + kHadamardLanes <= n; i += kHadamardLanes) {
    StoreFloat(d, RoundLanes<T>::Apply(d, hn::LoadU(d, strip + i)), out + i);
  }
  if (i == n) return;
  float padded[kHadamardLanes] = {};
  T rest[kHadamardLanes];
  std::copy(strip + i, strip + n, padded);
  StoreFloat(d, RoundLanes<T>::Apply(d, hn::LoadU(d, padded)), rest);
  std::copy(rest, rest + (n - i), out + i);
}

template <class T>
void HadamardOf(const HadamardArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_row_stride;
    T* out = static_cast<T*>(args.out) + r * args.out_row_stride;
    if constexpr (std::is_same_v<T, float>) {
      TransformRow(x, args.n, args.block, out);
    } else {
      HWY_ALIGN float strip[kHadamardStrip];
      for (int64_t i = 0; i < args.n; i += kHadamardStrip) {
        const int64_t n = std::min(kHadamardStrip, args.n - i);
        LoadStrip(x + i, n, strip);
        TransformRow(strip, n, args.block, strip);
        StoreStrip(strip, n, out + i);
      }
    }
  }
}

void HadamardAny(const HadamardArgs& args) {
  switch (args.dtype) {
    case DType::kF32: return HadamardOf<float>(args);
    case DType::kBF16: return HadamardOf<BFloat16>(args);
    case DType::kF16: return HadamardOf<Float16>(args);
    default: AQT_CHECK(!"HadamardRows: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void HadamardRows(const HadamardArgs& args, Target target) {
  AQT_DCHECK(std::has_single_bit(static_cast<uint64_t>(args.block)) && args.block <= kMaxHadamardBlock);
  AQT_HWY_DISPATCH(target, HadamardAny)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
