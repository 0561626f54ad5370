#include "aqt/kernels/quantize/pack_words.h"

#include <cstdint>
#include <vector>

#include "aqt/core/machine/target.h"
#include "aqt/testing/random.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

// Packs bit by bit.
std::vector<int32_t> PackSlowly(const std::vector<int8_t>& q, int num_bits) {
  std::vector<uint32_t> words(q.size() * num_bits / 32);
  for (size_t i = 0; i < q.size() * num_bits; ++i) {
    const int value = q[i / num_bits] + (1 << (num_bits - 1));
    words[i / 32] |= static_cast<uint32_t>(value >> (i % num_bits) & 1) << (i % 32);
  }
  return {words.begin(), words.end()};
}

std::vector<int8_t> Random(int64_t n, int num_bits, testing::Random& random) {
  std::vector<int8_t> q(n);
  for (int8_t& x : q) x = static_cast<int8_t>(random.Below(1 << num_bits) - (1 << (num_bits - 1)));
  return q;
}

TEST(PackWordsTest, PacksAndUnpacks) {
  testing::Random random(1);
  for (const Target target : SupportedTargets()) {
    for (int num_bits = 2; num_bits <= 8; ++num_bits) {
      for (int64_t num_words : {0, 1, 2, 3, 7, 16, 33, 100}) {
        if (32 % num_bits != 0) num_words *= num_bits;
        EXPECT_EQ(WholeWords(num_words * 32 / num_bits, num_bits), num_words);
        const std::vector<int8_t> q = Random(num_words * 32 / num_bits, num_bits, random);
        std::vector<int32_t> words(num_words);
        EXPECT_TRUE(PackWords(q.data(), num_words, num_bits, words.data(), target));
        EXPECT_EQ(words, PackSlowly(q, num_bits)) << num_bits << " bits, " << num_words << " words";
        std::vector<int8_t> unpacked(q.size());
        UnpackWords(words.data(), num_words, num_bits, unpacked.data(), target);
        EXPECT_EQ(unpacked, q) << num_bits << " bits, " << num_words << " words";
      }
    }
  }
}

TEST(PackWordsTest, NoticesEveryValueOutOfRange) {
  constexpr int64_t kWords = 3 * 5 * 7 * 2;
  testing::Random random(2);
  for (const Target target : SupportedTargets()) {
    for (int num_bits = 2; num_bits <= 8; ++num_bits) {
      for (int value = -128; value < 128; ++value) {
        std::vector<int8_t> q = Random(kWords * 32 / num_bits, num_bits, random);
        q[random.Below(static_cast<int64_t>(q.size()))] = static_cast<int8_t>(value);
        std::vector<int32_t> words(kWords);
        const bool fits = value >= -(1 << (num_bits - 1)) && value < 1 << (num_bits - 1);
        EXPECT_EQ(PackWords(q.data(), kWords, num_bits, words.data(), target), fits) << value;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
