#include "aqt/kernels/move/gather.h"

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/kernels/reduce/cumulative.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

std::vector<float> Noise(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> x(n);
  for (float& v : x) v = draw(random);
  return x;
}

TEST(TakeRowsTest, TakesAndClamps) {
  const std::vector<int8_t> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // [2, 3, 2]
  const int32_t numbers[] = {2, 0, -1, 3, std::numeric_limits<int32_t>::min()};
  std::vector<int8_t> out(20);
  TakeRows(DType::kS8, x.data(), 2, 3, 2, numbers, out.data());
  EXPECT_EQ(out, (std::vector<int8_t>{5, 6, 1, 2, 1, 2, 5, 6, 1, 2, 11, 12, 7, 8, 7, 8, 11, 12, 7, 8}));
  TakeRows(DType::kF64, nullptr, 2, 0, 2, {}, nullptr);
}

// Adds one element at a time, in the order of the updates.
TEST(ScatterAddRowsTest, AddsInOrder) {
  constexpr int64_t kOuter = 3, kRows = 5, kInner = 7, kUpdates = 40;
  const std::vector<float> updates = Noise(kOuter * kUpdates * kInner, 1);
  std::mt19937_64 random(2);
  std::vector<int32_t> numbers(kUpdates);
  for (int32_t& number : numbers) number = static_cast<int32_t>(random() % 7) - 1;  // some out of range
  std::vector<float> want(kOuter * kRows * kInner, 0.0f), got(want.size(), 9.0f);
  for (int64_t o = 0; o < kOuter; ++o) {
    for (int64_t u = 0; u < kUpdates; ++u) {
      const int64_t row = numbers[u] < 0 ? 0 : numbers[u] > 4 ? 4 : numbers[u];
      for (int64_t i = 0; i < kInner; ++i) {
        want[(o * kRows + row) * kInner + i] += updates[(o * kUpdates + u) * kInner + i];
      }
    }
  }
  ScatterAddRows(DType::kF32, updates.data(), kOuter, kRows, kInner, numbers, got.data());
  EXPECT_EQ(got, want);
}

TEST(ScatterAddRowsTest, SmallFloatsAreSummedInF32AndIntegersWrap) {
  const std::vector<int32_t> zeros(300, 0);
  const std::vector<BFloat16> ones(300, RoundToBFloat16(1.0f));  // a bf16 sum would stop at 256
  BFloat16 sums[2];
  ScatterAddRows(DType::kBF16, ones.data(), 1, 2, 1, zeros, sums);
  EXPECT_EQ(ToFloat(sums[0]), 300.0f);
  EXPECT_EQ(ToFloat(sums[1]), 0.0f);
  const int32_t large[] = {std::numeric_limits<int32_t>::max(), 2};
  int32_t total;
  ScatterAddRows(DType::kS32, large, 1, 1, 1, {0, 0}, &total);
  EXPECT_EQ(total, std::numeric_limits<int32_t>::min() + 1);
}

TEST(CumulativeSumTest, AddsInOrder) {
  constexpr int64_t kOuter = 2, kN = 33;
  for (const int64_t inner : {1, 3, 256, 600}) {  // up to 256 sums at a time
    const std::vector<float> x = Noise(kOuter * kN * inner, 3);
    for (const bool reverse : {false, true}) {
      std::vector<float> want(x.size()), got = x;
      for (int64_t o = 0; o < kOuter; ++o) {
        for (int64_t i = 0; i < inner; ++i) {
          float sum = 0;
          for (int64_t k = 0; k < kN; ++k) {
            const int64_t at = (o * kN + (reverse ? kN - 1 - k : k)) * inner + i;
            sum += x[at];
            want[at] = sum;
          }
        }
      }
      CumulativeSum(DType::kF32, got.data(), kOuter, kN, inner, reverse, got.data());  // in place
      EXPECT_EQ(got, want) << inner;
    }
  }
}

TEST(CumulativeSumTest, SmallFloatsAreSummedInF32) {
  std::vector<BFloat16> ones(300, RoundToBFloat16(1.0f));
  CumulativeSum(DType::kBF16, ones.data(), 1, 300, 1, false, ones.data());
  EXPECT_EQ(ToFloat(ones[255]), 256.0f);
  EXPECT_EQ(ToFloat(ones[256]), 256.0f);  // 257, rounded to even
  EXPECT_EQ(ToFloat(ones[299]), 300.0f);
  CumulativeSum(DType::kF32, nullptr, 2, 0, 3, false, nullptr);
}

}  // namespace
}  // namespace aqt::kernels
