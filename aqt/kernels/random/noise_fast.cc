#include "aqt/kernels/random/noise_fast.h"

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && !defined(AQT_SCALAR_ONLY)
#define AQT_HAS_AES_INSTRUCTIONS 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define AQT_HAS_AES_INSTRUCTIONS 0
#endif

namespace aqt::kernels::internal {
namespace {

void PortableBlocks(const FastBits& bits, uint64_t first, uint64_t stride, int64_t blocks, uint32_t* out) {
  for (int64_t b = 0; b < blocks; ++b, first += stride, out += 4) {
    const FastBits::Words words = bits.Block(first);
    std::memcpy(out, words.data(), sizeof words);
  }
}

#if AQT_HAS_AES_INSTRUCTIONS

// Blocks in flight: a round takes 3 to 5 cycles, and one or two can start per cycle.
constexpr int kInFlight = 8;

__attribute__((target("aes"))) void AesBlocks(const FastBits& bits, uint64_t first, uint64_t stride, int64_t blocks,
                                              uint32_t* out) {
  const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits.even_key().data()));
  const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits.odd_key().data()));
  const __m128i step = _mm_cvtsi64_si128(static_cast<int64_t>(stride));
  __m128i counter = _mm_cvtsi64_si128(static_cast<int64_t>(first));
  int64_t b = 0;
  for (; b + kInFlight <= blocks; b += kInFlight) {
    __m128i x[kInFlight];
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) {
      x[i] = _mm_xor_si128(counter, even);
      counter = _mm_add_epi64(counter, step);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) x[i] = _mm_aesenc_si128(x[i], odd);
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) x[i] = _mm_aesenc_si128(x[i], even);
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4 * (b + i)), _mm_aesenc_si128(x[i], odd));
    }
  }
  for (; b < blocks; ++b, counter = _mm_add_epi64(counter, step)) {
    __m128i x = _mm_aesenc_si128(_mm_xor_si128(counter, even), odd);
    x = _mm_aesenc_si128(_mm_aesenc_si128(x, even), odd);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4 * b), x);
  }
}

// Four blocks per vector.
__attribute__((target("avx512f,avx512dq,vaes,aes"))) void VaesBlocks(const FastBits& bits, uint64_t first,
                                                                     uint64_t stride, int64_t blocks, uint32_t* out) {
  constexpr int kVectors = 4;
  const __m512i even =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits.even_key().data())));
  const __m512i odd = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits.odd_key().data())));
  const auto at = [&](uint64_t block) { return static_cast<int64_t>(first + block * stride); };
  __m512i counter = _mm512_set_epi64(0, at(3), 0, at(2), 0, at(1), 0, at(0));
  const __m512i step = _mm512_maskz_set1_epi64(0x55, static_cast<int64_t>(4 * stride));
  int64_t b = 0;
  for (; b + 4 * kVectors <= blocks; b += 4 * kVectors) {
    __m512i x[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      x[i] = _mm512_xor_si512(counter, even);
      counter = _mm512_add_epi64(counter, step);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) x[i] = _mm512_aesenc_epi128(x[i], odd);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) x[i] = _mm512_aesenc_epi128(x[i], even);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) _mm512_storeu_si512(out + 4 * b + 16 * i, _mm512_aesenc_epi128(x[i], odd));
  }
  for (; b < blocks; b += 4) {
    __m512i x = _mm512_aesenc_epi128(_mm512_xor_si512(counter, even), odd);
    x = _mm512_aesenc_epi128(_mm512_aesenc_epi128(x, even), odd);
    const int64_t left = blocks - b;
    const __mmask16 mask = left >= 4 ? 0xffff : static_cast<__mmask16>((1u << (4 * left)) - 1);
    _mm512_mask_storeu_epi32(out + 4 * b, mask, x);
    counter = _mm512_add_epi64(counter, step);
  }
}

// Uses cpuid: clang 16 does not know "vaes" in __builtin_cpu_supports.
bool HasAes() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 25 & 1) != 0;
}
bool HasVaes() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 9 & 1) != 0;
}

#endif  // AQT_HAS_AES_INSTRUCTIONS

// Each version requires everything that the previous ones do.
std::vector<FastBlocks> Detect() {
  std::vector<FastBlocks> result = {PortableBlocks};
#if AQT_HAS_AES_INSTRUCTIONS
  if (!IsSupported(Target::kAvx2) || !HasAes()) return result;
  result.push_back(AesBlocks);
  if (IsSupported(Target::kAvx512) && HasVaes()) result.push_back(VaesBlocks);
#endif
  return result;
}

}  // namespace

absl::Span<const FastBlocks> AllFastBlocks() {
  static const auto* const all = new std::vector<FastBlocks>(Detect());
  return *all;
}

FastBlocks FastBlocksFor(Target target) {
  const absl::Span<const FastBlocks> all = AllFastBlocks();
  const size_t allowed = target.Has(Capability::kAvx512) ? 3 : target.Has(Capability::kAvx2) ? 2 : 1;
  return all[std::min(allowed, all.size()) - 1];
}

}  // namespace aqt::kernels::internal
