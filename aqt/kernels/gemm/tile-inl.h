// A tile policy of R rows by two vectors (four with 128 bits), built from three operations of one instruction set.
// Included once per Highway target.

#if defined(AQT_KERNELS_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_GEMM_TILE_INL_H_
#undef AQT_KERNELS_GEMM_TILE_INL_H_
#else
#define AQT_KERNELS_GEMM_TILE_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/kernels/simd/convert-inl.h"
#include "hwy/highway.h"

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Turns a subnormal number into a zero of its sign.
template <bool kFlush, class VF>
HWY_INLINE VF Flushed(VF v) {
  if constexpr (!kFlush) return v;
  const hn::ScalableTag<float> d;
#if HWY_TARGET == HWY_AVX3
  constexpr int kIsSubnormal = 0x20;
  const __mmask16 subnormal = _mm512_fpclass_ps_mask(v.raw, kIsSubnormal);
  return VF{_mm512_mask_and_ps(v.raw, subnormal, v.raw, hn::Set(d, -0.0f).raw)};
#else
  return hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(d, 0x1p-126f)), hn::And(v, hn::Set(d, -0.0f)), v);
#endif
}

// Ops has
//   Acc, kLhs, kRhs, kBlockGroups     as in the tile policy (driver.h); kRhs.width = kVectors * kLanes
//   Broadcast(p)                      one group of the lhs in all lanes
//   LoadRhs<kWide, kPart>(p)          one group of kLanes rows of the rhs: number kPart of those that share their bytes
// for float sums
//   kSumsAreNormal                    whether no sum is subnormal
// and optionally
//   kRhsShift                         LoadRhs<false, ...> gives 2^kRhsShift times the values. Sums over kMaxSumGroups
//                                     still fit s32
//   LoadShared(p), Decode<kPart>(v)   the bytes that two groups share, and LoadRhs<false, kPart>(p) from them
//   StoreRounded(v, to)               to[i] = v[i], a sum, rounded to bf16; each NaN becomes the positive quiet one
//   Step(a, b, sum)                   sum + the products of one group, lane by lane
//   StepLoading(a, p, sum)            Step(a, LoadRhs<false, ...>(p), sum) in one instruction
template <class Ops>
struct VectorTile : Ops {
  using Acc = typename Ops::Acc;
  using D = hn::ScalableTag<Acc>;
  using V = hn::Vec<D>;
  static constexpr int64_t kLanes = HWY_MAX_BYTES / 4;
  static constexpr int kVectors = Ops::kRhs.width / kLanes;  // of a panel
  static constexpr int64_t kLhsStepBytes = int64_t{Ops::kLhs.width} * 64;
  // The number of rhs groups that share their bytes, and the size of those bytes for kLanes rows.
  template <bool kWide>
  static constexpr int kShared = kWide ? 1 : Ops::kRhs.SharedGroups();
  template <bool kWide>
  static constexpr int64_t kRhsVectorBytes{kWide ? kLanes * Ops::kRhs.k_group * Ops::kWideRhsElementBytes
                                                 : Ops::kRhs.GroupBytes(kShared<false>) / kVectors};

  template <bool kWide>
  static constexpr int RhsShift() {
    if constexpr (!kWide && requires { Ops::kRhsShift; }) return Ops::kRhsShift;
    return 0;
  }

  // The sums of R rows and P panels of columns.
  template <int R, int P = 1>
  struct Sums {
    V v[R][kVectors * P];
  };

  // The rhs panels that Sum reads.
  struct Panels {
    const char* HWY_RESTRICT rhs;
    int64_t bytes;  // from one panel to the next
    int64_t fetch;  // as in the tile policy

    HWY_INLINE Panels operator+(int64_t offset) const { return {rhs + offset, bytes, fetch}; }
    // Vector j of a group.
    template <bool kWide>
    HWY_INLINE const char* Vector(int j) const {
      return rhs + j / kVectors * bytes + j % kVectors * kRhsVectorBytes<kWide>;
    }
  };

  // Whether the policy has a step that reads the rhs itself: one instruction instead of two for data used once. This
  // keeps more of the rhs in flight from L3 or memory. One row takes up to 15 % less time, with bf16 27 %.
  template <bool kWide, int R>
  static constexpr bool kStepLoads = R == 1 && !kWide && requires(V v, const char* rhs) {
    Ops::StepLoading(v, rhs, v);
  };

  template <bool kWide, int kPart, int R, int P>
  static HWY_INLINE void Group(const char* HWY_RESTRICT lhs, Panels rhs, Sums<R, P>& s) {
    if constexpr (kStepLoads<kWide, R>) {
      const auto a = Ops::Broadcast(lhs);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) s.v[0][j] = Ops::StepLoading(a, rhs.template Vector<kWide>(j), s.v[0][j]);
      return;
    }
    decltype(Ops::template LoadRhs<kWide, kPart>(rhs.rhs)) b[kVectors * P];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors * P; ++j) b[j] = Ops::template LoadRhs<kWide, kPart>(rhs.template Vector<kWide>(j));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto a = Ops::Broadcast(lhs + r * 64);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) s.v[r][j] = Ops::Step(a, b[j], s.v[r][j]);
    }
  }

  // Two groups that share their bytes load them once.
  template <bool kWide>
  static constexpr bool kLoadsShared = !kWide && requires(const char* rhs) {
    Ops::LoadShared(rhs);
  };
  template <int R, int P>
  static HWY_INLINE void TwoGroups(const char* HWY_RESTRICT lhs, Panels rhs, Sums<R, P>& even, Sums<R, P>& odd) {
    decltype(Ops::LoadShared(rhs.rhs)) both[kVectors * P];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors * P; ++j) both[j] = Ops::LoadShared(rhs.template Vector<false>(j));
    const auto add = [&]<int kPart>(Sums<R, P>& sums) HWY_ATTR {
      decltype(Ops::template Decode<kPart>(both[0])) b[kVectors * P];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) b[j] = Ops::template Decode<kPart>(both[j]);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto a = Ops::Broadcast(lhs + r * 64 + 4 * kPart);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors * P; ++j) sums.v[r][j] = Ops::Step(a, b[j], sums.v[r][j]);
      }
    };
    add.template operator()<0>(even);
    add.template operator()<1>(odd);
  }

  template <int R, int P>
  static HWY_INLINE void SetZero(Sums<R, P>& s) {
    const D d;
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) s.v[r][j] = hn::Zero(d);
    }
  }
  template <int R, int P>
  static HWY_INLINE void AddTo(const Sums<R, P>& more, Sums<R, P>& s) {
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) s.v[r][j] = hn::Add(s.v[r][j], more.v[r][j]);
    }
  }

  // Starts from init[r * init_stride + column], or from 0. From one panel to the next, init advances by `rhs.bytes`.
  template <bool kWide, int R, int P>
  static HWY_INLINE void Sum(internal::TileLhs lhs, Panels rhs, int64_t groups, const Acc* init, int64_t init_stride,
                             Sums<R, P>& s) {
    // For the groups that share their bytes.
    constexpr int64_t kGroupBytes = kVectors * kRhsVectorBytes<kWide>;
    constexpr int kParts = kShared<kWide>;
    constexpr int kShift = RhsShift<kWide>();
    const D d;
    const auto load_init = [&](int r, int j) HWY_ATTR {
      if (init == nullptr) return hn::Zero(d);
      const char* const panel = reinterpret_cast<const char*>(init + r * init_stride) + j / kVectors * rhs.bytes;
      return hn::LoadU(d, reinterpret_cast<const Acc*>(panel) + j % kVectors * kLanes);
    };
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) s.v[r][j] = kShift != 0 ? hn::Zero(d) : load_init(r, j);
    }
    // A few rows have too few sums to hide the latency of an addition (4 or 5 cycles, 2 additions per cycle). Integers
    // may be added in any order, so their sums are split.
    constexpr bool kSplits = std::is_integral_v<Acc> && R * kLanes <= 32 && R <= 2 && P <= 2;
    constexpr int kMore = kLoadsShared<kWide> || P > 1 ? 1 : 3;
    [[maybe_unused]] Sums<R, P> more[kMore];
    if constexpr (kSplits) {
#pragma GCC unroll 3
      for (int i = 0; i < kMore; ++i) SetZero(more[i]);
    }
    const char* HWY_RESTRICT at = lhs.data;
    for (; groups >= PanelFormat::kStepGroups; groups -= PanelFormat::kStepGroups) {
      if (lhs.steps != nullptr) at = lhs.data + *lhs.steps++;
#pragma GCC unroll 4
      for (int64_t q = 0; q < 64; q += 16, rhs.rhs += 4 / kParts * kGroupBytes) {
        if (R >= internal::kFetchRows && rhs.fetch != 0) {
#pragma GCC unroll 8
          for (int64_t i = 0; i < 4 / kParts * kGroupBytes; i += 64) __builtin_prefetch(rhs.rhs + rhs.fetch + i);
        }
        if constexpr (kLoadsShared<kWide>) {
          TwoGroups(at + q, rhs, s, kSplits ? more[0] : s);
          TwoGroups(at + q + 8, rhs + kGroupBytes, s, kSplits ? more[0] : s);
        } else {
          const auto group = [&]<int kIndex>() HWY_ATTR {
            constexpr int kSums = kSplits ? kIndex % (kMore + 1) : 0;
            Sums<R, P>& sums = kSums == 0 ? s : more[kSums == 0 ? 0 : kSums - 1];
            Group<kWide, kIndex % kParts>(at + q + 4 * kIndex, rhs + kIndex / kParts * kGroupBytes, sums);
          };
          group.template operator()<0>();
          group.template operator()<1>();
          group.template operator()<2>();
          group.template operator()<3>();
        }
      }
      at += kLhsStepBytes;
    }
    if constexpr (kSplits) {
#pragma GCC unroll 3
      for (int i = 0; i < kMore; ++i) AddTo(more[i], s);
    }
    for (; groups > 0; groups -= kParts, at += 4 * kParts, rhs.rhs += kGroupBytes) {
      Group<kWide, 0>(at, rhs, s);
      if constexpr (kParts == 2) {
        if (groups > 1) Group<kWide, 1>(at + 4, rhs, s);
      }
    }
    if constexpr (kShift != 0) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors * P; ++j) s.v[r][j] = hn::Add(hn::ShiftRight<kShift>(s.v[r][j]), load_init(r, j));
      }
    }
  }

  template <int R, bool kWide>
  static HWY_NOINLINE void Accumulate(internal::TileLhs lhs, const char* rhs, int64_t groups, const Acc* init,
                                      int64_t init_stride, int64_t fetch, Acc* out, int64_t out_stride) {
    Sums<R> s;
    Sum<kWide>(lhs, {rhs, 0, fetch}, groups, init, init_stride, s);
    const D d;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) hn::StoreU(s.v[r][j], d, out + r * out_stride + j * kLanes);
    }
  }

  using DF = hn::ScalableTag<float>;
  using VF = hn::Vec<DF>;

  // A sum and its products with two scales, each rounded to T.
  template <bool kFlush>
  static HWY_INLINE VF Value(V sum) {
    if constexpr (std::is_same_v<Acc, float>) {
      constexpr bool kFlushSum = kFlush && !Ops::kSumsAreNormal;
      return Flushed<kFlushSum>(sum);
    } else {
      return hn::ConvertTo(DF(), sum);
    }
  }
  template <bool kFlush, class T>
  static HWY_INLINE VF Scaled(VF x, VF first, VF second) {
    const DF d;
    x = Flushed<kFlush>(hn::Mul(RoundLanes<T>::Apply(d, x), first));
    return Flushed<kFlush>(hn::Mul(RoundLanes<T>::Apply(d, x), second));
  }
  template <bool kFlush>
  static HWY_INLINE void StoreValue(VF v, const internal::TileScales& scales, float* to) {
    const DF d;
    if (scales.streams) return hn::Stream(v, d, to);
    if (scales.adds) v = Flushed<kFlush>(hn::Add(hn::LoadU(d, to), v));
    hn::StoreU(v, d, to);
  }
  template <bool kFlush>
  static HWY_INLINE void StoreValue(VF v, const internal::TileScales&, BFloat16* to) {
    StoreFloat(DF(), RoundLanes<BFloat16>::Apply(DF(), v), to);
  }
  template <bool kFlush, class T>
  static HWY_INLINE void StoreSum(V sum, const internal::TileScales& scales, T* to) {
    if constexpr (std::is_same_v<T, BFloat16> && requires { Ops::StoreRounded(sum, to); }) {
      Ops::StoreRounded(sum, to);
    } else {
      StoreValue<kFlush>(Value<kFlush>(sum), scales, to);
    }
  }

  template <int R, bool kWide, bool kFlush, class T>
  static HWY_NOINLINE void Multiply(internal::TileLhs lhs, const char* rhs, int64_t groups, const Acc* init,
                                    int64_t init_stride, int64_t fetch, const internal::TileScales& scales, T* out,
                                    int64_t out_stride) {
    Sums<R> s;
    Sum<kWide>(lhs, {rhs, 0, fetch}, groups, init, init_stride, s);
    if (!scales.any) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) StoreSum<kFlush>(s.v[r][j], scales, out + r * out_stride + j * kLanes);
      }
      return;
    }
    const DF d;
    VF cols[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) cols[j] = hn::LoadU(d, scales.col + j * kLanes);
    StoreScaled<kFlush>(s, scales, cols, out, out_stride, 0);
  }

  // StoreScaled for most sums of accumulating tiles. Each tile is small, so deciding per vector would take a large part
  // of its time.
  template <bool kFlush, int R, int P>
  static HWY_INLINE void AddScaled(const Sums<R, P>& s, const float* rows, const VF (&cols)[kVectors * P], float* out,
                                   int64_t out_stride, int64_t apart) {
    const DF d;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const VF row = hn::Set(d, rows[r]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) {
        float* const to = out + r * out_stride + (j / kVectors * apart * kVectors + j % kVectors) * kLanes;
        const VF value = Scaled<kFlush, float>(Value<kFlush>(s.v[r][j]), row, cols[j]);
        hn::StoreU(Flushed<kFlush>(hn::Add(hn::LoadU(d, to), value)), d, to);
      }
    }
  }

  // Stores finished sums with their scales; the panels are `apart` panels from each other.
  template <bool kFlush, int R, int P, class T>
  static HWY_INLINE void StoreScaled(const Sums<R, P>& s, const internal::TileScales& scales,
                                     const VF (&cols)[kVectors * P], T* out, int64_t out_stride, int64_t apart) {
    if constexpr (std::is_same_v<T, float>) {
      if (scales.adds && !scales.col_first) return AddScaled<kFlush>(s, scales.row, cols, out, out_stride, apart);
    }
    const DF d;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const VF row = hn::Set(d, scales.row[r]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors * P; ++j) {
        const VF first = scales.col_first ? cols[j] : row, second = scales.col_first ? row : cols[j];
        StoreValue<kFlush>(Scaled<kFlush, T>(Value<kFlush>(s.v[r][j]), first, second), scales,
                           out + r * out_stride + (j / kVectors * apart * kVectors + j % kVectors) * kLanes);
      }
    }
  }

  // Multiplies P panels of a run, each `apart` panels after the previous one, and advances to the next panel.
  template <int R, int P, bool kFlush>
  static HWY_INLINE void MultiplyNext(internal::PanelRun& run, int64_t apart) {
    const DF d;
    Sums<R, P> s;
    Sum<false>({run.lhs}, {run.rhs + Ops::kRhs.HeaderBytes(), apart * run.rhs_panel_bytes, run.fetch}, run.groups,
               run.corrects ? reinterpret_cast<const Acc*>(run.rhs) : nullptr, 0, s);
    VF cols[kVectors * P];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors * P; ++j) {
      cols[j] = hn::LoadU(d, run.scales.col + j / kVectors * apart * run.col_step + j % kVectors * kLanes);
    }
    StoreScaled<kFlush>(s, run.scales, cols, run.out, run.out_stride, apart);
    run.panels -= P;
    Skip(run, 1);
  }
  static HWY_INLINE void Skip(internal::PanelRun& run, int64_t panels) {
    run.rhs += panels * run.rhs_panel_bytes;
    run.scales.col += panels * run.col_step;
    run.out += panels * kVectors * kLanes;
  }

  // One row, with P parts of the panels side by side.
  template <int P, bool kFlush>
  static HWY_INLINE void MultiplyParts(internal::PanelRun& run) {
    const int64_t part = run.panels / P;
    while (run.panels >= P) MultiplyNext<1, P, kFlush>(run, part);
    Skip(run, (P - 1) * part);
  }

  // `run` is a copy, so no store to the output can change it.
  template <int R, bool kFlush>
  static HWY_NOINLINE void MultiplyPanels(internal::PanelRun run) {
    // One row is multiplied as fast as memory delivers the rhs, and memory delivers more to several readers. Each reads
    // its part of the panels from start to end. Four readers pay off if panels are long, need no decoding, and there
    // are 32 registers.
    if constexpr (R == 1) {
      if constexpr (HWY_TARGET == HWY_AVX3 && !kLoadsShared<false>) {
        if (run.rhs_panel_bytes >= internal::kLongPanelBytes) MultiplyParts<4, kFlush>(run);
      }
      MultiplyParts<2, kFlush>(run);
    }
    while (run.panels > 0) MultiplyNext<R, 1, kFlush>(run, 1);
  }
};

// The values of one of two groups that share their bytes, as s8.
template <int kPart, class D, class V = hn::Vec<D>>
HWY_INLINE V DecodeS4(D d8, V bytes) {
  const hn::Repartition<uint16_t, D> d16;
  if constexpr (kPart == 1) bytes = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
  alignas(16) static constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  const V indices = hn::And(bytes, hn::Set(d8, 15));
  if constexpr (hn::MaxLanes(D()) < 16) return hn::TableLookupBytes(hn::Load(hn::Full128<int8_t>(), kValues), indices);
  else return hn::TableLookupBytes(hn::LoadDup128(d8, kValues), indices);
}

// The four bytes of a group.
HWY_INLINE int32_t LoadGroup(const char* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET

#endif  // AQT_KERNELS_GEMM_TILE_INL_H_
