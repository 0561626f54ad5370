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

// Eight integers (four of 8 bits) form the bytes of one number, which is reduced to the first kPackedBytes of a Packed.
// The compiler vectorizes the loops of 2, 4 and 8 bits.
template <int kBits>
using Bytes = std::conditional_t<kBits == 8, uint32_t, uint64_t>;
template <int kBits>
using Packed = std::conditional_t<kBits == 2, uint16_t, std::conditional_t<32 % kBits == 0, uint32_t, uint64_t>>;
template <int kBits>
constexpr int kPackedBytes = kBits == 8 ? 4 : kBits;

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

// The lower kBits of each of eight bytes, side by side. The other bits of `bytes` are 0. Bits above the result may be
// set.
template <int kBits>
uint64_t Squeeze(uint64_t bytes) {
  if constexpr (kBits <= 4) {  // a field and its shifted neighbour do not overlap
    bytes = (bytes | bytes >> (8 - kBits)) & Fields<2 * kBits, 16>();
    bytes = (bytes | bytes >> (16 - 2 * kBits)) & Fields<4 * kBits, 32>();
    return bytes | bytes >> (32 - 4 * kBits);
  } else {
    constexpr uint64_t kOnes = Fields<kBits, 16>(), kPairs = Fields<2 * kBits, 32>(), kFours = Fields<4 * kBits, 64>();
    bytes = (bytes & kOnes) | (bytes >> 8 & kOnes) << kBits;
    bytes = (bytes & kPairs) | (bytes >> 16 & kPairs) << (2 * kBits);
    return (bytes & kFours) | (bytes >> 32 & kFours) << (4 * kBits);
  }
}

// The inverse of Squeeze.
template <int kBits>
uint64_t Spread(uint64_t bits) {
  if constexpr (kBits <= 4) {
    bits = (bits | bits << (32 - 4 * kBits)) & Fields<4 * kBits, 32>();
    bits = (bits | bits << (16 - 2 * kBits)) & Fields<2 * kBits, 16>();
    return (bits | bits << (8 - kBits)) & Fields<kBits, 8>();
  } else {
    constexpr uint64_t kOnes = Fields<kBits, 16>(), kPairs = Fields<2 * kBits, 32>(), kFours = Fields<4 * kBits, 64>();
    bits = (bits & kFours) | (bits >> (4 * kBits) & kFours) << 32;
    bits = (bits & kPairs) | (bits >> (2 * kBits) & kPairs) << 16;
    return (bits & kOnes) | (bits >> kBits & kOnes) << 8;
  }
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
  for (int64_t i = 0; i < num_words * 4 / kPackedBytes<kBits>; ++i) {
    Bytes<kBits> bytes;
    std::memcpy(&bytes, q + i * sizeof bytes, sizeof bytes);
    // Adds 2^(kBits - 1) to each byte without a carry into the next.
    bytes = ((bytes & Each<kBits>(0x7f)) + Each<kBits>(1 << (kBits - 1))) ^ (bytes & Each<kBits>(0x80));
    outside |= bytes;
    if constexpr (kBits < 8) bytes = Squeeze<kBits>(bytes);
    const auto packed = static_cast<Packed<kBits>>(bytes);
    std::memcpy(out + i * kPackedBytes<kBits>, &packed, kPackedBytes<kBits>);
  }
  return fits && (outside & ~Fields<kBits, 8>()) == 0;
}

template <int kBits>
void UnpackOf(const int32_t* words, int64_t num_words, int8_t* q) {
  const char* in = reinterpret_cast<const char*>(words);
  for (int64_t i = 0; i < num_words * 4 / kPackedBytes<kBits>; ++i) {
    Packed<kBits> packed = 0;
    std::memcpy(&packed, in + i * kPackedBytes<kBits>, kPackedBytes<kBits>);
    Bytes<kBits> bytes = packed;
    if constexpr (kBits < 8) bytes = Spread<kBits>(bytes);
    // Subtracts 2^(kBits - 1) from each byte, modulo 256.
    bytes = (bytes + Each<kBits>(0x80 - (1 << (kBits - 1)))) ^ Each<kBits>(0x80);
    std::memcpy(q + i * sizeof bytes, &bytes, sizeof bytes);
  }
}

// Calls f.template operator()<kBits>().
template <class F>
auto VisitBits(int num_bits, F f) {
  switch (num_bits) {
    case 2: return f.template operator()<2>();
    case 3: return f.template operator()<3>();
    case 4: return f.template operator()<4>();
    case 5: return f.template operator()<5>();
    case 6: return f.template operator()<6>();
    case 7: return f.template operator()<7>();
    default: return f.template operator()<8>();
  }
}

bool PackAny(const int8_t* q, int64_t num_words, int num_bits, int32_t* words) {
  return VisitBits(num_bits, [&]<int kBits>() { return PackOf<kBits>(q, num_words, words); });
}

void UnpackAny(const int32_t* words, int64_t num_words, int num_bits, int8_t* q) {
  VisitBits(num_bits, [&]<int kBits>() { UnpackOf<kBits>(words, num_words, q); });
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
