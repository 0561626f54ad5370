// f32, bf16 and f16 arrays as vectors of f32: loads, rounding, stores. Included once per Highway target, after
// hwy/highway.h. All targets give the same bits.

#if defined(AQT_KERNELS_SIMD_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_CONVERT_INL_H_
#undef AQT_KERNELS_SIMD_CONVERT_INL_H_
#else
#define AQT_KERNELS_SIMD_CONVERT_INL_H_
#endif

#include <cstdint>

#include "aqt/core/dtype.h"
#include "hwy/highway.h"

// The f16 conversion instructions round correctly and keep subnormals regardless of MXCSR. Highway's portable versions
// do not handle infinities and NaN, so the other targets use the scalar conversions of core.
#undef AQT_HAS_F16_INSTRUCTIONS
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define AQT_HAS_F16_INSTRUCTIONS 1
#else
#define AQT_HAS_F16_INSTRUCTIONS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loads Lanes(d) elements exactly, from an unaligned address. D is a tag of f32.
template <class D>
hn::Vec<D> LoadFloat(D d, const float* x) {
  return hn::LoadU(d, x);
}
template <class D>
hn::Vec<D> LoadFloat(D d, const BFloat16* x) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(x));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D>
hn::Vec<D> LoadFloat(D d, const Float16* x) {
#if AQT_HAS_F16_INSTRUCTIONS
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(x)));
#else
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = ToFloat(x[i]);
  return hn::Load(d, lanes);
#endif
}

// v rounded to T: nearest, ties to even, gradual underflow. A NaN stays a NaN, possibly with other bits.
template <class T>
struct RoundLanes;
template <>
struct RoundLanes<float> {
  template <class D, class V>
  static V Apply(D, V v) {
    return v;
  }
};
template <>
struct RoundLanes<BFloat16> {
  template <class D, class V>
  static HWY_INLINE V Apply([[maybe_unused]] D d, V v) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (sizeof(V) == 64) {
      // Five instructions instead of seven.
      const __m512i bits = _mm512_castps_si512(v.raw);
      const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
      const __mmask16 is_number = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_EQ_OQ);
      const __m512i half = _mm512_mask_blend_epi32(odd, _mm512_set1_epi32(0x7fff), _mm512_set1_epi32(0x8000));
      const __m512i up = _mm512_add_epi32(bits, half), upper = _mm512_set1_epi32(0xffff0000);
      return V{_mm512_castsi512_ps(_mm512_mask_and_epi32(bits, is_number, up, upper))};
    }
#endif
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
    const auto rounded = hn::BitCast(d, hn::And(up, hn::Set(du, 0xffff0000u)));
    return hn::IfThenElse(hn::Eq(v, v), rounded, v);
  }
};
template <>
struct RoundLanes<Float16> {
  template <class D, class V>
  static V Apply(D d, V v) {
#if AQT_HAS_F16_INSTRUCTIONS
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::DemoteTo(d16, v));
#else
    HWY_ALIGN float lanes[hn::MaxLanes(D())];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = ToFloat(RoundToFloat16(lanes[i]));
    return hn::Load(d, lanes);
#endif
  }
};

// Stores Lanes(d) values that T can represent. A NaN becomes the positive quiet NaN of T.
template <class D, class V>
void StoreFloat(D d, V v, float* x) {
  const hn::RebindToUnsigned<D> du;
  const V nan = hn::BitCast(d, hn::Set(du, 0x7fc00000u));
  hn::StoreU(hn::IfThenElse(hn::Eq(v, v), v, nan), d, x);
}
template <class D, class V>
void StoreFloat(D d, V v, BFloat16* x) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const V nan = hn::BitCast(d, hn::Set(du, 0x7fc00000u));
  const auto bits = hn::ShiftRight<16>(hn::BitCast(du, hn::IfThenElse(hn::Eq(v, v), v, nan)));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bits)), d16, reinterpret_cast<uint16_t*>(x));
}
template <class D, class V>
void StoreFloat(D d, V v, Float16* x) {
#if AQT_HAS_F16_INSTRUCTIONS
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<hwy::float16_t, D> d16;
  const V nan = hn::BitCast(d, hn::Set(du, 0x7fc00000u));
  hn::StoreU(hn::DemoteTo(d16, hn::IfThenElse(hn::Eq(v, v), v, nan)), d16, reinterpret_cast<hwy::float16_t*>(x));
#else
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) x[i] = lanes[i] == lanes[i] ? RoundToFloat16(lanes[i]) : Float16{0x7e00};
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_CONVERT_INL_H_
