// The s8 kernels for SSE4, AVX2, and AVX-512 without VNNI.
#include <iterator>

#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/rows.h"
#define AQT_COMPILES_SSE4
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/gemm/isa/s8_madd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/gemm/tile-inl.h"

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// Exact without VNNI: both sides are s16, and vpmaddwd adds the two products of a group (at most 2 * 128 * 128) in s32.
// vpmaddubsw would process four at a time, but it saturates at 16 bits. Panels store the rhs as s8: half the bytes,
// which determines the speed for few rows. For many rows, a block is widened once into L1. On a Zen 4 core at 512^3:
// 131 GOP/s when widening in the inner loop, 142 from a widened panel, 148 from registers only.
template <PanelFormat::Element kRhsElement>
struct MaddOps {
#if HWY_TARGET == HWY_SSE4
  static constexpr Target kTarget = Target::kSse4;
  static constexpr PanelFormat kLhs = internal::format::kSse4Lhs, kS8Rhs = internal::format::kAvx2Rhs;
#elif HWY_TARGET == HWY_AVX2
  static constexpr Target kTarget = Target::kAvx2;
  static constexpr PanelFormat kLhs = internal::format::kAvx2Lhs, kS8Rhs = internal::format::kAvx2Rhs;
#else
  static constexpr Target kTarget = Target::kAvx512;
  static constexpr PanelFormat kLhs = internal::format::kAvx512Lhs, kS8Rhs = internal::format::kAvx512Rhs;
#endif
  using Acc = int32_t;
  static constexpr int32_t kProductsPerCycle = HWY_MAX_BYTES / 2;
  static constexpr PanelFormat kRhs = internal::format::With(kRhsElement, kS8Rhs);
  static constexpr int64_t kShared = kRhs.SharedGroups();
  static constexpr int64_t kBlockGroups = HWY_MAX_BYTES == 64 ? 192 : 256;  // wide rhs 16 or 24 KiB, lhs 2 to 6 KiB
  static constexpr int64_t kWideRhsElementBytes = 2;

  using D32 = hn::ScalableTag<int32_t>;
  using D16 = hn::Repartition<int16_t, D32>;

  static HWY_INLINE hn::Vec<D16> Broadcast(const char* p) { return hn::BitCast(D16(), hn::Set(D32(), LoadGroup(p))); }
  template <bool kWide, int kPart>
  static HWY_INLINE hn::Vec<D16> LoadRhs(const char* p) {
    if constexpr (kWide) return hn::LoadU(D16(), reinterpret_cast<const int16_t*>(p));
    const hn::Rebind<int8_t, D16> d8;
    auto bytes = hn::LoadU(d8, reinterpret_cast<const int8_t*>(p));
    if constexpr (kShared == 2) bytes = DecodeS4<kPart>(d8, bytes);
    return hn::PromoteTo(D16(), bytes);
  }
  static void Widen(const char* rhs, int64_t groups, char* wide) {
    constexpr int64_t kElements = HWY_MAX_BYTES / 2, kGroup = 2 * kRhs.width;  // per vector and per group
    const auto store = [](hn::Vec<D16> v, char* to) HWY_ATTR { hn::StoreU(v, D16(), reinterpret_cast<int16_t*>(to)); };
    for (int64_t g = 0; g < groups; g += kShared, rhs += kGroup, wide += kShared * 2 * kGroup) {
      for (int64_t i = 0; i < kGroup; i += kElements) {
        store(LoadRhs<false, 0>(rhs + i), wide + 2 * i);
        if (kShared == 2 && g + 1 < groups) store(LoadRhs<false, 1>(rhs + i), wide + 2 * (kGroup + i));
      }
    }
  }
  static HWY_INLINE hn::Vec<D32> Step(hn::Vec<D16> a, hn::Vec<D16> b, hn::Vec<D32> sum) {
    hn::Vec<D32> unused = sum;
    hn::Vec<D32> result = hn::ReorderWidenMulAccumulate(D32(), a, b, sum, unused);
    // Without this GCC reassociates the integer additions of several groups and spills.
    __asm__("" : "+v"(result.raw));
    return result;
  }
};

#if HWY_TARGET == HWY_SSE4
#define AQT_NAME(types) types "_sse4"
#elif HWY_TARGET == HWY_AVX2
#define AQT_NAME(types) types "_avx2"
#else
#define AQT_NAME(types) types "_avx512"
#endif
constexpr GemmKernel kS8Madd = internal::GemmOf<VectorTile<MaddOps<PanelFormat::Element::kS8>>>(AQT_NAME("s8"));
constexpr GemmKernel kS8xS4Madd = internal::GemmOf<VectorTile<MaddOps<PanelFormat::Element::kS4>>>(AQT_NAME("s8xs4"));
#undef AQT_NAME

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

GemmRows S8MaddGemms() {
  static constexpr const GemmKernel* kAll[] = {
#if HWY_TARGETS & HWY_AVX3
    &N_AVX3::kS8Madd,
    &N_AVX3::kS8xS4Madd,
#endif
#if HWY_TARGETS & HWY_AVX2
    &N_AVX2::kS8Madd,
    &N_AVX2::kS8xS4Madd,
#endif
#if HWY_TARGETS & HWY_SSE4
    &N_SSE4::kS8Madd,
    &N_SSE4::kS8xS4Madd,
#endif
    nullptr,  // an empty array is an error
  };
  return GemmRows(kAll).first(std::size(kAll) - 1);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
