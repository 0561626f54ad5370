#include "aqt/core/rng.h"

#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace aqt {
namespace {

// Known answers for Threefry-2x32 with 20 rounds (from Random123's kat_vectors).
TEST(Threefry, KnownAnswers) {
  EXPECT_EQ(Threefry2x32({0, 0}, 0, 0), (std::array<uint32_t, 2>{0x6b200159u, 0x99ba4efeu}));
  EXPECT_EQ(Threefry2x32({0xffffffffu, 0xffffffffu}, 0xffffffffu, 0xffffffffu),
            (std::array<uint32_t, 2>{0x1cb996fcu, 0xbb002be7u}));
  EXPECT_EQ(Threefry2x32({0x13198a2eu, 0x03707344u}, 0x243f6a88u, 0x85a308d3u),
            (std::array<uint32_t, 2>{0xc4923a9cu, 0x483df7a0u}));
}

TEST(Key, OfSeed) {
  EXPECT_EQ(MakeKey(0), (Key{0, 0}));
  EXPECT_EQ(MakeKey(0x123456789abcdef0u), (Key{0x12345678u, 0x9abcdef0u}));
}

// The context keys of AQT for PRNGKey(0): split into three (fwd, dlhs, drhs), each into two (lhs, rhs).
TEST(SplitKey, ContextKeysPartitionable) {
  const Key expected[3][2] = {{{4165894930u, 804218099u}, {1353695780u, 2116000888u}},
                              {{346279018u, 360566543u}, {3968330031u, 3923691647u}},
                              {{2799984767u, 1105366846u}, {3777617834u, 145086855u}}};
  for (int pass = 0; pass < 3; ++pass) {
    for (int side = 0; side < 2; ++side) {
      EXPECT_EQ(SplitKey(SplitKey(MakeKey(0), 3, pass), 2, side), expected[pass][side]) << pass << side;
    }
  }
}

// The original layout is one call of the block function over all counters, written out here with arrays.
std::vector<uint32_t> OriginalWords(Key key, int64_t n) {
  std::vector<uint32_t> counters(n + n % 2, 0);
  for (int64_t i = 0; i < n; ++i) counters[i] = static_cast<uint32_t>(i);
  const int64_t half = static_cast<int64_t>(counters.size()) / 2;
  std::vector<uint32_t> out(counters.size());
  for (int64_t i = 0; i < half; ++i) {
    const auto words = Threefry2x32(key, counters[i], counters[half + i]);
    out[i] = words[0];
    out[half + i] = words[1];
  }
  out.resize(n);
  return out;
}

TEST(RandomBits, OriginalLayout) {
  const Key key{7, 11};
  for (const int64_t n : {1, 2, 3, 4, 5, 8, 17}) {
    const std::vector<uint32_t> words = OriginalWords(key, n);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_EQ(RandomBits(key, n, PrngLayout::kOriginal).Bits32(i), words[i]) << n << " " << i;
    // 16 and 8 bits: packed into as few words as possible, low part first.
    const std::vector<uint32_t> halves = OriginalWords(key, (n + 1) / 2), quarters = OriginalWords(key, (n + 3) / 4);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(RandomBits(key, n, PrngLayout::kOriginal).Bits16(i),
                static_cast<uint16_t>(halves[i / 2] >> (i % 2 * 16)));
      EXPECT_EQ(RandomBits(key, n, PrngLayout::kOriginal).Bits8(i),
                static_cast<uint8_t>(quarters[i / 4] >> (i % 4 * 8)));
    }
    // split(n): 2n words in rows of two.
    const std::vector<uint32_t> keys = OriginalWords(key, 2 * n);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(SplitKey(key, n, i, PrngLayout::kOriginal), (Key{keys[2 * i], keys[2 * i + 1]}));
    }
  }
}

TEST(RandomBits, PartitionableNumberDependsOnItsIndexAlone) {
  const Key key{3, 4};
  for (const int64_t i : {int64_t{0}, int64_t{5}, (int64_t{1} << 32) + 5}) {
    const auto words = Threefry2x32(key, static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(i));
    for (const int64_t n : {i + 1, i + 100}) {
      const RandomBits bits(key, n);
      EXPECT_EQ(bits.Bits32(i), words[0] ^ words[1]);
      EXPECT_EQ(bits.Bits16(i), static_cast<uint16_t>(words[0] ^ words[1]));
      EXPECT_EQ(bits.Bits8(i), static_cast<uint8_t>(words[0] ^ words[1]));
    }
  }
}

// FIPS 197, appendix B: the first round of the example, with bytes in memory order.
FastBits::Words WordsOf(const std::array<uint8_t, 16>& bytes) {
  FastBits::Words words = {};
  for (int i = 0; i < 16; ++i) words[i / 4] |= static_cast<uint32_t>(bytes[i]) << (8 * (i % 4));
  return words;
}

TEST(FastBits, AesRoundKnownAnswers) {
  const FastBits::Words start =
      WordsOf({0x19, 0x3d, 0xe3, 0xbe, 0xa0, 0xf4, 0xe2, 0x2b, 0x9a, 0xc6, 0x8d, 0x2a, 0xe9, 0xf8, 0x48, 0x08});
  const FastBits::Words key =
      WordsOf({0xa0, 0xfa, 0xfe, 0x17, 0x88, 0x54, 0x2c, 0xb1, 0x23, 0xa3, 0x39, 0x39, 0x2a, 0x6c, 0x76, 0x05});
  EXPECT_EQ(FastBits::AesRound(start, key),
            WordsOf({0xa4, 0x9c, 0x7f, 0xf2, 0x68, 0x9f, 0x35, 0x2b, 0x6b, 0x5b, 0xea, 0x43, 0x02, 0x6a, 0x50, 0x49}));
}

TEST(FastBits, IsThreeRoundsOverTheCounter) {
  const Key key{3, 4};
  const FastBits bits(key);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(bits.even_key()[i], Threefry2x32(key, 0, i)[0]);
    EXPECT_EQ(bits.odd_key()[i], Threefry2x32(key, 0, i)[1]);
  }
  for (const int64_t i : {int64_t{0}, int64_t{6}, (int64_t{1} << 36) + 7}) {
    FastBits::Words x = bits.even_key();
    x[0] ^= static_cast<uint32_t>(i / 4);
    x[1] ^= static_cast<uint32_t>(i / 4 >> 32);
    for (const FastBits::Words& round : {bits.odd_key(), bits.even_key(), bits.odd_key()})
      x = FastBits::AesRound(x, round);
    EXPECT_EQ(bits.Block(static_cast<uint64_t>(i / 4)), x);
    EXPECT_EQ(bits.Bits32(i), x[i % 4]);
  }
}

TEST(FoldIn, IsTheBlockFunction) {
  const auto words = Threefry2x32({1, 2}, 0, 77);
  EXPECT_EQ(FoldIn({1, 2}, 77), (Key{words[0], words[1]}));
}

TEST(UniformF32, EndsOfTheRange) {
  EXPECT_EQ(UniformF32(0), 0.0f);
  EXPECT_EQ(UniformF32(0x1ffu), 0.0f);  // the low 9 bits are ignored
  EXPECT_EQ(UniformF32(0x200u), 0x1p-23f);
  EXPECT_EQ(UniformF32(0xffffffffu), 1.0f - 0x1p-23f);
}

}  // namespace
}  // namespace aqt
