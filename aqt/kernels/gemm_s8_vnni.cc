// The s8 kernel of AVX-512 VNNI.
#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_s8_internal.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/gemm_s8_vnni.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/gemm_tile-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// vpdpbusd adds four u8 x s8 products (at most 4 * 255 * 128 in magnitude) to an s32 modulo 2^32, without saturation.
// The lhs is stored as a + 128; the rhs panel's header, -128 * column sum, starts the accumulators and so removes the
// offset.
struct VnniOps {
  static constexpr Target kTarget = Target::kAvx512Vnni;
  using Acc = int32_t;
  static constexpr PanelFormat kLhs = internal::kVnniLhs, kRhs = internal::kVnniRhs;
  static constexpr int64_t kWideRhsElementBytes = 0;
  static constexpr int64_t kBlockGroups = 192;  // 768 k: 24 KiB of rhs and 6 KiB of lhs

  using V = hn::Vec<hn::ScalableTag<int32_t>>;

  static HWY_INLINE V Broadcast(const char* p) { return hn::Set(hn::ScalableTag<int32_t>(), LoadGroup(p)); }
  template <bool kWide>
  static HWY_INLINE V LoadRhs(const char* p) {
    return hn::LoadU(hn::ScalableTag<int32_t>(), reinterpret_cast<const int32_t*>(p));
  }
  // Assembly, because Highway 1.0.3 has VNNI only in AVX3_DL, which requires more than VNNI and whose attributes name
  // another feature, and because GCC 12 copies accumulators around the intrinsic until two of them are spilled.
  static HWY_INLINE V Step(V a, V b, V sum) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
};

const GemmKernel* VnniKernel() {
  using Tile = VectorTile<VnniOps>;
  static constexpr GemmKernel kKernel = {"avx512_vnni", Tile::kTarget, Tile::kLhs, Tile::kRhs,
                                         &internal::GemmBlock<Tile>};
  return &kKernel;
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

const GemmKernel* GemmS8Vnni() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::VnniKernel();
#else
  return nullptr;
#endif
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
