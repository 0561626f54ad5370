// The f32 kernels.
#include <cstring>

#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/rows.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/gemm/isa/f32.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/gemm/tile-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

template <PanelFormat::Element kRhsElement>
struct FmaOps {
  static constexpr Target kTarget = HWY_TARGET == HWY_AVX2 ? Target::kAvx2 : Target::kAvx512;
  using Acc = float;
  static constexpr int32_t kProductsPerCycle = HWY_MAX_BYTES / 2;
  static constexpr int32_t kMr = HWY_TARGET == HWY_AVX2 ? 6 : 12;  // 12 of 16, 24 of 32 registers are accumulators
  static constexpr PanelFormat kLhs = {PanelFormat::Layout::kRowSteps, PanelFormat::Element::kF32, false, kMr, 1};
  static constexpr PanelFormat kRhs = {PanelFormat::Layout::kInterleaved, kRhsElement, false, HWY_MAX_BYTES / 2, 1};
  static constexpr int64_t kWideRhsElementBytes = 0;
  static constexpr bool kSumsAreNormal = false;
  // The rhs of a block, 16 or 64 KiB, and 192 lhs rows, at most 384 KiB, stay in L2. The sums of a tile are written and
  // reread less often than if the rhs stayed in L1.
  static constexpr int64_t kBlockGroups = HWY_TARGET == HWY_AVX2 ? 256 : 512;
  static constexpr int64_t kOneBlockGroups = 1024;

  using V = hn::Vec<hn::ScalableTag<float>>;

  static HWY_INLINE V Broadcast(const char* p) {
    return hn::Set(hn::ScalableTag<float>(), *reinterpret_cast<const float*>(p));
  }
  template <bool kWide, int kPart>
  static HWY_INLINE V LoadRhs(const char* p) {
    const hn::ScalableTag<float> d;
    if constexpr (kRhsElement == PanelFormat::Element::kF32) {
      return hn::LoadU(d, reinterpret_cast<const float*>(p));
    } else if constexpr (kRhsElement == PanelFormat::Element::kBF16) {
      const hn::Rebind<uint16_t, decltype(d)> d16;
      const hn::RebindToUnsigned<decltype(d)> d32;
      return hn::BitCast(d,
                         hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
    } else {
      const hn::Rebind<int8_t, decltype(d)> d8;
      const hn::RebindToSigned<decltype(d)> d32;
      return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
    }
  }
  static HWY_INLINE V Step(V a, V b, V sum) { return hn::MulAdd(a, b, sum); }
};

template <PanelFormat::Element kRhsElement>
constexpr GemmKernel KernelOf(const char* name) {
  return internal::GemmOf<VectorTile<FmaOps<kRhsElement>>>(name);
}

#if HWY_TARGET == HWY_AVX2
#define AQT_NAME(types) types "_avx2"
#else
#define AQT_NAME(types) types "_avx512"
#endif
constexpr GemmKernel kF32 = KernelOf<PanelFormat::Element::kF32>(AQT_NAME("f32"));
constexpr GemmKernel kF32xBF16 = KernelOf<PanelFormat::Element::kBF16>(AQT_NAME("f32xbf16"));
constexpr GemmKernel kF32xS8 = KernelOf<PanelFormat::Element::kS8>(AQT_NAME("f32xs8"));
#undef AQT_NAME

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {
namespace {

// Plain C++: multiplies, then adds.
template <PanelFormat::Element kRhsElement>
struct ScalarTile {
  static constexpr Target kTarget = Target::kScalar;
  using Acc = float;
  static constexpr int32_t kProductsPerCycle = 1;
  static constexpr PanelFormat kLhs = {PanelFormat::Layout::kRowSteps, PanelFormat::Element::kF32, false, 6, 1};
  static constexpr PanelFormat kRhs = {PanelFormat::Layout::kInterleaved, kRhsElement, false, 16, 1};
  static constexpr int64_t kWideRhsElementBytes = 0;
  static constexpr int64_t kBlockGroups = 256;
  static constexpr int kNr = kRhs.width;

  static float Load(const char* rhs, int64_t i) {
    if constexpr (kRhsElement == PanelFormat::Element::kF32) {
      return reinterpret_cast<const float*>(rhs)[i];
    } else if constexpr (kRhsElement == PanelFormat::Element::kBF16) {
      return ToFloat(reinterpret_cast<const BFloat16*>(rhs)[i]);
    } else {
      return reinterpret_cast<const int8_t*>(rhs)[i];
    }
  }

  template <int R, bool kWide>
  static void Accumulate(TileLhs lhs, const char* rhs, int64_t groups, const float* init, int64_t init_stride,
                         int64_t /*fetch*/, float* out, int64_t out_stride) {
    float sums[R][kNr];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kNr; ++j) sums[r][j] = init == nullptr ? 0.0f : init[r * init_stride + j];
    }
    for (int64_t g = 0; g < groups; ++g) {
      float b[kNr];
      for (int j = 0; j < kNr; ++j) b[j] = Load(rhs, g * kNr + j);
      const char* step = lhs.Group(g, kLhs.width);
      for (int r = 0; r < R; ++r) {
        const float a = *reinterpret_cast<const float*>(step + r * 64);
        for (int j = 0; j < kNr; ++j) sums[r][j] += a * b[j];
      }
    }
    for (int r = 0; r < R; ++r) std::memcpy(out + r * out_stride, sums[r], sizeof(sums[r]));
  }

  template <int R, bool kWide, bool kFlush, class T>
  static void Multiply(TileLhs lhs, const char* rhs, int64_t groups, const float* init, int64_t init_stride,
                       int64_t /*fetch*/, const TileScales& scales, T* out, int64_t out_stride) {
    float sums[R * kNr];
    Accumulate<R, kWide>(lhs, rhs, groups, init, init_stride, 0, sums, kNr);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kNr; ++j) {
        StoreScaled(kFlush, sums[r * kNr + j], scales, r, j, out + r * out_stride + j);
      }
    }
  }
};

constexpr GemmKernel kScalar = GemmOf<ScalarTile<PanelFormat::Element::kF32>>("f32_scalar");
constexpr GemmKernel kScalarBF16 = GemmOf<ScalarTile<PanelFormat::Element::kBF16>>("f32xbf16_scalar");
constexpr GemmKernel kScalarS8 = GemmOf<ScalarTile<PanelFormat::Element::kS8>>("f32xs8_scalar");

}  // namespace

GemmRows F32Gemms() {
  static constexpr const GemmKernel* kAll[] = {
#if HWY_TARGETS & HWY_AVX3
    &N_AVX3::kF32,
    &N_AVX3::kF32xBF16,
    &N_AVX3::kF32xS8,
#endif
#if HWY_TARGETS & HWY_AVX2
    &N_AVX2::kF32,
    &N_AVX2::kF32xBF16,
    &N_AVX2::kF32xS8,
#endif
    &kScalar,
    &kScalarBF16,
    &kScalarS8,
  };
  return kAll;
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
