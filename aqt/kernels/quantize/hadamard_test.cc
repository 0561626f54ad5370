#include "aqt/kernels/quantize/hadamard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/hadamard_reference.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

template <class T>
float AsFloat(T x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else return ToFloat(x);
}

template <class T>
std::vector<uint32_t> Bits(const std::vector<T>& x) {
  std::vector<uint32_t> bits(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(AsFloat(x[i]))) bits[i] = 0x7fc00000;  // all NaN are equal
    else std::memcpy(&bits[i], &x[i], sizeof(T));
  }
  return bits;
}

// Rows of n elements, 3 elements apart, on all targets, into other memory and in place.
template <class T>
void ExpectAsReference(const std::vector<T>& data, int64_t rows, int64_t n, int64_t block) {
  const int64_t stride = n + 3;
  ASSERT_GE(static_cast<int64_t>(data.size()), rows * stride);
  std::vector<float> want;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> row;
    for (int64_t i = 0; i < n; ++i) row.push_back(AsFloat(data[r * stride + i]));
    reference::HadamardRow(kDTypeOf<T>, block, n, row.data());
    want.insert(want.end(), row.begin(), row.end());
  }
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    HadamardArgs args{.x = data.data(), .dtype = kDTypeOf<T>, .rows = rows, .n = n, .x_row_stride = stride};
    args.block = block;
    std::vector<T> out(rows * n), in_place = data;
    args.out = out.data();
    args.out_row_stride = n;
    HadamardRows(args, target);
    std::vector<float> got;
    for (const T x : out) got.push_back(AsFloat(x));
    EXPECT_EQ(Bits(got), Bits(want));
    args.x = args.out = in_place.data();
    args.out_row_stride = stride;
    HadamardRows(args, target);
    std::vector<T> padded = data;  // what is between the rows stays
    for (int64_t r = 0; r < rows; ++r) std::copy(&out[r * n], &out[r * n] + n, &padded[r * stride]);
    EXPECT_EQ(Bits(in_place), Bits(padded));
  }
}

template <class T>
class HadamardTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(HadamardTest, FloatTypes);

TYPED_TEST(HadamardTest, RowsOfAllLengths) {
  for (int64_t n = 0; n <= 140; ++n) {
    for (const int64_t block : {2, 4, 8, 16, 32, 64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << n << " by " << block);
      ExpectAsReference(TestFloats<TypeParam>(3 * (n + 3), Values::kUsual, static_cast<uint32_t>(n)), 3, n, block);
    }
  }
}

TYPED_TEST(HadamardTest, LongRows) {
  for (const int64_t n : {384, 1023, 4096, 8192, 12345}) {
    for (const int64_t block : {2, 64, 512, 1024, 4096}) {
      SCOPED_TRACE(testing::Message() << n << " by " << block);
      ExpectAsReference(TestFloats<TypeParam>(2 * (n + 3), Values::kFinite, static_cast<uint32_t>(n)), 2, n, block);
    }
  }
}

// NaN, infinities, subnormals and sums that overflow.
TYPED_TEST(HadamardTest, AnyBits) {
  for (const int64_t block : {2, 8, 64}) {
    ExpectAsReference(TestFloats<TypeParam>(200 * 80, Values::kAnyBits, 5), 200, 77, block);
  }
}

// The matrix of the definition: H(i, j) = (-1)^(number of common bits of i and j) / sqrt(m).
TEST(Hadamard, IsTheMatrix) {
  constexpr int64_t kN = 64;
  for (int64_t j = 0; j < kN; ++j) {
    std::vector<float> x(kN), out(kN);
    x[j] = 1;
    HadamardRows({.x = x.data(), .out = out.data(), .rows = 1, .n = kN, .block = kN});
    for (int64_t i = 0; i < kN; ++i) {
      EXPECT_EQ(out[i], (std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 0.125f : -0.125f)) << i << " " << j;
    }
  }
}

// Integers are exact: with blocks that are powers of 4 the transform is its own inverse, and keeps inner products.
TEST(Hadamard, IsExactlyOrthogonalForPowersOfFour) {
  for (const int64_t block : {4, 16, 64, 256}) {
    const int64_t n = 2 * block;
    std::vector<float> x(n), y(n), hx(n), hy(n), back(n);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(i * 37 % 101 - 50);
      y[i] = static_cast<float>(i * 53 % 97 - 48);
    }
    HadamardRows({.x = x.data(), .out = hx.data(), .rows = 1, .n = n, .block = block});
    HadamardRows({.x = y.data(), .out = hy.data(), .rows = 1, .n = n, .block = block});
    HadamardRows({.x = hx.data(), .out = back.data(), .rows = 1, .n = n, .block = block});
    EXPECT_EQ(back, x);
    double dot = 0, rotated = 0;
    for (int64_t i = 0; i < n; ++i) {
      dot += static_cast<double>(x[i]) * y[i];
      rotated += static_cast<double>(hx[i]) * hy[i];
    }
    EXPECT_EQ(rotated, dot);
  }
}

TEST(Hadamard, ScaleIsTheRoundedRoot) {
  for (int64_t m = 1; m <= kMaxHadamardBlock; m *= 2) {
    EXPECT_EQ(HadamardScale(m), static_cast<float>(1 / std::sqrt(static_cast<double>(m)))) << m;
  }
}

}  // namespace
}  // namespace aqt::kernels
