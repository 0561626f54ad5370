#include "aqt/kernels/quantize/absmax.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax_reference.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<uint32_t> Bits(const std::vector<float>& x) {
  std::vector<uint32_t> bits(x.size());
  if (!x.empty()) std::memcpy(bits.data(), x.data(), 4 * x.size());
  return bits;
}

// Compares all functions on all targets with the plain versions, bit for bit.
void ExpectAsReference(const FloatMatrix& x, int64_t group) {
  const int64_t n = x.rows * (x.cols == 0 ? 0 : NumGroups(x.cols, group));
  std::vector<float> absmax(n), min(n), max(n);
  reference::AbsMaxGroups(x, group, absmax.data());
  reference::MinMaxGroups(x, group, min.data(), max.data());
  const FloatMatrix row_of_absmax = {absmax.data(), DType::kF32, 1, n, n, 1};
  float absmax_all = 0;
  if (n > 0) reference::AbsMaxGroups(row_of_absmax, n, &absmax_all);
  std::vector<float> both = min;  // the overall range is the range of the groups' ranges
  both.insert(both.end(), max.begin(), max.end());
  float min_all = kInfinity, max_all = -kInfinity;
  if (n > 0) reference::MinMaxGroups({both.data(), DType::kF32, 1, 2 * n, 2 * n, 1}, 2 * n, &min_all, &max_all);
  for (Target target : SupportedTargets()) {
    SCOPED_TRACE(target);
    std::vector<float> got(n, -1), got2(n, -1);
    AbsMaxGroups(x, group, got.data(), target);
    EXPECT_EQ(Bits(got), Bits(absmax));
    MinMaxGroups(x, group, got.data(), got2.data(), target);
    EXPECT_EQ(Bits(got), Bits(min));
    EXPECT_EQ(Bits(got2), Bits(max));
    EXPECT_EQ(Bits({AbsMaxAll(x, target)}), Bits({absmax_all}));
    const Range range = MinMaxAll(x, target);
    EXPECT_EQ(Bits({range.min, range.max}), Bits({min_all, max_all}));
  }
}

template <class T>
class AbsMaxTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(AbsMaxTest, FloatTypes);

TYPED_TEST(AbsMaxTest, RowsOfAllLengths) {
  for (int64_t cols = 0; cols <= 140; ++cols) {
    SCOPED_TRACE(cols);
    for (Values values : {Values::kUsual, Values::kFinite}) {
      for (int64_t offset : {0, 1, 3}) {  // unaligned starts
        const auto data = TestFloats<TypeParam>(3 * cols + offset, values, static_cast<uint32_t>(cols));
        ExpectAsReference({data.data() + offset, kDTypeOf<TypeParam>, 3, cols, cols, 1}, std::max<int64_t>(cols, 1));
      }
    }
  }
}

TYPED_TEST(AbsMaxTest, GroupsInEveryLayout) {
  for (MatrixLayout layout : kMatrixLayouts) {
    for (auto [rows, cols] : {std::pair{1, 1}, {1, 37}, {37, 1}, {17, 64}, {65, 33}, {3, 1100}, {1100, 3}}) {
      const auto size = PlacementOf(layout, rows, cols).size;
      for (int64_t group : {1, 2, 16, 31, 32, 1000, 2000}) {
        SCOPED_TRACE(testing::Message() << layout << " [" << rows << "," << cols << "] group " << group);
        const auto data = TestFloats<TypeParam>(size, Values::kFinite, static_cast<uint32_t>(group));
        ExpectAsReference(MatrixOf(data, layout, rows, cols), group);
      }
    }
  }
}

// Any bit pattern: most rows have no NaN, and some have several of both signs.
TYPED_TEST(AbsMaxTest, NanWins) {
  const auto data = TestFloats<TypeParam>(400 * 43, Values::kAnyBits, 5);
  for (MatrixLayout layout : {MatrixLayout::kRowMajor, MatrixLayout::kTransposed, MatrixLayout::kReversed})
    for (int64_t group : {1, 7, 43}) ExpectAsReference(MatrixOf(data, layout, 400, 43), group);
  // A single NaN at each position of a row.
  for (uint32_t sign : {0u, 1u}) {
    for (int64_t at = 0; at < 70; ++at) {
      std::vector<TypeParam> row(70, RoundTo<TypeParam>(kInfinity));
      row[at] = RoundTo<TypeParam>(std::copysign(std::numeric_limits<double>::quiet_NaN(), sign ? -1.0 : 1.0));
      ExpectAsReference({row.data(), kDTypeOf<TypeParam>, 1, 70, 70, 1}, 70);
    }
  }
}

template <class T>
void CheckAllCodes() {
  const std::vector<T> codes = AllCodes<T>();
  ExpectAsReference({codes.data(), kDTypeOf<T>, 65536, 1, 1, 1}, 1);      // each code in its own row
  ExpectAsReference({codes.data(), kDTypeOf<T>, 32768, 2, 1, 32768}, 2);  // x and -x, including zeros
  ExpectAsReference({codes.data(), kDTypeOf<T>, 1024, 64, 64, 1}, 64);
}
TEST(AbsMax, AllBFloat16Codes) { CheckAllCodes<BFloat16>(); }
TEST(AbsMax, AllFloat16Codes) { CheckAllCodes<Float16>(); }

TEST(AbsMax, ValuesByHand) {
  const std::vector<float> x = {1, -3, 2, 0, -0.0f, 0, 1e-45f, -1e-40f, 0, -kInfinity, 5, kInfinity};
  float absmax[4], min[4], max[4];
  for (Target target : SupportedTargets()) {
    AbsMaxGroups({x.data(), DType::kF32, 4, 3, 3, 1}, 3, absmax, target);
    EXPECT_EQ(std::vector<float>(absmax, absmax + 4), (std::vector<float>{3, 0, 1e-40f, kInfinity}));
    EXPECT_FALSE(std::signbit(absmax[1]));
    MinMaxGroups({x.data(), DType::kF32, 4, 3, 3, 1}, 3, min, max, target);
    EXPECT_EQ(std::vector<float>(min, min + 4), (std::vector<float>{-3, 0, -1e-40f, -kInfinity}));
    EXPECT_EQ(std::vector<float>(max, max + 4), (std::vector<float>{2, 0, 1e-45f, kInfinity}));
    EXPECT_TRUE(std::signbit(min[1]));
    EXPECT_FALSE(std::signbit(max[1]));
  }
}

}  // namespace
}  // namespace aqt::kernels
