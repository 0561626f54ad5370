// Conversion of f32 vectors to 8-bit floats. Included once per Highway target, after hwy/highway.h. All targets give
// the same bits.

#if defined(AQT_KERNELS_SIMD_FLOAT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_FLOAT8_INL_H_
#undef AQT_KERNELS_SIMD_FLOAT8_INL_H_
#else
#define AQT_KERNELS_SIMD_FLOAT8_INL_H_
#endif

#include <cstdint>

#include "aqt/core/dtype.h"
#include "hwy/highway.h"

#ifndef AQT_KERNELS_FLOAT8_INL_ONCE_
#define AQT_KERNELS_FLOAT8_INL_ONCE_
namespace aqt::kernels::internal {

template <class T>
struct Float8Format;
template <>
struct Float8Format<Float8E4M3FN> {
  static constexpr int kMantissaBits = 3, kMinExponent = -6, kNan = 0x7f;
  static constexpr float kMax = 448;
};
template <>
struct Float8Format<Float8E5M2> {
  static constexpr int kMantissaBits = 2, kMinExponent = -14, kNan = 0x7e;
  static constexpr float kMax = 57344;
};

}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_FLOAT8_INL_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The codes of y, rounded to nearest, ties to even. A value beyond the largest finite value saturates with its sign; a
// NaN becomes the positive quiet NaN.
template <class Fp8, class D, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Float8Codes(D d, V y) {
  using Format = internal::Float8Format<Fp8>;
  constexpr int kShift = 23 - Format::kMantissaBits, kFirst = 127 + Format::kMinExponent;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, y);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
  const auto clamped = hn::Min(magnitude, hn::BitCast(di, hn::Set(d, Format::kMax)));
  // 2^e with the exponent e of the value, or of the smallest normal number. In a sum with 2^(e + kShift) the last bit
  // is worth 2^(e - kMantissaBits), which is the unit of the code, for normal and subnormal codes alike.
  const auto power = hn::Max(hn::And(clamped, hn::Set(di, 0x7f800000)), hn::Set(di, kFirst << 23));
  // On top of these units, the code contains (e + 127 - kFirst) << kMantissaBits. The exponent of the sum is e + 127 +
  // kShift. The summand subtracts the excess modulo 256; it is even, so ties stay ties.
  constexpr int kLess = -((kShift + kFirst) << Format::kMantissaBits) & 0xff;
  const auto magic = hn::Add(power, hn::Set(di, (kShift << 23) + kLess));
  const auto sum = hn::BitCast(du, hn::Add(hn::BitCast(d, clamped), hn::BitCast(d, magic)));
  const auto unsigned_code = hn::Add(sum, hn::ShiftRight<kShift>(sum));  // in the lowest 7 bits
  const auto sign = hn::AndNot(hn::Set(du, 0x7f), hn::ShiftRight<24>(hn::BitCast(du, y)));
  const auto with_sign = hn::Or(hn::And(unsigned_code, hn::Set(du, 0x7f)), sign);
  return hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, Format::kNan), with_sign);
}

template <class Fp8, class D, class V>
HWY_INLINE void StoreFloat8(D d, V y, uint8_t* q) {
  const hn::Rebind<uint8_t, D> d8;
  hn::StoreU(hn::U8FromU32(Float8Codes<Fp8>(d, y)), d8, q);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Stores four consecutive vectors.
template <class Fp8, class D, class V>
HWY_INLINE void StoreFloat8(D d, V y0, V y1, V y2, V y3, uint8_t* q) {
  const auto c0 = Float8Codes<Fp8>(d, y0).raw, c1 = Float8Codes<Fp8>(d, y1).raw;
  const auto c2 = Float8Codes<Fp8>(d, y2).raw, c3 = Float8Codes<Fp8>(d, y3).raw;
  // Each block of 16 bytes has four bytes of each vector; the permutation groups them by vector.
#if HWY_TARGET == HWY_AVX3
  const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(c0, c1), _mm512_packs_epi32(c2, c3));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(q, _mm512_permutexvar_epi32(order, bytes));
#else
  const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(c0, c1), _mm256_packs_epi32(c2, c3));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
#endif
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_FLOAT8_INL_H_
