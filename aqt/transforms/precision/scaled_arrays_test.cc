#include "aqt/transforms/precision/scaled_arrays.h"

#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/precision/scalify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::Pair;

const Slot kW{SlotKind::kParam, "w"}, kB{SlotKind::kParam, "b"}, kCount{SlotKind::kStat, "count"};

// w is scaled, b is plain.
SlotValues Values() {
  return {{kW, Array::Of<float>({1, 2}, {2})},
          {ScaleSlot(kW), Array::Scalar(8.0f)},
          {kB, Array::Of<float>({3, 6}, {2})},
          {kCount, Array::Scalar<int32_t>(5)}};
}

void ExpectEqual(const SlotValues& got, const SlotValues& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [slot, array] : want) {
    ASSERT_TRUE(got.contains(slot)) << slot.ToString();
    EXPECT_TRUE(BitEqual(got.at(slot), array)) << slot.ToString() << ": " << ContentsText(got.at(slot));
  }
}

// A scaled array is one leaf.
TEST(ScaledArrays, ThereAndBack) {
  const ScaledArrays arrays = ScaledArraysOf(Values());
  EXPECT_EQ(arrays.size(), 3u);
  EXPECT_EQ(arrays.at(kW).scale->View<float>()[0], 8);
  EXPECT_FALSE(arrays.at(kB).scale.has_value());
  ExpectEqual(SlotValuesOf(arrays), Values());
  EXPECT_THAT(ScaleDTypes(Values()), ElementsAre(Pair(kW, DType::kF32)));
}

TEST(ScaledArrays, AsScaled) {
  SlotValues want = Values();
  want[kB] = Array::Of<float>({1.5, 3}, {2});
  want[ScaleSlot(kB)] = Array::Scalar(2.0f);
  ExpectEqual(*AsScaledArrays(Values(), Array::Scalar(2.0f)), want);
  // The dtype of a scale of 1 is kept.
  want[kB] = Values().at(kB);
  want[ScaleSlot(kB)] = Cast(Array::Scalar(1.0f), DType::kF16);
  ExpectEqual(*AsScaledArrays(Values(), want[ScaleSlot(kB)]), want);
  // A scalar becomes mantissa and power of two.
  const Slot scale = ScaleSlot(kB);
  ExpectEqual(*AsScaledArrays({{kB, Array::Scalar(-0.3f)}}),
              {{kB, Array::Scalar(-1.2f)}, {scale, Array::Scalar(0.25f)}});
  EXPECT_THAT(AsScaledArrays({}, Array::Scalar<int32_t>(2)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"the scale is s32[], expected a float scalar"}));
}

// As in the original, each factor is converted before the product: in f16 a scale of 2^20 is infinite, and 0 times that
// is NaN.
TEST(ScaledArrays, AsArrays) {
  SlotValues want = Values();
  want.erase(ScaleSlot(kW));
  want[kW] = Array::Of<float>({8, 16}, {2});
  ExpectEqual(*AsArrays(Values()), want);
  const SlotValues large = {{kW, Array::Of<float>({1}, {1})}, {ScaleSlot(kW), Array::Scalar(0x1p20f)}};
  EXPECT_EQ(Cast(AsArrays(large, DType::kF16)->at(kW), DType::kF32).View<float>()[0],
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(AsArrays(Values(), DType::kBF16)->at(kCount).dtype(), DType::kBF16);
}

TEST(ScaledArrays, WithDataDType) {
  const SlotValues floats = WithDataDType(Values(), DType::kF16, /*floats_only=*/true);
  EXPECT_EQ(floats.at(kW).dtype(), DType::kF16);
  EXPECT_EQ(floats.at(ScaleSlot(kW)).dtype(), DType::kF32);
  EXPECT_EQ(floats.at(kCount).dtype(), DType::kS32);
  EXPECT_EQ(WithDataDType(Values(), DType::kF16).at(kCount).dtype(), DType::kF16);
}

TEST(ScaledArrays, MapAndAll) {
  const auto drop_scale = [](const ScaledArray& x) -> absl::StatusOr<ScaledArray> { return ScaledArray{x.data}; };
  SlotValues want = Values();
  want.erase(ScaleSlot(kW));
  ExpectEqual(*MapScaledArrays(Values(), drop_scale), want);
  const auto fails = [](const ScaledArray& x) -> absl::StatusOr<ScaledArray> {
    if (x.scale.has_value()) return absl::OutOfRangeError("too large");
    return x;
  };
  EXPECT_THAT(MapScaledArrays(Values(), fails), FailsWith(absl::StatusCode::kOutOfRange, {"param \"w\"", "too large"}));
  const auto is_scaled = [](const ScaledArray& x) { return x.scale.has_value(); };
  EXPECT_FALSE(AllScaledArrays(Values(), is_scaled));
  EXPECT_TRUE(AllScaledArrays({}, is_scaled));
  EXPECT_TRUE(AllScaledArrays({{kW, Values().at(kW)}, {ScaleSlot(kW), Values().at(ScaleSlot(kW))}}, is_scaled));
}

}  // namespace
}  // namespace aqt
