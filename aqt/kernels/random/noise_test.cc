#include "aqt/kernels/random/noise.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/random/noise_fast.h"

namespace aqt::kernels {
namespace {

constexpr RandomNumbers::Kind kKinds[] = {RandomNumbers::Kind::kBits32, RandomNumbers::Kind::kBits16,
                                          RandomNumbers::Kind::kFast};

RandomNumbers Numbers(RandomNumbers::Kind kind, const RandomBits& bits) {
  switch (kind) {
    case RandomNumbers::Kind::kBits32: return RandomNumbers::Bits32(bits);
    case RandomNumbers::Kind::kBits16: return RandomNumbers::Bits16(bits);
    case RandomNumbers::Kind::kFast: break;
  }
  return RandomNumbers::Fast(bits.key());
}

// The plain functions of core/rng.h.
uint32_t Expected(RandomNumbers::Kind kind, const RandomBits& bits, int64_t i) {
  switch (kind) {
    case RandomNumbers::Kind::kBits32: return bits.Bits32(i);
    case RandomNumbers::Kind::kBits16: return bits.Bits16(i);
    case RandomNumbers::Kind::kFast: break;
  }
  return FastBits(bits.key()).Bits32(i);
}

float ExpectedNoise(RandomNumbers::Kind kind, uint32_t number) {
  switch (kind) {
    case RandomNumbers::Kind::kBits32: return UniformF32(number) - 0.5f;
    case RandomNumbers::Kind::kBits16: return static_cast<float>((number + 0.5) / 65536 - 0.5);
    case RandomNumbers::Kind::kFast: break;
  }
  return static_cast<float>(((number >> 10) + 0.5) / 4194304 - 0.5);
}

// Numbers first, first + stride, ... of a draw of `size`, on every target.
void Check(RandomNumbers::Kind kind, const RandomBits& bits, int64_t first, int64_t stride, int64_t n) {
  SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) + " layout " +
               std::to_string(static_cast<int>(bits.layout())) + " size " + std::to_string(bits.size()) + " first " +
               std::to_string(first) + " stride " + std::to_string(stride) + " n " + std::to_string(n));
  std::vector<uint32_t> want(n);
  std::vector<float> want_noise(n);
  for (int64_t j = 0; j < n; ++j) {
    want[j] = Expected(kind, bits, first + j * stride);
    want_noise[j] = ExpectedNoise(kind, want[j]);
  }
  const uint32_t guard = 0xdeadbeef;
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(ToString(target));
    std::vector<uint32_t> got(n + 1, guard);
    FillRandom(Numbers(kind, bits), first, stride, n, got.data(), target);
    ASSERT_EQ(got.back(), guard);
    got.pop_back();
    ASSERT_EQ(got, want);
    std::vector<float> noise(n + 1, 7.0f);
    FillNoise(Numbers(kind, bits), first, stride, n, noise.data(), target);
    ASSERT_EQ(noise.back(), 7.0f);
    noise.pop_back();
    ASSERT_EQ(noise, want_noise);
  }
}

TEST(FillRandom, EqualsThePlainFunctions) {
  std::mt19937 random(1);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (const RandomNumbers::Kind kind : kKinds) {
    for (const PrngLayout layout : {PrngLayout::kPartitionable, PrngLayout::kOriginal}) {
      for (int trial = 0; trial < 150; ++trial) {
        const int64_t n = trial < 20 ? trial : below(trial < 140 ? 300 : 2000);
        const int64_t strides[] = {1, 1, 0, 2, 3, 4, below(50), 4096};
        const int64_t stride = strides[below(8)], first = below(2) == 0 ? below(8) : below(5000);
        // Often the whole draw, so that runs cross the middle, where the original layout switches to the second words.
        const int64_t size = std::max<int64_t>(1, first + (n - 1) * stride + 1) + (below(3) == 0 ? below(5000) : 0);
        const Key key{static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
        Check(kind, RandomBits(key, size, layout), first, stride, n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The upper word of the counter changes within a run.
TEST(FillRandom, CarriesIntoTheUpperWord) {
  constexpr int64_t kCarry = int64_t{1} << 32, kBlockCarry = int64_t{1} << 34;
  for (const RandomNumbers::Kind kind : kKinds) {
    for (const int64_t carry : {kCarry, 3 * kCarry, kBlockCarry}) {
      for (const int64_t stride : {int64_t{1}, int64_t{7}, kCarry / 3, kCarry, kCarry + 5}) {
        for (const int64_t before : {0, 1, 63, 200}) {
          Check(kind, RandomBits({5, 6}, int64_t{1} << 62), carry - std::min(before * stride, carry), stride, 300);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// The largest draws in the original layout: counters up to 2^32 - 1.
TEST(FillRandom, OriginalLayoutOfManyNumbers) {
  for (const int64_t size : {(int64_t{1} << 32) - 1, (int64_t{1} << 32) - 2}) {
    for (const RandomNumbers::Kind kind : {RandomNumbers::Kind::kBits32, RandomNumbers::Kind::kBits16}) {
      for (const int64_t first : {int64_t{0}, size / 2 - 70, size - 200}) {
        Check(kind, RandomBits({9, 1}, size, PrngLayout::kOriginal), first, 1, 200);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(FastBlocks, EveryImplementationEqualsThePlainOne) {
  const FastBits bits({0x01234567, 0x89abcdef});
  ASSERT_FALSE(internal::AllFastBlocks().empty());
  for (const internal::FastBlocks blocks : internal::AllFastBlocks()) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 32) - 20, (uint64_t{1} << 60) - 2}) {
      for (const uint64_t stride : {1, 5, 1 << 20}) {
        for (const int64_t n : {0, 1, 2, 3, 4, 5, 15, 16, 17, 40}) {
          std::vector<uint32_t> got(4 * n + 1, 77), want;
          blocks(bits, first, stride, n, got.data());
          for (int64_t b = 0; b < n; ++b) {
            const FastBits::Words words = bits.Block(first + static_cast<uint64_t>(b) * stride);
            want.insert(want.end(), words.begin(), words.end());
          }
          want.push_back(77);
          ASSERT_EQ(got, want) << first << " " << stride << " " << n;
        }
      }
    }
  }
}

// The ends of the ranges stated in noise.h.
TEST(FillNoise, Ranges) {
  const float low[] = {ExpectedNoise(kKinds[0], 0), ExpectedNoise(kKinds[1], 0), ExpectedNoise(kKinds[2], 0)};
  const float high[] = {ExpectedNoise(kKinds[0], ~0u), ExpectedNoise(kKinds[1], 0xffff), ExpectedNoise(kKinds[2], ~0u)};
  EXPECT_EQ(low[0], -0.5f);
  EXPECT_EQ(high[0], 0.5f - 0x1p-23f);
  for (const int symmetric : {1, 2}) EXPECT_EQ(low[symmetric], -high[symmetric]);
  EXPECT_EQ(high[1], 0.5f - 0x1p-17f);
  EXPECT_EQ(high[2], 0.5f - 0x1p-23f);
}

}  // namespace
}  // namespace aqt::kernels
