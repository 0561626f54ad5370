#include "aqt/transforms/precision/scaled.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/value.h"

namespace aqt {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Floats(const Value& value) {
  const Array numbers = Cast(*value.ToArray(), DType::kF32);
  return {numbers.View<float>().begin(), numbers.View<float>().end()};
}
float Float(const Value& value) { return Floats(value)[0]; }
Value Of(DType dtype, std::vector<float> values) {
  return Value(Cast(Array::FromSpan<float>(values, {static_cast<int64_t>(values.size())}), dtype));
}
Value Scale(float scale) { return Value(Array::Scalar(scale)); }

// The sum of the original's quickstart, in all modes.
TEST(Scaled, TheSumOfThePublicDocument) {
  const ScaledValue a = scaled::AsScaled(Of(DType::kF16, {1, 2}), Scale(1));
  const ScaledValue b = scaled::AsScaled(Of(DType::kF16, {3, 6}), Scale(2));
  EXPECT_THAT(Floats(b.data), ElementsAre(1.5f, 3.0f));
  const ScaledValue down = scaled::Add(a, b);
  EXPECT_THAT(Floats(down.data), ElementsAre(2.0f, 4.0f));
  EXPECT_EQ(Float(down.scale), 2);
  EXPECT_EQ(down.data.dtype(), DType::kF16);
  EXPECT_EQ(down.scale.dtype(), DType::kF32);
  const ScaledValue none = scaled::Add(a, b, {.rounding = ScaleRounding::kNone});
  EXPECT_FLOAT_EQ(Float(none.scale), 2.236068f);
  const ScaledValue up = scaled::Add(a, b, {.rounding = ScaleRounding::kUp});
  EXPECT_EQ(Float(up.scale), 4);
  const ScaledValue rescaled = scaled::DynamicRescaleMax(down);
  EXPECT_THAT(Floats(rescaled.data), ElementsAre(0.5f, 1.0f));
  EXPECT_EQ(Float(rescaled.scale), 8);
}

TEST(Scaled, PowersOfTwo) {
  const std::vector<float> numbers = {0, 1, -3, 0.3f, kInf, NAN, 1e-40f, 0x1.fffffep127f, 0x1p-126f, 0x1.8p126f};
  const scaled::Pow2Parts parts = scaled::Pow2Decompose(Of(DType::kF32, numbers));
  EXPECT_THAT(Floats(parts.scale), ElementsAre(0, 1, 2, 0.25f, kInf, kInf, 0, 0x1p127f, 0x1p-126f, 0x1p126f));
  const std::vector<float> mantissas = Floats(parts.mantissa);
  EXPECT_EQ(mantissas[2], -1.5f);
  EXPECT_EQ(mantissas[7], 0x1.fffffep0f);
  EXPECT_TRUE(std::isnan(mantissas[5]));
  EXPECT_THAT(Floats(scaled::Pow2Round(Of(DType::kF16, {4, 5, 65504}), ScaleRounding::kUp)), ElementsAre(8, 8, kInf));
  EXPECT_THAT(Floats(scaled::Pow2Truncate(Of(DType::kBF16, {-5, 7, 0}))), ElementsAre(-4, 4, 0));
  // Numbers that are subnormal in their dtype become zeros with their sign.
  const std::vector<float> tiny = Floats(scaled::Pow2Truncate(Of(DType::kF16, {-0x1p-21f, 0x1p-15f, 0x1.8p-14f})));
  EXPECT_THAT(tiny, ElementsAre(0, 0, 0x1p-14f));
  EXPECT_TRUE(std::signbit(tiny[0]));
  EXPECT_FALSE(std::signbit(tiny[1]));
  EXPECT_THAT(Floats(scaled::AsE8M0(Of(DType::kF32, {1, 3, -1, 0, kInf, 0x1p-126f}))),
              ElementsAre(127, 128, 0, 0, 255, 1));
  const Value bytes(Array::Of<uint8_t>({0, 1, 127, 254, 255}, {5}));
  EXPECT_THAT(Floats(scaled::FromE8M0(bytes, DType::kF32)), ElementsAre(0x1p-127f, 0x1p-126f, 1, 0x1p127f, kInf));
}

// Two operands of zeros: the second one's scale wins.
TEST(Scaled, MaxOfZerosHasTheScaleOfTheSecond) {
  const ScaledValue x{Of(DType::kF32, {0, 0}), Scale(2)}, y{Of(DType::kF32, {0, 0}), Scale(8)};
  EXPECT_EQ(Float(scaled::Max(x, y, {}).scale), 8);
  EXPECT_EQ(Float(scaled::Min(y, x, {}).scale), 2);
}

TEST(Scaled, AZeroScaleStaysZero) {
  const ScaledValue zero{Of(DType::kF32, {0, 0}), Scale(0)}, x{Of(DType::kF32, {1, 2}), Scale(4)};
  for (const ScaledValue& sum : {scaled::Add(zero, x), scaled::Add(x, zero), scaled::Sub(x, zero)}) {
    EXPECT_THAT(Floats(scaled::ToArray(sum)), ElementsAre(4, 8));
  }
  const ScaledValue both = scaled::Add(zero, zero);
  EXPECT_THAT(Floats(both.data), ElementsAre(0, 0));
  EXPECT_EQ(Float(both.scale), 0);
  const Value pred(Array::Of<bool>({true, false}, {2}));
  EXPECT_THAT(Floats(scaled::Select(pred, zero, zero).data), ElementsAre(0, 0));
  const std::vector<float> original =
      Floats(scaled::Select(pred, zero, zero, {.compat = ScalifyCompat::Original()}).data);
  EXPECT_TRUE(std::isnan(original[0]));
}

// An array with a scale of 0 is 0, whatever its data; the original compares the data.
TEST(Scaled, MaxOfAZeroScale) {
  const ScaledValue x{Of(DType::kF32, {-1, 2}), Scale(4)}, zero{Of(DType::kF32, {1.5f, 4.5f}), Scale(0)};
  EXPECT_THAT(Floats(scaled::ToArray(scaled::Max(x, zero))), ElementsAre(0, 8));
  EXPECT_THAT(Floats(scaled::Max(x, zero, {.compat = ScalifyCompat::Original()}).data), ElementsAre(1.5f, 4.5f));
}

TEST(Scaled, DynamicRescaleOfExtremes) {
  const ScaledValue tiny = scaled::DynamicRescaleL2({Of(DType::kF32, {1e-6f, 0}), Scale(2)});
  EXPECT_EQ(Float(tiny.scale), 2 * 0x1p-14f);
  EXPECT_FLOAT_EQ(Floats(scaled::ToArray(tiny))[0], 2e-6f);
  const ScaledValue infinite{Of(DType::kF32, {kInf, 1}), Scale(2)};
  const ScaledValue original = scaled::DynamicRescaleMax(infinite, {.compat = ScalifyCompat::Original()});
  EXPECT_EQ(Float(original.scale), kInf);
  EXPECT_EQ(Floats(original.data)[1], 0);
  // Ours has no norm to divide by, so it keeps the value.
  const ScaledValue ours = scaled::DynamicRescaleMax(infinite);
  EXPECT_EQ(Float(ours.scale), 2);
  EXPECT_THAT(Floats(ours.data), ElementsAre(kInf, 1));
}

// A training step that rescales repeatedly keeps a nonzero scale for zeros and a finite one for large data.
TEST(Scaled, RescalingStaysInTheRangeOfScales) {
  ScaledValue zeros{Of(DType::kF32, {0, 0}), Scale(1)}, large{Of(DType::kF32, {0x1p100f, 0}), Scale(0x1p100f)};
  for (int i = 0; i < 20; ++i) zeros = scaled::DynamicRescaleMax(zeros);
  EXPECT_EQ(Float(zeros.scale), 0x1p-126f);
  large = scaled::DynamicRescaleMax(large);
  EXPECT_EQ(Float(large.scale), 0x1p127f);
  EXPECT_THAT(Floats(large.data), ElementsAre(0x1p73f, 0));
}

TEST(Scaled, ScalarsThatAreNotFiniteOrOutOfRange) {
  const auto split = [](float number, DType scale, const ScalifyRules& rules = {}) {
    return scaled::MakeScaledScalar(Value(Array::Scalar(number)), scale, rules);
  };
  EXPECT_EQ(Float(split(-kInf, DType::kF32).scale), 1);
  EXPECT_EQ(Float(split(-kInf, DType::kF32).data), -kInf);
  EXPECT_EQ(Float(split(-kInf, DType::kF32, {.compat = ScalifyCompat::Original()}).scale), kInf);
  EXPECT_EQ(Float(split(NAN, DType::kF32).scale), 1);
  EXPECT_EQ(Float(split(0, DType::kF32).scale), 0);
  // Scales of numbers are at most 2^63, and within the range of f16.
  EXPECT_EQ(Float(split(0x1.8p100f, DType::kF32).scale), 0x1p63f);
  EXPECT_EQ(Float(split(0x1.8p100f, DType::kF32).data), 0x1.8p37f);
  EXPECT_EQ(Float(split(0x1.8p20f, DType::kF16).scale), 0x1p15f);
  EXPECT_EQ(Float(split(0x1.8p-30f, DType::kF16).data), 0x1.8p-6f);
  EXPECT_EQ(Float(split(0x1p-140f, DType::kF32).data), 0x1p-77f);
}

// A scale of 2 and 1000 elements: 2^1000 is out of range.
TEST(Scaled, PowersKeepFiniteScales) {
  const ScaledValue x{Of(DType::kF32, std::vector<float>(1000, 0.5f)), Scale(2)};
  EXPECT_EQ(Float(scaled::ToArray(scaled::ReduceProd(x, {0}, false))), 1);
  EXPECT_TRUE(
      std::isnan(Float(scaled::ToArray(scaled::ReduceProd(x, {0}, false, {.compat = ScalifyCompat::Original()})))));
  const ScaledValue inverse = scaled::IntegerPow({Of(DType::kF32, {0, 1}), Scale(0)}, -1);
  EXPECT_EQ(Floats(inverse.data)[0], kInf);
  EXPECT_TRUE(std::isfinite(Float(inverse.scale)));
}

// Factors outside of f16's range for scales work.
TEST(Scaled, ScalesBeyondF16) {
  const ScaledValue x{Of(DType::kF16, {0, 0x1p-10f}), Scale(0x1p20f)};
  EXPECT_THAT(Floats(scaled::ToArray(x)), ElementsAre(0, 0x1p10f));
  EXPECT_THAT(Floats(scaled::SetScaling(x, Scale(1)).data), ElementsAre(0, 0x1p10f));
  EXPECT_THAT(Floats(scaled::AsScaled(Of(DType::kF16, {0, 3}), Scale(0x1p17f)).data), ElementsAre(0, 0x1.8p-16f));
  EXPECT_TRUE(std::isnan(Floats(scaled::ToArray(x, std::nullopt, {.compat = ScalifyCompat::Original()}))[0]));
}

}  // namespace
}  // namespace aqt
