#include "aqt/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

std::vector<float> Noise(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> x(n);
  for (float& v : x) v = draw(random) * std::exp2(static_cast<float>(random() % 20));
  return x;
}

// Sums in the order that the header promises.
float SumInOrder(const std::vector<float>& x) {
  std::vector<float> s(16, 0.0f);
  for (size_t k = 0; k < x.size(); ++k) s[k % 16] += x[k];
  for (int width : {8, 4, 2, 1}) {
    for (int j = 0; j < width; ++j) s[j] += s[j + width];
  }
  return s[0];
}

float Sum1(const std::vector<float>& x) {
  float out = -1;
  const int64_t axis = 0;
  Reduce(ReduceKind::kSum, ArrayRef(x.data(), {static_cast<int64_t>(x.size())}), {axis}, &out);
  return out;
}

TEST(ReduceTest, SumHasTheDocumentedOrder) {
  for (int64_t n : {0, 1, 2, 15, 16, 17, 31, 32, 33, 101, 1009}) {
    const std::vector<float> x = Noise(n, n);
    EXPECT_EQ(Sum1(x), SumInOrder(x)) << n;
  }
}

TEST(ReduceTest, OrderDoesNotDependOnLayout) {
  const int64_t rows = 37, columns = 5;
  const std::vector<float> x = Noise(rows * columns, 3);
  std::vector<float> out(columns);
  const int64_t axis = 0;
  Reduce(ReduceKind::kSum, ArrayRef(x.data(), {rows, columns}), {axis}, out.data());
  for (int64_t j = 0; j < columns; ++j) {
    std::vector<float> column(rows);
    for (int64_t i = 0; i < rows; ++i) column[i] = x[i * columns + j];
    EXPECT_EQ(out[j], SumInOrder(column));
    float strided;
    Reduce(ReduceKind::kSum, ArrayRef(DType::kF32, Shape{rows}, Strides{columns}, x.data() + j), {axis}, &strided);
    EXPECT_EQ(strided, out[j]);
  }
}

TEST(ReduceTest, SeveralAxesAreNumberedRowMajor) {
  const std::vector<float> x = Noise(3 * 4 * 7, 4);
  std::vector<float> out(4);
  const int64_t axes[] = {2, 0};
  Reduce(ReduceKind::kSum, ArrayRef(x.data(), {3, 4, 7}), axes, out.data());
  for (int64_t j = 0; j < 4; ++j) {
    std::vector<float> elements;
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t k = 0; k < 7; ++k) elements.push_back(x[(i * 4 + j) * 7 + k]);
    }
    EXPECT_EQ(out[j], SumInOrder(elements));
  }
}

TEST(ReduceTest, SmallFloatsAreSummedInF32) {
  std::vector<BFloat16> x(300, RoundToBFloat16(1.0f));  // a bf16 sum would stop at 256
  BFloat16 out;
  const int64_t axis = 0;
  Reduce(ReduceKind::kSum, ArrayRef(x.data(), {300}), {axis}, &out);
  EXPECT_EQ(ToFloat(out), 300.0f);
  std::vector<Float16> half(300, RoundToFloat16(300.0f));
  Float16 total;
  Reduce(ReduceKind::kSum, ArrayRef(half.data(), {300}), {axis}, &total);
  EXPECT_TRUE(std::isinf(ToFloat(total)));
}

TEST(ReduceTest, Integers) {
  const std::vector<int32_t> x = {std::numeric_limits<int32_t>::max(), 1, 5};
  int32_t out;
  const int64_t axis = 0;
  Reduce(ReduceKind::kSum, ArrayRef(x.data(), {3}), {axis}, &out);
  EXPECT_EQ(out, std::numeric_limits<int32_t>::min() + 5);
  Reduce(ReduceKind::kMax, ArrayRef(x.data(), {3}), {axis}, &out);
  EXPECT_EQ(out, std::numeric_limits<int32_t>::max());
  Reduce(ReduceKind::kMax, ArrayRef(x.data(), {0}), {axis}, &out);
  EXPECT_EQ(out, std::numeric_limits<int32_t>::min());
}

TEST(ReduceTest, MaximumAndItsEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const int64_t axis = 0;
  float out;
  std::vector<float> x = Noise(41, 5);
  Reduce(ReduceKind::kMax, ArrayRef(x.data(), {41}), {axis}, &out);
  EXPECT_EQ(out, *std::max_element(x.begin(), x.end()));
  x[40] = std::nanf("");
  Reduce(ReduceKind::kMax, ArrayRef(x.data(), {41}), {axis}, &out);
  EXPECT_TRUE(std::isnan(out));
  Reduce(ReduceKind::kMax, ArrayRef(x.data(), {0}), {axis}, &out);
  EXPECT_EQ(out, -inf);
  EXPECT_TRUE(std::isnan(Sum1({inf, -inf})));
}

TEST(ReduceTest, NoAxisCopiesAndAScalarWorks) {
  const float x[] = {1, 2};
  float out[2];
  Reduce(ReduceKind::kSum, ArrayRef(x, {2}), {}, out);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 2);
  Reduce(ReduceKind::kMax, ArrayRef(x, {}), {}, out);
  EXPECT_EQ(out[0], 1);
}

}  // namespace
}  // namespace aqt::kernels
