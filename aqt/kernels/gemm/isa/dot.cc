// The kernels based on dot product instructions: s8 with AVX-VNNI and AVX-512 VNNI, bf16 with AVX-512 BF16.
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/rows.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/gemm/isa/dot.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/gemm/tile-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// Common to the operands of all dot products: groups of four bytes.
template <class T>
struct FourByteGroups {
  using Acc = T;
  using V = hn::Vec<hn::ScalableTag<T>>;

  static HWY_INLINE V Broadcast(const char* p) {
    const hn::ScalableTag<T> d;
    return hn::BitCast(d, hn::Set(hn::ScalableTag<int32_t>(), LoadGroup(p)));
  }
  static HWY_INLINE V Load(const char* p) { return hn::LoadU(hn::ScalableTag<T>(), reinterpret_cast<const T*>(p)); }
};

// vpdpbusd adds four u8 x s8 products (at most 4 * 255 * 128 in magnitude) to an s32 modulo 2^32, without saturation.
// The lhs is stored as a + 128. The header of the rhs panel, -128 * column sum, initializes the accumulators, which
// removes the offset.
template <PanelFormat::Element kRhsElement>
struct VnniOps : FourByteGroups<int32_t> {
  static constexpr bool kIs512 = HWY_TARGET == HWY_AVX3;
  static constexpr Target kTarget = kIs512 ? Target::kAvx512Vnni : Target::kAvxVnni;
  static constexpr int32_t kProductsPerCycle = 2 * HWY_MAX_BYTES;
  static constexpr PanelFormat kLhs = kIs512 ? internal::format::kVnniLhs : internal::format::kAvxVnniLhs;
  static constexpr PanelFormat kRhs =
      internal::format::With(kRhsElement, kIs512 ? internal::format::kVnniRhs : internal::format::kAvxVnniRhs);
  static constexpr bool kIsS4 = kRhsElement == PanelFormat::Element::kS4;
  static constexpr int64_t kWideRhsElementBytes = kIsS4 ? 1 : 0;
  static constexpr int64_t kBlockGroups = kIs512 ? 192 : 256;  // 24 or 16 KiB of rhs, 6 KiB of lhs
  static constexpr int64_t kOneBlockGroups = kIsS4 ? kBlockGroups : 256;

  // A 4-bit value in the high half of a byte is 16 times the value. There it needs no sign extension.
  static constexpr int kRhsShift = kIsS4 ? 4 : 0;

  template <bool kWide, int kPart>
  static HWY_INLINE V LoadRhs(const char* p) {
    if constexpr (kWide || !kIsS4) return Load(p);
    else return Decode<kPart>(Load(p));
  }
  template <int kPart>
  static HWY_INLINE V Decode(V both) {
    if constexpr (kPart == 0) both = hn::ShiftLeft<kRhsShift>(both);
    return hn::And(both, hn::Set(hn::ScalableTag<int32_t>(), static_cast<int32_t>(0xf0f0f0f0)));
  }
  // Opaque to the compiler, which would otherwise load it again for each half.
  static HWY_INLINE V LoadShared(const char* p) requires(kIsS4) {
    V v = Load(p);
#if HWY_TARGET == HWY_AVX3
    __asm__("" : "+v"(v.raw));
#else
    __asm__("" : "+x"(v.raw));
#endif
    return v;
  }
  static void Widen(const char* rhs, int64_t groups, char* wide) {
    constexpr int64_t kBytes = HWY_MAX_BYTES;  // half a group
    const hn::Repartition<int8_t, hn::ScalableTag<int32_t>> d8;
    const auto store = [&](auto v, char* to) HWY_ATTR { hn::StoreU(v, d8, reinterpret_cast<int8_t*>(to)); };
    for (int64_t g = 0; g < groups; g += 2, rhs += 2 * kBytes, wide += 4 * kBytes) {
      for (int64_t i = 0; i < 2; ++i) {
        const auto bytes = hn::BitCast(d8, Load(rhs + i * kBytes));
        store(DecodeS4<0>(d8, bytes), wide + i * kBytes);
        if (g + 1 < groups) store(DecodeS4<1>(d8, bytes), wide + (2 + i) * kBytes);
      }
    }
  }

  // Assembly for two reasons. Highway 1.0.3 has VNNI only in AVX3_DL, which requires more than VNNI and whose
  // attributes name another feature. GCC 12 copies accumulators around the intrinsic until two of them are spilled.
  static HWY_INLINE V Step(V a, V b, V sum) {
#if HWY_TARGET == HWY_AVX3
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#else
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
#endif
    return sum;
  }
  static HWY_INLINE V StepLoading(V a, const char* p, V sum) requires(!kIsS4) {
    const auto& b = *reinterpret_cast<const decltype(a.raw)*>(p);
#if HWY_TARGET == HWY_AVX3
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "m"(b));
#else
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "m"(b));
#endif
    return sum;
  }
};
#if HWY_TARGET == HWY_AVX3
#define AQT_NAME(types) types "_avx512_vnni"
#else
#define AQT_NAME(types) types "_avx_vnni"
#endif
constexpr GemmKernel kS8Vnni = internal::GemmOf<VectorTile<VnniOps<PanelFormat::Element::kS8>>>(AQT_NAME("s8"));
constexpr GemmKernel kS8xS4Vnni = internal::GemmOf<VectorTile<VnniOps<PanelFormat::Element::kS4>>>(AQT_NAME("s8xs4"));
#undef AQT_NAME

#if HWY_TARGET == HWY_AVX3
// vdpbf16ps adds two bf16 products to an f32, the odd one first, with one rounding each.
struct Bf16Ops : FourByteGroups<float> {
  static constexpr Target kTarget = Target::kAvx512 | Target{Capability::kAvx512Bf16};
  static constexpr int32_t kProductsPerCycle = HWY_MAX_BYTES;
  static constexpr bool kSumsAreNormal = true;
  static constexpr PanelFormat kLhs = internal::format::kDotBf16Lhs, kRhs = internal::format::kDotBf16Rhs;
  static constexpr int64_t kBlockGroups = 192;  // rhs 24 KiB, lhs 9 KiB
  static constexpr int64_t kOneBlockGroups = 256;
  static constexpr int64_t kWideRhsElementBytes = 0;

  template <bool kWide, int kPart>
  static HWY_INLINE V LoadRhs(const char* p) {
    return Load(p);
  }

  static HWY_INLINE V Step(V a, V b, V sum) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
  static HWY_INLINE V StepLoading(V a, const char* p, V sum) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "m"(*reinterpret_cast<const decltype(a.raw)*>(p)));
    return sum;
  }
  static HWY_INLINE void StoreRounded(V v, BFloat16* to) {
    __m256i rounded;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v.raw));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
    rounded = _mm256_mask_mov_epi16(rounded, is_nan, _mm256_set1_epi16(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  }
};
constexpr GemmKernel kBf16Dot = internal::GemmOf<VectorTile<Bf16Ops>>("bf16_avx512_bf16");
#endif

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

GemmRows DotGemms() {
#if HWY_TARGETS & HWY_AVX3
  static constexpr const GemmKernel* kAll[] = {&N_AVX3::kS8Vnni, &N_AVX3::kS8xS4Vnni, &N_AVX3::kBf16Dot,
                                               &N_AVX2::kS8Vnni, &N_AVX2::kS8xS4Vnni};
  return kAll;
#elif HWY_TARGETS & HWY_AVX2
  static constexpr const GemmKernel* kAll[] = {&N_AVX2::kS8Vnni, &N_AVX2::kS8xS4Vnni};
  return kAll;
#else
  return {};
#endif
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
