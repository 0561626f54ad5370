// The statistics of noise. Each one becomes a number z of standard deviations from its expectation for independent
// uniform numbers. With a mean of n terms, or a chi-square of at least hundreds of cells, z is nearly normal. All tests
// together check about 2,000 of them. The largest is below 6 except in one run in 250,000 (2 * 10^-9 each).

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "aqt/core/rng.h"
#include "aqt/kernels/random/noise.h"

namespace aqt::kernels {
namespace {

constexpr double kLimit = 6;
constexpr int64_t kNumbers = 1 << 19;

// The largest |z| seen, and its name.
struct Worst {
  double z = 0;
  std::string what;

  void Add(double value, const std::string& name) {
    if (std::fabs(value) <= std::fabs(z)) return;
    z = value;
    what = name;
  }
};

double ChiSquareZ(const std::vector<int64_t>& counts, int64_t n) {
  const double expected = static_cast<double>(n) / static_cast<double>(counts.size());
  double chi = 0;
  for (const int64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    chi += difference * difference / expected;
  }
  const double freedom = static_cast<double>(counts.size() - 1);
  return (chi - freedom) / std::sqrt(2 * freedom);
}

// `noise` is in [-0.5, 0.5).
Worst Statistics(const std::vector<float>& noise) {
  Worst worst;
  const int64_t n = static_cast<int64_t>(noise.size());
  const double root = std::sqrt(static_cast<double>(n));
  double sum = 0, squares = 0;
  for (const float u : noise) {
    sum += u;
    squares += double{u} * u;
  }
  worst.Add(sum / root * std::sqrt(12.0), "mean");
  // u^2 has the mean 1/12 and the variance 1/80 - 1/144 = 1/180.
  worst.Add((squares / static_cast<double>(n) - 1.0 / 12) * root * std::sqrt(180.0), "variance");

  // The upper and the lower bits of the mantissa.
  std::vector<int64_t> upper(4096), lower(1024);
  for (const float u : noise) {
    const auto cell = static_cast<int64_t>((double{u} + 0.5) * (1 << 22));
    ++upper[cell >> 10];
    ++lower[cell & 1023];
  }
  worst.Add(ChiSquareZ(upper, n), "upper bits");
  worst.Add(ChiSquareZ(lower, n), "lower bits");

  std::vector<int64_t> lags = {3, 5, 7, 15, 17, 31, 33, 63, 65, 127, 129, 1000};
  for (int64_t lag = 1; lag <= n / 8; lag *= 2) lags.push_back(lag);
  for (const int64_t lag : lags) {
    double serial = 0;
    std::vector<int64_t> pairs(32 * 32);
    for (int64_t i = 0; i + lag < n; ++i) {
      serial += double{noise[i]} * noise[i + lag];
      // Pairs that do not overlap.
      if (i / lag % 2 == 0) {
        ++pairs[static_cast<int64_t>((noise[i] + 0.5f) * 32) * 32 + static_cast<int64_t>((noise[i + lag] + 0.5f) * 32)];
      }
    }
    int64_t count = 0;
    for (const int64_t cell : pairs) count += cell;
    // A product of two numbers has the variance 1/144.
    worst.Add(serial / std::sqrt(static_cast<double>(n - lag)) * 12, "serial, lag " + std::to_string(lag));
    worst.Add(ChiSquareZ(pairs, count), "pairs, lag " + std::to_string(lag));
  }

  // Rounding x + u gives ceil(x) with a probability equal to its fraction f: the mean is x, the variance f (1 - f).
  for (const double x : {0.001, 0.1, 0.3, 0.5, 0.77, 0.99}) {
    double rounded = 0;
    for (const float u : noise) rounded += std::nearbyint(static_cast<float>(x) + u);
    worst.Add((rounded / static_cast<double>(n) - x) * root / std::sqrt(x * (1 - x)), "rounding " + std::to_string(x));
  }
  return worst;
}

std::vector<float> Noise(const RandomNumbers& numbers, int64_t first, int64_t n) {
  std::vector<float> noise(n);
  FillNoise(numbers, first, 1, n, noise.data());
  return noise;
}

// Keys like those from splitting, and keys that differ in few bits.
const Key kSomeKeys[] = {{0, 0}, {0, 1}, {1, 0}, {~0u, ~0u}, {0x12345678, 0x9abcdef0}, {0, 0x80000000}};

TEST(NoiseStatistics, Fast) {
  for (const Key key : kSomeKeys) {
    for (const int64_t first : {int64_t{0}, int64_t{1} << 33}) {
      const Worst worst = Statistics(Noise(RandomNumbers::Fast(key), first, kNumbers));
      EXPECT_LT(std::fabs(worst.z), kLimit) << worst.what << ", key " << key << ", first " << first;
    }
  }
}

TEST(NoiseStatistics, ThreefryAsAYardstick) {
  for (const PrngLayout layout : {PrngLayout::kPartitionable, PrngLayout::kOriginal}) {
    const Worst worst = Statistics(Noise(RandomNumbers::Bits32(RandomBits({0, 1}, kNumbers, layout)), 0, kNumbers));
    EXPECT_LT(std::fabs(worst.z), kLimit) << worst.what;
  }
}

// Draws from two keys: sums of products at the same index.
TEST(NoiseStatistics, FastKeysAreIndependent) {
  std::vector<Key> keys(std::begin(kSomeKeys), std::end(kSomeKeys));
  for (int bit = 0; bit < 32; bit += 5) keys.push_back({0, 1u << bit});
  std::vector<std::vector<float>> draws;
  for (const Key key : keys) draws.push_back(Noise(RandomNumbers::Fast(key), 0, kNumbers / 4));
  for (size_t a = 0; a < draws.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (keys[a] == keys[b]) continue;
      double sum = 0;
      for (size_t i = 0; i < draws[a].size(); ++i) sum += double{draws[a][i]} * draws[b][i];
      EXPECT_LT(std::fabs(sum / std::sqrt(static_cast<double>(draws[a].size())) * 12), kLimit) << keys[a] << keys[b];
    }
  }
}

// These statistics can fail: they reject the same generator with two rounds, and a counter multiplied by a constant.
TEST(NoiseStatistics, RefuseWeakGenerators) {
  const FastBits bits({0, 1});
  std::vector<float> two_rounds, product;
  for (uint32_t i = 0; i < kNumbers; ++i) {
    FastBits::Words x = bits.even_key();
    x[0] ^= i / 4;
    x = FastBits::AesRound(FastBits::AesRound(x, bits.odd_key()), bits.even_key());
    two_rounds.push_back(UniformF32(x[i % 4]) - 0.5f);
    product.push_back(UniformF32(i * 2654435761u) - 0.5f);
  }
  EXPECT_GT(std::fabs(Statistics(two_rounds).z), kLimit);
  EXPECT_GT(std::fabs(Statistics(product).z), kLimit);
}

}  // namespace
}  // namespace aqt::kernels
