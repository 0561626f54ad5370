// 4-bit integers as halves of bytes, in the layout of pack_words.h, for AVX-512. Included once per Highway target,
// after hwy/highway.h.

#if defined(AQT_KERNELS_SIMD_NIBBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_NIBBLES_INL_H_
#undef AQT_KERNELS_SIMD_NIBBLES_INL_H_
#else
#define AQT_KERNELS_SIMD_NIBBLES_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

// The stored form of integers in bytes: below 16 if they have 4 bits.
HWY_INLINE __m512i StoredNibbles(__m512i integers) { return _mm512_add_epi8(integers, _mm512_set1_epi8(8)); }

// Combines each pair into a byte within a word, the first one in the lower half.
HWY_INLINE __m512i PairsOfNibbles(__m512i stored) {
  return _mm512_maddubs_epi16(stored, _mm512_set1_epi16(0x1001));  // alternately times 1 and 16
}

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_NIBBLES_INL_H_
