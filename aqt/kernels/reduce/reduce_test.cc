#include "aqt/kernels/reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
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

// Reduces the elements of one output in the documented order, for any kind.
template <class C>
C ReduceInOrder(ReduceKind kind, const std::vector<C>& x) {
  const auto combine = [kind](C a, C b) {
    switch (kind) {
      case ReduceKind::kSum: return a + b;
      case ReduceKind::kProd: return a * b;
      case ReduceKind::kMax: return std::max(a, b);
      case ReduceKind::kMin: return std::min(a, b);
    }
    return C{};
  };
  const C inf = std::numeric_limits<C>::infinity();
  std::vector<C> s(16, kind == ReduceKind::kSum    ? 0
                       : kind == ReduceKind::kProd ? 1
                       : kind == ReduceKind::kMax  ? -inf
                                                   : inf);
  for (size_t k = 0; k < x.size(); ++k) s[k % 16] = combine(s[k % 16], x[k]);
  for (int width : {8, 4, 2, 1}) {
    for (int j = 0; j < width; ++j) s[j] = combine(s[j], s[j + width]);
  }
  return s[0];
}

// Every subset of the axes, every kind and every target: few and many rows and columns.
TEST(ReduceTest, AllAxesKindsAndTargetsHaveTheDocumentedOrder) {
  const Shape shape = {3, 9, 2, 70};
  const Strides strides = DenseStrides(shape);
  std::vector<float> x = Noise(shape.num_elements(), 6);
  for (float& v : x) v = std::copysign(std::exp2(std::fmod(v, 1.0f) / 8), v);  // keeps products finite
  for (int mask = 0; mask < 16; ++mask) {
    Axes axes;
    Shape kept, reduced;
    Strides kept_strides, reduced_strides;
    for (int64_t axis = 0; axis < 4; ++axis) {
      const bool is_reduced = (mask >> axis & 1) != 0;
      if (is_reduced) axes.push_back(axis);
      (is_reduced ? reduced : kept).push_back(shape[axis]);
      (is_reduced ? reduced_strides : kept_strides).push_back(strides[axis]);
    }
    for (int k = 0; k < kNumReduceKinds; ++k) {
      const ReduceKind kind = static_cast<ReduceKind>(k);
      std::vector<float> want;
      ForEachIndex(kept, kept_strides, kept_strides, [&](int64_t from, int64_t) {
        std::vector<float> elements;
        ForEachIndex(reduced, reduced_strides, reduced_strides,
                     [&](int64_t offset, int64_t) { elements.push_back(x[from + offset]); });
        want.push_back(ReduceInOrder(kind, elements));
      });
      for (const Target target : SupportedTargets()) {
        std::vector<float> got(want.size());
        Reduce(kind, ArrayRef(x.data(), shape), axes, got.data(), target);
        ASSERT_EQ(got, want) << ToString(kind) << " over mask " << mask << " on " << target;
      }
    }
  }
}

// Columns are reduced in blocks, rows one by one.
TEST(ReduceTest, ColumnsEqualRowsInEachType) {
  const int64_t rows = 37, columns = 70;
  std::vector<float> x = Noise(rows * columns, 7);
  for (float& v : x) v = std::copysign(1 + std::fmod(std::fabs(v), 0.25f), v);  // keeps products finite
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kS32}) {
    const Array upright = Cast(ArrayRef(x.data(), {rows, columns}), dtype);
    const Array turned = Array::CopyOf(ArrayRef(dtype, Shape{columns, rows}, Strides{1, columns}, upright.data()));
    for (int k = 0; k < kNumReduceKinds; ++k) {
      const ReduceKind kind = static_cast<ReduceKind>(k);
      for (const Target target : SupportedTargets()) {
        ArrayBuilder by_columns(dtype, {columns}), by_rows(dtype, {columns});
        Reduce(kind, upright, {0}, by_columns.data(), target);
        Reduce(kind, turned, {1}, by_rows.data(), target);
        EXPECT_TRUE(BitEqual(std::move(by_columns).Build(), std::move(by_rows).Build()))
            << ToString(kind) << " of " << ToString(dtype) << " on " << target;
      }
    }
  }
}

TEST(ReduceTest, MinimaAndProductsHaveEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const int64_t axis = 0;
  float out;
  Reduce(ReduceKind::kMin, ArrayRef(&inf, {0}), {axis}, &out);
  EXPECT_EQ(out, inf);
  Reduce(ReduceKind::kProd, ArrayRef(&inf, {0}), {axis}, &out);
  EXPECT_EQ(out, 1);
  for (const float special : {std::nanf(""), -0.0f}) {
    std::vector<float> x(20, 0.0f);
    x[17] = special;
    Reduce(ReduceKind::kMin, ArrayRef(x.data(), {20}), {axis}, &out);
    EXPECT_TRUE(std::isnan(special) ? std::isnan(out) : std::signbit(out));
    Reduce(ReduceKind::kMax, ArrayRef(x.data(), {20}), {axis}, &out);
    EXPECT_TRUE(std::isnan(special) ? std::isnan(out) : !std::signbit(out));
  }
  const int32_t integers[] = {65536, 65537};
  int32_t product;
  Reduce(ReduceKind::kProd, ArrayRef(integers, {2}), {axis}, &product);
  EXPECT_EQ(product, 65536);  // modulo 2^32
  Reduce(ReduceKind::kMin, ArrayRef(integers, {0}), {axis}, &product);
  EXPECT_EQ(product, std::numeric_limits<int32_t>::max());
}

TEST(ArgReduceTest, FirstOfEqualsAndNan) {
  const float nan = std::nanf("");
  const std::vector<float> x = {1, 3, 3, -0.0f, nan, 2, 0, nan, 1, 3, 1, 0.0f};  // [2, 3, 2]
  int32_t out[4];
  ArgReduce(ArgKind::kMax, DType::kF32, x.data(), 2, 3, 2, out);
  EXPECT_EQ(std::vector<int32_t>(out, out + 4), (std::vector<int32_t>{2, 0, 1, 0}));
  ArgReduce(ArgKind::kMin, DType::kF32, x.data(), 2, 3, 2, out);
  EXPECT_EQ(std::vector<int32_t>(out, out + 4), (std::vector<int32_t>{2, 1, 0, 0}));
  const int32_t integers[] = {5, 7, 7, 5};
  ArgReduce(ArgKind::kMax, DType::kS32, integers, 1, 4, 1, out);
  EXPECT_EQ(out[0], 1);
  ArgReduce(ArgKind::kMin, DType::kS32, integers, 1, 4, 1, out);
  EXPECT_EQ(out[0], 0);
  const BFloat16 brains[] = {RoundToBFloat16(-2), RoundToBFloat16(4)};
  ArgReduce(ArgKind::kMax, DType::kBF16, brains, 1, 2, 1, out);
  EXPECT_EQ(out[0], 1);
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
