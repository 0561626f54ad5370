#include "aqt/quant/tensor/window_sums.h"

#include <cstdint>
#include <vector>

#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

std::vector<float> Sums(const std::vector<float>& x, const Shape& shape, const Shape& groups) {
  std::vector<float> work(WindowSumFloats(shape, groups)), sums(groups.num_elements(), -1.0f);
  WindowSumsInto(
      ArrayRef(x.data(), shape), groups, [](float*, int64_t) {}, work.data(), sums.data());
  return sums;
}

constexpr float kLarge = 0x1p24f;  // kLarge + 1 == kLarge

// The sum of n elements in one row: kLarge, then ones, which are lost in its window but not in other windows.
float LargeAndOnes(int64_t n) {
  std::vector<float> x(n, 1.0f);
  x[0] = kLarge;
  return Sums(x, {1, n}, {1, 1})[0];
}

TEST(WindowSums, UpToAWindowOneAfterTheOther) {
  EXPECT_EQ(LargeAndOnes(1), kLarge);
  EXPECT_EQ(LargeAndOnes(6), kLarge);
  EXPECT_EQ(LargeAndOnes(32), kLarge);
}

TEST(WindowSums, WindowsLackElementsAtBothEnds) {
  EXPECT_EQ(LargeAndOnes(33), kLarge + 16);       // 17 + 16
  EXPECT_EQ(LargeAndOnes(64), kLarge + 32);       // 32 + 32
  EXPECT_EQ(LargeAndOnes(69), kLarge + 32 + 18);  // 19 + 32 + 18
}

// 1100 elements: 35 windows, the first and the last short of 10 elements; then two windows, of 18 and 17.
TEST(WindowSums, WindowsOfWindows) { EXPECT_EQ(LargeAndOnes(1100), kLarge + 33 * 32 + 22); }

TEST(WindowSums, EachAxisHasItsWindows) {
  // 40 rows: windows of 20 and 20. Along columns nothing is summed.
  std::vector<float> x(80, 1.0f);
  x[0] = kLarge;
  EXPECT_EQ(Sums(x, {40, 2}, {1, 2}), (std::vector<float>{kLarge + 20, 40}));
  // Along both axes, each window has 40 elements.
  EXPECT_EQ(Sums(x, {40, 2}, {1, 1}), (std::vector<float>{kLarge + 40}));
}

TEST(WindowSums, ReadsStridesAndTerms) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  const ArrayRef transposed(DType::kF32, {3, 2}, {1, 3}, x.data());
  std::vector<float> sums(3);
  const auto negate = [](float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = -y[i];
  };
  WindowSumsInto(transposed, {3, 1}, negate, nullptr, sums.data());
  EXPECT_EQ(sums, (std::vector<float>{-5, -7, -9}));
}

TEST(WindowSums, EmptyGroupsAreZero) { EXPECT_EQ(Sums({}, {2, 0}, {2, 1}), (std::vector<float>{0, 0})); }

}  // namespace
}  // namespace aqt::internal
