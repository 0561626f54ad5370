#include "aqt/core/array.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShapeTest, CountsAndPrints) {
  EXPECT_EQ(Shape().num_elements(), 1);
  EXPECT_EQ(Shape({2, 0, 3}).num_elements(), 0);
  EXPECT_EQ(Shape({2, 3}).ToString(), "[2,3]");
  EXPECT_THAT(DenseStrides({2, 3, 4}), ElementsAre(12, 4, 1));
}

TEST(ShapeTest, CheckedNumElementsRefusesOverflowAndNegative) {
  EXPECT_EQ(*CheckedNumElements({3, 4}), 12);
  EXPECT_EQ(*CheckedNumElements({int64_t{1} << 62, 0, int64_t{1} << 62}), 0);
  EXPECT_EQ(*CheckedNumElements({int64_t{1} << 60}, 4), int64_t{1} << 60);
  EXPECT_EQ(CheckedNumElements({int64_t{1} << 61}, 8).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckedNumElements({int64_t{1} << 32, int64_t{1} << 32}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(CheckedNumElements({2, -1}).status().message()), HasSubstr("[2,-1]"));
}

TEST(ShapeTest, NormalizeAxes) {
  EXPECT_THAT(*NormalizeAxes({-1, 0}, 3), ElementsAre(2, 0));
  EXPECT_EQ(NormalizeAxes({3}, 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(NormalizeAxes({1, -2}, 3).status().message()), HasSubstr("twice"));
}

TEST(ArrayTest, IsAlignedAndShared) {
  const Array a = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0);
  const Array b = a;
  EXPECT_EQ(a.data(), b.data());
  EXPECT_EQ(a.aval().ToString(), "f32[2,3]");
  EXPECT_EQ((*a.Reshaped({3, 2})).data(), a.data());
  EXPECT_EQ(a.Reshaped({4}).status().code(), absl::StatusCode::kInvalidArgument);
  const int64_t large = int64_t{1} << 32;  // large * large is 0 modulo 2^64
  EXPECT_THAT(std::string(Array::Zeros(DType::kF32, {0}).Reshaped({large, large}).status().message()),
              HasSubstr("more elements than fit into memory"));
  EXPECT_EQ(a.Reshaped({-2, -3}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ArrayTest, CopyOfFollowsStrides) {
  const std::vector<int32_t> values = {1, 2, 3, 4, 5, 6};
  const ArrayRef transposed(DType::kS32, {3, 2}, Strides{1, 3}, values.data());
  EXPECT_FALSE(transposed.IsDense());
  EXPECT_THAT(Array::CopyOf(transposed).View<int32_t>(), ElementsAre(1, 4, 2, 5, 3, 6));
  const ArrayRef reversed(DType::kS32, {6}, Strides{-1}, values.data() + 5);
  EXPECT_THAT(Array::CopyOf(reversed).View<int32_t>(), ElementsAre(6, 5, 4, 3, 2, 1));
  const ArrayRef repeated(DType::kS32, {2, 2}, Strides{0, 1}, values.data());
  EXPECT_THAT(Array::CopyOf(repeated).View<int32_t>(), ElementsAre(1, 2, 1, 2));
}

TEST(ArrayTest, DensityIgnoresStridesOfOnesAndEmpties) {
  const float x = 0;
  EXPECT_TRUE(ArrayRef(DType::kF32, {1, 1}, Strides{7, 9}, &x).IsDense());
  EXPECT_TRUE(ArrayRef(DType::kF32, {0, 5}, Strides{7, 9}, &x).IsDense());
  EXPECT_FALSE(ArrayRef(DType::kF32, {2, 5}, Strides{6, 1}, &x).IsDense());
}

TEST(ArrayTest, BitEqualIsOfBytes) {
  EXPECT_TRUE(BitEqual(Array::Scalar(NAN), Array::Scalar(NAN)));
  EXPECT_FALSE(BitEqual(Array::Scalar(0.0f), Array::Scalar(-0.0f)));
  EXPECT_FALSE(BitEqual(Array::Scalar<int8_t>(0), Array::Scalar<uint8_t>(0)));
  EXPECT_TRUE(BitEqual(Array::Zeros(DType::kF32, {0}), Array()));
}

TEST(ArrayTest, CastAndCopyCheckShapes) {
  const Array a = Array::Of<float>({1.5f, -2.5f, 300.f}, {3});
  EXPECT_THAT(Cast(a, DType::kS8).View<int8_t>(), ElementsAre(1, -2, 127));
  ArrayBuilder out(DType::kF32, {2});
  EXPECT_EQ(CopyArray(a, out.ref()).code(), absl::StatusCode::kInvalidArgument);
  ArrayBuilder other(DType::kF64, {3});
  EXPECT_EQ(CopyArray(a, other.ref()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CastArray(a, other.ref()).ok());
}

}  // namespace
}  // namespace aqt
