#include "aqt/kernels/reduce/xla_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/reduce/reduce.h"

namespace aqt::kernels {
namespace {

Array Sum(const Array& x, const std::vector<int64_t>& axes, const Shape& shape) {
  ArrayBuilder out(x.dtype(), shape);
  SumAsXla(x, axes, out.data());
  return std::move(out).Build();
}

std::vector<float> Rows(DType dtype, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  const Array sum = Cast(Sum(Cast(Array::FromSpan<float>(x, {1, n}), dtype), {1}, {1}), DType::kF32);
  return std::vector<float>(sum.View<float>().begin(), sum.View<float>().end());
}

// n numbers for which only the order of summation matters.
std::vector<float> Noise(int64_t n) {
  std::mt19937_64 random(static_cast<uint64_t>(n));
  std::normal_distribution<float> draw;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = draw(random);
  return x;
}

float OneByOne(const std::vector<float>& x) {
  float sum = 0;
  for (const float v : x) sum += v;
  return sum;
}

TEST(XlaSumTest, RoundsAfterEachAddition) {
  EXPECT_EQ(Rows(DType::kBF16, {1, 0x1p-8f, 0x1p-8f}), std::vector<float>{1});
  EXPECT_EQ(Rows(DType::kBF16, {0x1p-8f, 0x1p-8f, 1}), std::vector<float>{1.0078125f});
  EXPECT_EQ(Rows(DType::kF16, {1, 0x1p-11f, 0x1p-11f}), std::vector<float>{1});
  EXPECT_EQ(Rows(DType::kF32, {1, 0x1p-24f, 0x1p-24f}), std::vector<float>{1});
}

TEST(XlaSumTest, Overflows) {
  EXPECT_EQ(Rows(DType::kF16, {6e4f, 6e4f, -6e4f}), std::vector<float>{INFINITY});
  EXPECT_EQ(Rows(DType::kF16, {6e4f, -6e4f, 6e4f}), std::vector<float>{60000});
}

TEST(XlaSumTest, SubnormalNumbersCountAsZero) {
  EXPECT_EQ(Rows(DType::kF32, {1e-39f, 1e-39f, 0}), std::vector<float>{0});
  EXPECT_EQ(Rows(DType::kF32, {1.2e-38f, -1.19e-38f, 0}), std::vector<float>{0});
  EXPECT_EQ(Rows(DType::kF16, {0x1p-24f, 0x1p-24f, 0}), std::vector<float>{0x1p-23f});
}

TEST(XlaSumTest, OneElementIsNotAdded) {
  EXPECT_TRUE(std::signbit(Rows(DType::kF32, {-0.0f})[0]));
  EXPECT_FALSE(std::signbit(Rows(DType::kF32, {-0.0f, -0.0f})[0]));
  EXPECT_EQ(Rows(DType::kF32, {1e-39f}), std::vector<float>{1e-39f});
  EXPECT_EQ(Rows(DType::kF32, {}), std::vector<float>{0});
}

TEST(XlaSumTest, Above32ElementsWindowsAreSummedFirst) {
  for (const int64_t n : {31, 32}) EXPECT_EQ(Rows(DType::kF32, Noise(n))[0], OneByOne(Noise(n))) << n;
  // 33 = 17 + 16: 15 of 31 missing elements come first.
  const std::vector<float> x = Noise(33);
  EXPECT_EQ(Rows(DType::kF32, x)[0], OneByOne({x.begin(), x.begin() + 17}) + OneByOne({x.begin() + 17, x.end()}));
  // 1,100 elements are 35 windows, which is more than 32: two windows of these.
  const std::vector<float> y = Noise(1100);
  std::vector<float> sums;
  for (int64_t window = 0; window < 35; ++window) {
    const int64_t begin = std::max<int64_t>(0, window * 32 - 10), end = std::min<int64_t>(1100, window * 32 + 22);
    sums.push_back(OneByOne({y.begin() + begin, y.begin() + end}));
  }
  EXPECT_EQ(Rows(DType::kF32, y)[0],
            OneByOne({sums.begin(), sums.begin() + 18}) + OneByOne({sums.begin() + 18, sums.end()}));
}

TEST(XlaSumTest, AxesAreTakenRowMajor) {
  const std::vector<float> x = Noise(3 * 2 * 5);
  const Array sum = Sum(Array::FromSpan<float>(x, {3, 2, 5}), {0, 2}, {2});
  for (int64_t j = 0; j < 2; ++j) {
    std::vector<float> terms;
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t k = 0; k < 5; ++k) terms.push_back(x[static_cast<size_t>((i * 2 + j) * 5 + k)]);
    }
    EXPECT_EQ(sum.View<float>()[static_cast<size_t>(j)], OneByOne(terms)) << j;
  }
}

TEST(XlaSumTest, LargeArraysOfF32AreSummedInLanes) {
  const Array x = Array::FromSpan<float>(Noise(64 * 64), {64, 64});
  ArrayBuilder lanes(DType::kF32, {64});
  const int64_t axis = 1;
  Reduce(ReduceKind::kSum, x, {axis}, lanes.data());
  const Array want = std::move(lanes).Build(), got = Sum(x, {1}, {64});
  EXPECT_TRUE(std::equal(got.View<float>().begin(), got.View<float>().end(), want.View<float>().begin()));
  // 63 rows have fewer elements.
  const Array fewer = Array::FromSpan<float>(Noise(63 * 64), {63, 64});
  std::vector<float> row(fewer.View<float>().begin(), fewer.View<float>().begin() + 64);
  EXPECT_EQ(Sum(fewer, {1}, {63}).View<float>()[0],
            OneByOne({row.begin(), row.begin() + 32}) + OneByOne({row.begin() + 32, row.end()}));
}

}  // namespace
}  // namespace aqt::kernels
