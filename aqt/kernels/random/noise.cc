#include "aqt/kernels/random/noise.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/random/noise_fast.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/random/noise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#ifndef AQT_KERNELS_NOISE_ONCE_
#define AQT_KERNELS_NOISE_ONCE_
namespace aqt::kernels::internal {

// Counters of Threefry-2x32: (first[0] + j * step[0], first[1] + j * step[1]), modulo 2^32.
struct Counters {
  uint32_t first[2], step[2];
};

// What is kept of the two words of a block.
enum class Select : uint8_t { kXor, kFirst, kSecond };

// The values added to the two words of a block after every four rounds; those of round 0 are added before the first.
struct KeySchedule {
  explicit KeySchedule(Key key) {
    const uint32_t words[3] = {key.hi, key.lo, key.hi ^ key.lo ^ 0x1BD11BDAu};
    for (uint32_t i = 0; i < 6; ++i) {
      add[i][0] = words[i % 3];
      add[i][1] = words[(i + 1) % 3] + i;
    }
  }
  uint32_t add[6][2];
};

}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_NOISE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using internal::Counters;
using internal::KeySchedule;
using internal::Select;

#if HWY_TARGET == HWY_SCALAR

// The number of words that FillWords writes at a time; `out` has room for a multiple of it.
constexpr int64_t kSmallBlock = 32;

// The compiler vectorizes the loops over i for its baseline.
template <Select select>
void FillWords(Key key, const Counters& counters, int64_t n, uint32_t* out) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const KeySchedule schedule(key);
  for (int64_t j = 0; j < n; j += kSmallBlock) {
    uint32_t x0[kSmallBlock], x1[kSmallBlock];
    for (uint32_t i = 0; i < kSmallBlock; ++i) {
      x0[i] = counters.first[0] + schedule.add[0][0] + (static_cast<uint32_t>(j) + i) * counters.step[0];
      x1[i] = counters.first[1] + schedule.add[0][1] + (static_cast<uint32_t>(j) + i) * counters.step[1];
    }
    for (int round = 0; round < 5; ++round) {
      for (const int r : kRotations[round % 2]) {
        for (int i = 0; i < kSmallBlock; ++i) {
          x0[i] += x1[i];
          x1[i] = ((x1[i] << r) | (x1[i] >> (32 - r))) ^ x0[i];
        }
      }
      for (int i = 0; i < kSmallBlock; ++i) {
        x0[i] += schedule.add[round + 1][0];
        x1[i] += schedule.add[round + 1][1];
      }
    }
    for (int i = 0; i < kSmallBlock; ++i) {
      out[j + i] = select == Select::kXor ? x0[i] ^ x1[i] : select == Select::kFirst ? x0[i] : x1[i];
    }
  }
}

#else  // HWY_TARGET

using WordTag = hn::ScalableTag<uint32_t>;
using Word = hn::Vec<WordTag>;
constexpr int64_t kWordLanes = hn::MaxLanes(WordTag());

// The number of words that FillWords writes at a time; `out` has room for a multiple of it.
constexpr int64_t kSmallBlock = 2 * kWordLanes;

template <int kBits>
Word RotateLeft(Word x) {
#if HWY_TARGET == HWY_AVX2
  // A rotation by whole bytes is one shuffle.
  if constexpr (kBits % 8 == 0) {
    constexpr int b = kBits / 8;
    const hn::Repartition<uint8_t, WordTag> d8;
    alignas(16) static constexpr uint8_t kFrom[16] = {
        (0 - b) & 3,        (1 - b) & 3,        (2 - b) & 3,        (3 - b) & 3,
        4 + ((0 - b) & 3),  4 + ((1 - b) & 3),  4 + ((2 - b) & 3),  4 + ((3 - b) & 3),
        8 + ((0 - b) & 3),  8 + ((1 - b) & 3),  8 + ((2 - b) & 3),  8 + ((3 - b) & 3),
        12 + ((0 - b) & 3), 12 + ((1 - b) & 3), 12 + ((2 - b) & 3), 12 + ((3 - b) & 3)};
    return hn::BitCast(WordTag(), hn::TableLookupBytes(hn::BitCast(d8, x), hn::LoadDup128(d8, kFrom)));
  }
#endif
  return hn::RotateRight<32 - kBits>(x);
}

template <int kBits, int kVectors>
HWY_INLINE void Round(Word* x0, Word* x1) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) x0[v] = hn::Add(x0[v], x1[v]);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) x1[v] = RotateLeft<kBits>(x1[v]);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) x1[v] = hn::Xor(x1[v], x0[v]);
}

template <int kVectors>
HWY_INLINE void Inject(const uint32_t* add, Word* x0, Word* x1) {
  const WordTag d;
  const Word first = hn::Set(d, add[0]), second = hn::Set(d, add[1]);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) x0[v] = hn::Add(x0[v], first);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) x1[v] = hn::Add(x1[v], second);
}

// Writes the next kVectors vectors.
template <Select select, int kVectors>
HWY_INLINE void Block(const KeySchedule& schedule, const Word* step, Word* next, uint32_t* out) {
  const WordTag d;
  Word x0[kVectors], x1[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    x0[v] = next[0];
    x1[v] = next[1];
    next[0] = hn::Add(next[0], step[0]);
    next[1] = hn::Add(next[1], step[1]);
  }
#pragma GCC unroll 8
  for (int i = 1; i <= 5; ++i) {
    if (i % 2 == 1) {
      Round<13, kVectors>(x0, x1);
      Round<15, kVectors>(x0, x1);
      Round<26, kVectors>(x0, x1);
      Round<6, kVectors>(x0, x1);
    } else {
      Round<17, kVectors>(x0, x1);
      Round<29, kVectors>(x0, x1);
      Round<16, kVectors>(x0, x1);
      Round<24, kVectors>(x0, x1);
    }
    Inject<kVectors>(schedule.add[i], x0, x1);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const Word word = select == Select::kXor ? hn::Xor(x0[v], x1[v]) : select == Select::kFirst ? x0[v] : x1[v];
    hn::StoreU(word, d, out + v * kWordLanes);
  }
}

template <Select select>
void FillWords(Key key, const Counters& counters, int64_t n, uint32_t* out) {
  const WordTag d;
  const KeySchedule schedule(key);
  Word next[2], step[2];
  for (int i = 0; i < 2; ++i) {
    const Word lane = hn::Mul(hn::Iota(d, 0), hn::Set(d, counters.step[i]));
    next[i] = hn::Add(hn::Set(d, counters.first[i] + schedule.add[0][i]), lane);
    step[i] = hn::Set(d, counters.step[i] * static_cast<uint32_t>(kWordLanes));
  }
  // Six pairs hide the latency of the rounds and fit the 16 registers of AVX2.
  constexpr int kVectors = 6, kFew = kSmallBlock / kWordLanes;
  int64_t j = 0;
  for (; j + kVectors * kWordLanes <= n; j += kVectors * kWordLanes)
    Block<select, kVectors>(schedule, step, next, out + j);
  for (; j < n; j += kSmallBlock) Block<select, kFew>(schedule, step, next, out + j);
}

#endif  // HWY_TARGET

// out[j] = the selected words, for j < n.
void FillSelected(Key key, const Counters& counters, Select select, int64_t n, uint32_t* out) {
  const auto fill = [&](const Counters& from, int64_t count, uint32_t* to) {
    switch (select) {
      case Select::kXor: return FillWords<Select::kXor>(key, from, count, to);
      case Select::kFirst: return FillWords<Select::kFirst>(key, from, count, to);
      case Select::kSecond: return FillWords<Select::kSecond>(key, from, count, to);
    }
  };
  const int64_t whole = n / kSmallBlock * kSmallBlock;
  fill(counters, whole, out);
  if (whole == n) return;
  Counters rest = counters;
  for (int i = 0; i < 2; ++i) rest.first[i] += static_cast<uint32_t>(whole) * rest.step[i];
  uint32_t last[kSmallBlock];
  fill(rest, n - whole, last);
  std::copy(last, last + (n - whole), out + whole);
}

// The noise derived from a vector of numbers (noise.h): their bits become the mantissa of a number in [1, 2).
template <RandomNumbers::Kind kind>
struct ToNoise {
  template <class D>
  static hn::Vec<D> Apply(D d, const uint32_t* numbers) {
    const hn::RebindToUnsigned<D> du;
    const auto w = hn::LoadU(du, numbers);
    const auto one = hn::Set(du, 0x3F800000u);
    if constexpr (kind == RandomNumbers::Kind::kBits32) {
      return hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftRight<9>(w), one)), hn::Set(d, 1.5f));
    } else if constexpr (kind == RandomNumbers::Kind::kBits16) {
      return hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftLeft<7>(w), one)), hn::Set(d, 1.5f - 0x1p-17f));
    } else {
      return hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftRight<9>(w), hn::Set(du, 0x3F800001u))), hn::Set(d, 1.5f));
    }
  }
};

template <RandomNumbers::Kind kind>
void NoiseOf(const uint32_t* numbers, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) hn::StoreU(ToNoise<kind>::Apply(d, numbers + j), d, out + j);
  if (j == n) return;
  uint32_t padded[kLanes] = {};
  std::copy(numbers + j, numbers + n, padded);
  float rest[kLanes];
  hn::StoreU(ToNoise<kind>::Apply(d, padded), d, rest);
  std::copy(rest, rest + (n - j), out + j);
}

// out[j] = the noise derived from numbers[j].
void NoiseOfKind(RandomNumbers::Kind kind, const uint32_t* numbers, int64_t n, float* out) {
  switch (kind) {
    case RandomNumbers::Kind::kBits32: return NoiseOf<RandomNumbers::Kind::kBits32>(numbers, n, out);
    case RandomNumbers::Kind::kBits16: return NoiseOf<RandomNumbers::Kind::kBits16>(numbers, n, out);
    case RandomNumbers::Kind::kFast: return NoiseOf<RandomNumbers::Kind::kFast>(numbers, n, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {
namespace {

using internal::Counters;
using internal::Select;

// Fills `out` one part at a time.
class Filler {
 public:
  Filler(Target target, Key key, uint32_t* out) : fill_(AQT_HWY_DISPATCH(target, FillSelected)), key_(key), out_(out) {}

  void Append(const Counters& counters, Select select, int64_t n) {
    if (n == 0) return;
    fill_(key_, counters, select, n, out_);
    out_ += n;
  }

 private:
  void (*const fill_)(Key, const Counters&, Select, int64_t, uint32_t*);
  const Key key_;
  uint32_t* out_;
};

uint32_t Low(int64_t x) { return static_cast<uint32_t>(x); }

// The number of elements of first, first + stride, ... that are below `limit`; at most n.
int64_t CountBelow(int64_t limit, int64_t first, int64_t stride, int64_t n) {
  if (first >= limit) return 0;
  return stride == 0 ? n : std::min(n, (limit - 1 - first) / stride + 1);
}

// Number i uses both words of the counter (i / 2^32, i % 2^32).
void FillPartitionable(Target target, Key key, int64_t first, int64_t stride, int64_t n, uint32_t* out) {
  Filler filler(target, key, out);
  while (n > 0) {
    const int64_t hi = first >> 32, count = CountBelow((hi + 1) << 32, first, stride, n);
    filler.Append({{Low(hi), Low(first)}, {0, Low(stride)}}, Select::kXor, count);
    first += count * stride;
    n -= count;
  }
}

// `words` counters, split into two halves; the second is padded with a 0 if the count is odd (rng.cc). Number i of the
// first half is the first word of the block (i, half + i). The second words form the second half.
void FillOriginal(Target target, Key key, int64_t words, int64_t first, int64_t stride, int64_t n, uint32_t* out) {
  Filler filler(target, key, out);
  const int64_t half = (words + 1) / 2;
  const auto append = [&](int64_t count, int64_t x0, int64_t x1, int64_t x1_step, Select select) {
    filler.Append({{Low(x0), Low(x1)}, {Low(stride), Low(x1_step)}}, select, count);
    first += count * stride;
    n -= count;
  };
  append(CountBelow(words - half, first, stride, n), first, first + half, stride, Select::kFirst);
  append(CountBelow(half, first, stride, n), first, 0, 0, Select::kFirst);
  append(n, first - half, first, stride, Select::kSecond);
}

void FillBits32(const RandomBits& bits, int64_t first, int64_t stride, int64_t n, uint32_t* out, Target target) {
  if (bits.layout() == PrngLayout::kPartitionable) {
    FillPartitionable(target, bits.key(), first, stride, n, out);
  } else {
    FillOriginal(target, bits.key(), bits.size(), first, stride, n, out);
  }
}

// The number of words that pass through a buffer at a time.
constexpr int64_t kChunk = 512;

// In the original layout a word has two numbers, the lower half first. n <= kChunk.
void FillOriginalHalves(const RandomBits& bits, int64_t first, int64_t stride, int64_t n, uint32_t* out,
                        Target target) {
  const int64_t words = (bits.size() + 1) / 2;
  uint32_t drawn[kChunk / 2 + 1];
  if (stride == 1) {
    const int64_t begin = first / 2, end = (first + n + 1) / 2;
    FillOriginal(target, bits.key(), words, begin, 1, end - begin, drawn);
    for (int64_t j = 0; j < n; ++j) out[j] = drawn[(first + j) / 2 - begin] >> (first + j) % 2 * 16 & 0xffff;
    return;
  }
  // Every second number is in the same half of its word, and their words are `stride` apart.
  for (int64_t p = 0; p < std::min<int64_t>(n, 2); ++p) {
    const int64_t start = first + p * stride, count = (n - p + 1) / 2;
    FillOriginal(target, bits.key(), words, start / 2, stride, count, drawn);
    for (int64_t j = 0; j < count; ++j) out[2 * j + p] = drawn[j] >> start % 2 * 16 & 0xffff;
  }
}

void FillBits16(const RandomBits& bits, int64_t first, int64_t stride, int64_t n, uint32_t* out, Target target) {
  if (bits.layout() == PrngLayout::kPartitionable) {
    FillPartitionable(target, bits.key(), first, stride, n, out);
    for (int64_t j = 0; j < n; ++j) out[j] &= 0xffff;
    return;
  }
  for (int64_t j = 0; j < n; j += kChunk) {
    FillOriginalHalves(bits, first + j * stride, stride, std::min(kChunk, n - j), out + j, target);
  }
}

void FillFast(const FastBits& bits, int64_t first, int64_t stride, int64_t n, uint32_t* out, Target target) {
  const internal::FastBlocks blocks = internal::FastBlocksFor(target);
  if (stride == 1) {
    const auto part = [&](int64_t count) {  // part of one block
      uint32_t block[4];
      blocks(bits, first / 4, 1, 1, block);
      std::copy(block + first % 4, block + first % 4 + count, out);
      first += count;
      out += count;
      n -= count;
    };
    if (first % 4 != 0) part(std::min(n, 4 - first % 4));
    blocks(bits, first / 4, 1, n / 4, out);
    first += n / 4 * 4;
    out += n / 4 * 4;
    n %= 4;
    if (n > 0) part(n);
    return;
  }
  // Every fourth number has the same position in its block, and their blocks are `stride` apart.
  uint32_t drawn[kChunk];
  for (int64_t j = 0; j < n; j += kChunk) {
    const int64_t size = std::min(kChunk, n - j);
    for (int64_t p = 0; p < std::min<int64_t>(size, 4); ++p) {
      const int64_t start = first + (j + p) * stride, count = (size - p + 3) / 4;
      blocks(bits, start / 4, stride, count, drawn);
      for (int64_t i = 0; i < count; ++i) out[j + 4 * i + p] = drawn[4 * i + start % 4];
    }
  }
}

}  // namespace

void FillRandom(const RandomNumbers& numbers, int64_t first, int64_t stride, int64_t n, uint32_t* out, Target target) {
  AQT_DCHECK(first >= 0 && stride >= 0);
  if (n <= 0) return;
  const int64_t different = stride == 0 ? 1 : n;
  switch (numbers.kind()) {
    case RandomNumbers::Kind::kBits32: FillBits32(numbers.bits(), first, stride, different, out, target); break;
    case RandomNumbers::Kind::kBits16: FillBits16(numbers.bits(), first, stride, different, out, target); break;
    case RandomNumbers::Kind::kFast: FillFast(numbers.fast(), first, stride, different, out, target); break;
  }
  std::fill(out + different, out + n, out[0]);
}

void FillNoise(const RandomNumbers& numbers, int64_t first, int64_t stride, int64_t n, float* out, Target target) {
  uint32_t drawn[kChunk];
  for (int64_t j = 0; j < n; j += kChunk) {
    const int64_t count = std::min(kChunk, n - j);
    FillRandom(numbers, first + j * stride, stride, count, drawn, target);
    AQT_HWY_DISPATCH(target, NoiseOfKind)(numbers.kind(), drawn, count, out + j);
  }
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
