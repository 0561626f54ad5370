#include "aqt/kernels/quantize/pack_words.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize/pack_words.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/nibbles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

static_assert(std::endian::native == std::endian::little);

// Eight integers (four of 8 bits) form the bytes of one number, which is reduced to a Packed. The compiler vectorizes
// the loops.
template <int kBits>
using Bytes = std::conditional_t<kBits == 8, uint32_t, uint64_t>;
template <int kBits>
using Packed = std::conditional_t<kBits == 2, uint16_t, uint32_t>;
template <int kBits>
constexpr int64_t kPackedPerWord = sizeof(uint32_t) / sizeof(Packed<kBits>);

// Ones in the lower kBits of each field of kField bits.
template <int kBits, int kField>
constexpr uint64_t Fields() {
  uint64_t fields = 0;
  for (int at = 0; at < 64; at += kField) fields |= ((uint64_t{1} << kBits) - 1) << at;
  return fields;
}

// x in each byte.
template <int kBits>
constexpr Bytes<kBits> Each(int x) {
  return static_cast<Bytes<kBits>>(0x0101010101010101u * static_cast<uint64_t>(x));
}

// PackOf for whole vectors of 4-bit words. Returns the number of words; clears `fits` if a value is out of range.
int64_t PackNibbles([[maybe_unused]] const int8_t* q, [[maybe_unused]] int64_t num_words,
                    [[maybe_unused]] int32_t* words, [[maybe_unused]] bool& fits) {
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX3
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  __m512i outside = _mm512_setzero_si512();
  const auto pairs = [&](const int8_t* from) HWY_ATTR {
    const __m512i stored = StoredNibbles(_mm512_loadu_si512(from));
    outside = _mm512_or_si512(outside, stored);
    return PairsOfNibbles(stored);
  };
  for (; i + 16 <= num_words; i += 16) {
    const __m512i low = pairs(q + 8 * i), high = pairs(q + 8 * i + 64);
    _mm512_storeu_si512(words + i, _mm512_permutexvar_epi64(order, _mm512_packus_epi16(low, high)));
  }
  if (_mm512_test_epi8_mask(outside, _mm512_set1_epi8(static_cast<int8_t>(0xf0))) != 0) fits = false;
#endif
  return i;
}

template <int kBits>
bool PackOf(const int8_t* q, int64_t num_words, int32_t* words) {
  bool fits = true;
  if constexpr (kBits == 4) {
    const int64_t packed = PackNibbles(q, num_words, words, fits);
    q += packed * 8;
    words += packed;
    num_words -= packed;
  }
  char* out = reinterpret_cast<char*>(words);
  Bytes<kBits> outside = 0;
  for (int64_t i = 0; i < num_words * kPackedPerWord<kBits>; ++i) {
    Bytes<kBits> bytes;
    std::memcpy(&bytes, q + i * sizeof bytes, sizeof bytes);
    // Adds 2^(kBits - 1) to each byte without a carry into the next.
    bytes = ((bytes & Each<kBits>(0x7f)) + Each<kBits>(1 << (kBits - 1))) ^ (bytes & Each<kBits>(0x80));
    outside |= bytes;
    if constexpr (kBits < 8) {
      bytes = (bytes | bytes >> (8 - kBits)) & Fields<2 * kBits, 16>();
      bytes = (bytes | bytes >> (16 - 2 * kBits)) & Fields<4 * kBits, 32>();
      bytes |= bytes >> (32 - 4 * kBits);
    }
    const auto packed = static_cast<Packed<kBits>>(bytes);
    std::memcpy(out + i * sizeof packed, &packed, sizeof packed);
  }
  return fits && (outside & ~Fields<kBits, 8>()) == 0;
}

template <int kBits>
void UnpackOf(const int32_t* words, int64_t num_words, int8_t* q) {
  const char* in = reinterpret_cast<const char*>(words);
  for (int64_t i = 0; i < num_words * kPackedPerWord<kBits>; ++i) {
    Packed<kBits> packed;
    std::memcpy(&packed, in + i * sizeof packed, sizeof packed);
    Bytes<kBits> bytes = packed;
    if constexpr (kBits < 8) {
      bytes = (bytes | bytes << (32 - 4 * kBits)) & Fields<4 * kBits, 32>();
      bytes = (bytes | bytes << (16 - 2 * kBits)) & Fields<2 * kBits, 16>();
      bytes = (bytes | bytes << (8 - kBits)) & Fields<kBits, 8>();
    }
    // Subtracts 2^(kBits - 1) from each byte, modulo 256.
    bytes = (bytes + Each<kBits>(0x80 - (1 << (kBits - 1)))) ^ Each<kBits>(0x80);
    std::memcpy(q + i * sizeof bytes, &bytes, sizeof bytes);
  }
}

// Of widths that do not divide a word, eight integers form kBits bytes.
template <int kBits>
bool PackBytesOf(const int8_t* q, int64_t num_words, int32_t* words) {
  char* out = reinterpret_cast<char*>(words);
  uint64_t outside = 0;
  for (int64_t i = 0; i < num_words * 4 / kBits; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, q + 8 * i, sizeof bytes);
    bytes = ((bytes & Each<kBits>(0x7f)) + Each<kBits>(1 << (kBits - 1))) ^ (bytes & Each<kBits>(0x80));
    outside |= bytes;
    constexpr uint64_t kOnes = Fields<kBits, 16>(), kPairs = Fields<2 * kBits, 32>(), kFours = Fields<4 * kBits, 64>();
    bytes = (bytes & kOnes) | (bytes >> 8 & kOnes) << kBits;
    bytes = (bytes & kPairs) | (bytes >> 16 & kPairs) << (2 * kBits);
    bytes = (bytes & kFours) | (bytes >> 32 & kFours) << (4 * kBits);
    std::memcpy(out + kBits * i, &bytes, kBits);
  }
  return (outside & ~Fields<kBits, 8>()) == 0;
}

template <int kBits>
void UnpackBytesOf(const int32_t* words, int64_t num_words, int8_t* q) {
  const char* in = reinterpret_cast<const char*>(words);
  for (int64_t i = 0; i < num_words * 4 / kBits; ++i) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, in + kBits * i, kBits);
    constexpr uint64_t kOnes = Fields<kBits, 16>(), kPairs = Fields<2 * kBits, 32>(), kFours = Fields<4 * kBits, 64>();
    bytes = (bytes & kFours) | (bytes >> (4 * kBits) & kFours) << 32;
    bytes = (bytes & kPairs) | (bytes >> (2 * kBits) & kPairs) << 16;
    bytes = (bytes & kOnes) | (bytes >> kBits & kOnes) << 8;
    bytes = (bytes + Each<kBits>(0x80 - (1 << (kBits - 1)))) ^ Each<kBits>(0x80);
    std::memcpy(q + 8 * i, &bytes, sizeof bytes);
  }
}

bool PackAny(const int8_t* q, int64_t num_words, int num_bits, int32_t* words) {
  switch (num_bits) {
    case 2: return PackOf<2>(q, num_words, words);
    case 3: return PackBytesOf<3>(q, num_words, words);
    case 4: return PackOf<4>(q, num_words, words);
    case 5: return PackBytesOf<5>(q, num_words, words);
    case 6: return PackBytesOf<6>(q, num_words, words);
    case 7: return PackBytesOf<7>(q, num_words, words);
    default: return PackOf<8>(q, num_words, words);
  }
}

void UnpackAny(const int32_t* words, int64_t num_words, int num_bits, int8_t* q) {
  switch (num_bits) {
    case 2: return UnpackOf<2>(words, num_words, q);
    case 3: return UnpackBytesOf<3>(words, num_words, q);
    case 4: return UnpackOf<4>(words, num_words, q);
    case 5: return UnpackBytesOf<5>(words, num_words, q);
    case 6: return UnpackBytesOf<6>(words, num_words, q);
    case 7: return UnpackBytesOf<7>(words, num_words, q);
    default: return UnpackOf<8>(words, num_words, q);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

bool PackWords(const int8_t* q, int64_t num_words, int num_bits, int32_t* words, Target target) {
  AQT_DCHECK(num_words == WholeWords(num_words * 32 / num_bits, num_bits));
  return AQT_HWY_DISPATCH(target, PackAny)(q, num_words, num_bits, words);
}

void UnpackWords(const int32_t* words, int64_t num_words, int num_bits, int8_t* q, Target target) {
  AQT_DCHECK(num_words == WholeWords(num_words * 32 / num_bits, num_bits));
  AQT_HWY_DISPATCH(target, UnpackAny)(words, num_words, num_bits, q);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
