// Divides by one number and rounds the quotients to 8-bit integers, 64 at a time, for AVX-512. Included once per
// Highway target, after hwy/highway.h.

#if defined(AQT_KERNELS_QUANTIZE_QUOTIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_QUANTIZE_QUOTIENTS_INL_H_
#undef AQT_KERNELS_QUANTIZE_QUOTIENTS_INL_H_
#else
#define AQT_KERNELS_QUANTIZE_QUOTIENTS_INL_H_
#endif

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/kernels/simd/nibbles-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

// With a divisor in this range no relevant underflow occurs: quotients below 1/4 may be inexact, but still round to 0.
// Overflow gives infinity or NaN.
constexpr float kLeastDivisor = 0x1p-60f, kMostDivisor = 0x1p60f;

// Rounds to nearest, ties to even. NaN and numbers that do not fit become -2^31.
HWY_INLINE __m512i RoundedToIntegers(__m512 x) {
  return _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// 64 quotients x / n as saturated integers: first as words, then as bytes in the order of the inputs.
struct Words {
  __m512i first, second;
};
template <class T>
class Divisor;

// With y = 1 / n and q = x y, q + (x - q n) y is the correctly rounded quotient. QuotientsBy (strip_steps-inl.h)
// divides in the same way and has the explanation.
template <>
class Divisor<float> {
 public:
  explicit Divisor(float n) : n_(_mm512_set1_ps(n)), y_(_mm512_set1_ps(1 / n)) {}
  static bool Takes(float) { return true; }

  HWY_INLINE Words Into(const float* x) const {
    return {_mm512_packs_epi32(Integers(x), Integers(x + 16)), _mm512_packs_epi32(Integers(x + 32), Integers(x + 48))};
  }
  static HWY_INLINE __m512i Bytes(const Words& words) {
    // Each of the four lanes has four integers of each vector.
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                    _mm512_packs_epi16(words.first, words.second));
  }

 private:
  HWY_INLINE __m512i Integers(const float* x) const {
    const __m512 v = _mm512_loadu_ps(x), q = _mm512_mul_ps(v, y_);
    return RoundedToIntegers(_mm512_fmadd_ps(_mm512_fnmadd_ps(q, n_, v), y_, q));
  }

  __m512 n_, y_;
};

// Quotients of bf16, rounded to bf16. The midpoint m of two bf16 numbers has nine bits and none of its multiples has
// eight. So x is not m n, and differs from it by at least 2^-17 of its value. So x y, with a relative error of 2^-23,
// is on the same side of m as the quotient, and there are no ties.
template <>
class Divisor<BFloat16> {
 public:
  explicit Divisor(float n) : y_(_mm512_set1_ps(1 / n)) {}
  static bool Takes(float n) { return (__builtin_bit_cast(uint32_t, n) & 0xffff) == 0; }  // n is a bf16

  HWY_INLINE Words Into(const BFloat16* x) const { return {OfPairs(x), OfPairs(x + 32)}; }
  static HWY_INLINE __m512i Bytes(const Words& words) {
    // Each lane has four integers of even and four of odd numbers, twice.
    const __m512i turns = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                    _mm512_shuffle_epi8(_mm512_packs_epi16(words.first, words.second), turns));
  }

 private:
  HWY_INLINE __m512i OfPairs(const BFloat16* x) const {
    const __m512i pairs = _mm512_loadu_si512(x);
    return _mm512_packs_epi32(Integers(_mm512_slli_epi32(pairs, 16)), Integers(Upper(pairs)));
  }
  HWY_INLINE __m512i Integers(__m512i x) const {
    const __m512i q = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(x), y_));
    return RoundedToIntegers(_mm512_castsi512_ps(Upper(_mm512_add_epi32(q, _mm512_set1_epi32(0x8000)))));
  }
  static HWY_INLINE __m512i Upper(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff0000)); }

  __m512 y_;
};

constexpr int64_t kQuotients = 64;

// Stores kQuotients integers as bytes; the first goes to q[at].
struct StoreBytes {
  HWY_INLINE void operator()(__m512i bytes, int64_t at) const { _mm512_storeu_si512(q + at, bytes); }

  int8_t* q;
};
// Stores two integers per byte.
struct StoreNibbles {
  HWY_INLINE void operator()(__m512i bytes, int64_t at) const {
    const __m512i pairs = PairsOfNibbles(StoredNibbles(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + at / 2), _mm512_cvtepi16_epi8(pairs));
  }

  uint8_t* q;
};

// Quotients of numbers of type T, clamped to 8-bit bounds.
template <class T>
class Quotients {
 public:
  Quotients(float lo, float hi)
      : low_(_mm512_set1_epi8(static_cast<int8_t>(lo))), high_(_mm512_set1_epi8(static_cast<int8_t>(hi))) {}

  // Stores round(clamp(R(x[i] / n), lo, hi)) for a multiple of kQuotients numbers. kFetches: prefetches the numbers
  // `ahead` elements later.
  template <bool kFetches, class Store>
  HWY_INLINE void Divide(const T* HWY_RESTRICT x, int64_t count, float n, int64_t ahead, const Store& store) {
    const float magnitude = __builtin_fabsf(n);
    are_right_ &= magnitude >= kLeastDivisor && magnitude <= kMostDivisor && Divisor<T>::Takes(n);
    const Divisor<T> divisor(n);
    for (int64_t i = 0; i < count; i += kQuotients) {
      if constexpr (kFetches) {
        for (size_t line = 0; line < kQuotients * sizeof(T); line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(x + i + ahead) + line, _MM_HINT_T1);
        }
      }
      const Words words = divisor.Into(x + i);
      least_ = _mm512_min_epi16(least_, _mm512_min_epi16(words.first, words.second));
      store(_mm512_max_epi8(low_, _mm512_min_epi8(high_, divisor.Bytes(words))), i);
    }
  }
  // Whether all quotients so far are right; if not, some need divisions. A word that does not fit is also
  // the smallest one.
  bool AreRight() const { return are_right_ && _mm512_cmpeq_epi16_mask(least_, _mm512_set1_epi16(-0x8000)) == 0; }

 private:
  const __m512i low_, high_;
  __m512i least_ = _mm512_setzero_si512();
  bool are_right_ = true;
};

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_QUANTIZE_QUOTIENTS_INL_H_
