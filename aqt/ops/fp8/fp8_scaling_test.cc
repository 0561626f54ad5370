#include "aqt/ops/fp8/fp8_scaling.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using ::aqt::testing::RandomArray;
using ::aqt::testing::StatusIs;
using ::aqt::testing::TraceWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kE4 = DType::kE4M3FN, kE5 = DType::kE5M2;

Value Floats(std::vector<float> values) {
  return Value(Array::FromSpan<float>(values, {static_cast<int64_t>(values.size())}));
}
std::vector<float> Numbers(const Value& value) {
  const absl::StatusOr<Array> array = value.ToArray();
  EXPECT_THAT(array, IsOk());
  if (!array.ok()) return {};
  const Array numbers = Cast(*array, DType::kF32);
  return {numbers.View<float>().begin(), numbers.View<float>().end()};
}
std::vector<float> Codes(std::vector<float> x, DType dtype, double scale = 1) {
  return Numbers(ops::Fp8Quantize(Floats(std::move(x)), scale, dtype));
}

// ---- codes

TEST(Fp8QuantizeTest, Examples) {
  EXPECT_THAT(Codes({17, 19, 449, 1000, 0.001f, 0x1p-10f, 1.5f * 0x1p-10f}, kE4),
              ElementsAre(16, 20, 448, 448, 0x1p-9f, 0, 0x1p-9f));
  // Ties go to the even code. Values beyond the largest number saturate, and NaN stays.
  EXPECT_THAT(Codes({21, 23, -kInf, kInf, -448}, kE4), ElementsAre(20, 24, -448, 448, -448));
  EXPECT_THAT(Codes({9, 11, 1e6f, -kInf, 0x1p-16f, 0x1p-18f}, kE5), ElementsAre(8, 12, 57344, -57344, 0x1p-16f, 0));
  EXPECT_TRUE(std::isnan(Codes({NAN}, kE4)[0]));
  EXPECT_TRUE(std::isnan(Codes({NAN}, kE5)[0]));
}

TEST(Fp8QuantizeTest, TheScaleIsWhatACodeStandsFor) {
  EXPECT_THAT(Codes({17, 19, 1000}, kE4, 8), ElementsAre(2, 2.5f, 128));
  const Value x = Floats({17, 19, 1000});
  EXPECT_THAT(Numbers(ops::Fp8QuantizeDequantize(x, 8.0, kE4)), ElementsAre(16, 20, 1024));
  // A scale that is not a power of two divides; it does not multiply by its rounded inverse.
  EXPECT_THAT(Numbers(ops::Fp8QuantizeDequantize(Floats({0.3f * 17}), 0.3, kE4)), ElementsAre(16 * 0.3f));
}

// The definition, element by element, in f64. The quotient of two f32 numbers rounded to the dtype equals their f64
// quotient rounded once, because 53 bits are more than 2 * 24 + 2.
float Reference(float x, float scale, DType dtype, DType computes) {
  const auto rounded = [&](double v) -> double {
    if (computes == DType::kBF16) return ToFloat(RoundTo<BFloat16>(v));
    if (computes == DType::kF16) return ToFloat(RoundTo<Float16>(v));
    return RoundTo<float>(v);
  };
  const double max = dtype == kE4 ? 448 : 57344;
  double y = rounded(rounded(x) / rounded(scale));
  if (y > max) y = max;
  if (y < -max) y = -max;
  return dtype == kE4 ? ToFloat(RoundTo<Float8E4M3FN>(y)) : ToFloat(RoundTo<Float8E5M2>(y));
}

// A small range of exponents around each type's limits.
Array WideNumbers(const Aval& aval, uint64_t seed) {
  Random random(seed);
  ArrayBuilder x(DType::kF32, aval.shape);
  for (float& v : x.Mutable<float>()) {
    v = static_cast<float>(random.Uniform(-2, 2) * std::exp2(random.Uniform(-24, 18)));
    if (random.Below(50) == 0) v = random.Below(2) == 0 ? kInf : NAN;
  }
  return Cast(std::move(x).Build(), aval.dtype);
}

TEST(Fp8QuantizeTest, IsTheReference) {
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType computes : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType dtype : {kE4, kE5}) {
        for (const float scale : {1.0f, 0.015625f, 8.0f, 0.3f, 3.0f}) {
          const Array x = WideNumbers({from, {41}}, 7);
          const std::vector<float> in = Numbers(Value(x));
          const std::vector<float> got = Numbers(ops::Fp8Quantize(Value(x), double{scale}, dtype, computes));
          ASSERT_EQ(got.size(), in.size());
          for (size_t i = 0; i < in.size(); ++i) {
            const float want = Reference(in[i], scale, dtype, computes);
            EXPECT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want)))
                << in[i] << " / " << scale << " in " << ToString(computes) << ": " << got[i] << ", expected " << want;
          }
        }
      }
    }
  }
}

TEST(Fp8QuantizeTest, GradientsPassWhereXWasClipped) {
  const Array x = Array::Of<float>({1000, -2, 0.5f}, {3}), weights = Array::Of<float>({5, 6, 7}, {3});
  absl::StatusOr<Program> program = TraceWith(
      [&](In in) {
        return std::vector<Value>{ops::ReduceSum(ops::Fp8QuantizeDequantize(in[0], 1.0, kE4) * Value(weights))};
      },
      {x});
  ASSERT_THAT(program, IsOk());
  program = Grad(*program, {{0}});
  ASSERT_THAT(program, IsOk());
  EXPECT_TRUE(BitEqual((*Eval(*program, {x}))[0], weights));
}

TEST(Fp8QuantizeTest, Refuses) {
  const auto status = [](const Value& value) { return value.ToArray().status(); };
  EXPECT_THAT(status(ops::Fp8Quantize(Floats({1}), 1.0, DType::kF16)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("quantizes to f16, expected e4m3fn or e5m2")));
  EXPECT_THAT(status(ops::Fp8Quantize(Floats({1}), Floats({1, 2}), kE4)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the scale is f32[2], expected one f32 number")));
  EXPECT_THAT(status(ops::Fp8Quantize(Value(Array::Scalar<int32_t>(1)), 1.0, kE4)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected f32, bf16 or f16")));
  EXPECT_THAT(status(ops::Fp8Quantize(Floats({1}), 1.0, kE4, DType::kF64)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("compute_dtype is f64")));
}

// ---- scales

std::vector<float> Scales(std::vector<float> amax, double previous, const Fp8Compat& compat = {}, double max = 448,
                          int margin = 0) {
  return Numbers(ops::Fp8ComputeScale(Floats(std::move(amax)), previous, max, margin, compat));
}

TEST(Fp8ComputeScaleTest, PowersOfTwo) {
  EXPECT_THAT(Scales({448, 449, 447, 1, 57344, 3, 0.4375f}, 1), ElementsAre(1, 2, 1, 0x1p-8f, 128, 0x1p-7f, 0x1p-10f));
  EXPECT_THAT(Scales({57344, 1}, 1, {}, 57344), ElementsAre(1, 0x1p-15f));
  EXPECT_THAT(Scales({448, 1}, 1, {}, 448, 1), ElementsAre(2, 0x1p-7f));
  EXPECT_THAT(Scales({448, 1}, 1, {}, 448, -2), ElementsAre(0.25f, 0x1p-10f));
  // The neighbours of 448, and of every power of two times 448: the exponent is exact.
  for (int k = -90; k <= 90; ++k) {
    const float amax = std::ldexp(448.0f, -k), scale = std::ldexp(1.0f, -k);
    EXPECT_THAT(Scales({std::nextafter(amax, 0.0f), amax, std::nextafter(amax, kInf)}, 1),
                ElementsAre(scale, scale, 2 * scale))
        << k;
  }
}

TEST(Fp8ComputeScaleTest, WithoutAMagnitudeTheScaleStays) {
  EXPECT_THAT(Scales({0, NAN, kInf, 0x1p-130f}, 0.25), ElementsAre(0.25f, 0.25f, 0.25f, 0.25f));
  const std::vector<float> original = Scales({0, NAN, kInf, 0x1p-130f}, 0.25, Fp8Compat::Original());
  EXPECT_THAT(original, ElementsAre(4, 4, 0.25f, 4));
  // Each switch makes one difference.
  EXPECT_THAT(Scales({0, NAN, kInf}, 0.25, {.all_zero_amax_flips_scale = true}), ElementsAre(4, 0.25f, 0.25f));
  EXPECT_THAT(Scales({0, NAN, kInf}, 0.25, {.nan_amax_flips_scale = true}), ElementsAre(0.25f, 4, 0.25f));
}

TEST(Fp8ComputeScaleTest, ScalesStayNormalNumbers) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_THAT(Scales({0x1p-126f, 1e-36f, largest}, 1), ElementsAre(0x1p-126f, 0x1p-126f, 0x1p120f));
  EXPECT_THAT(Scales({largest}, 1, {}, 448, 20), ElementsAre(0x1p126f));
  const Fp8Compat original = Fp8Compat::Original();
  EXPECT_THAT(Scales({0x1p-126f, 1e-36f, 3e-36f, largest}, 1, original), ElementsAre(0, 0, 0x1p-126f, 0x1p120f));
  EXPECT_THAT(Scales({largest}, 1, original, 448, 20), ElementsAre(kInf));
}

TEST(Fp8ComputeScaleTest, Refuses) {
  const auto status = [](double max, int margin) {
    return ops::Fp8ComputeScale(Floats({1}), 1.0, max, margin).ToArray().status();
  };
  EXPECT_THAT(status(0.5, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fp8_max = 0.5")));
  EXPECT_THAT(status(NAN, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fp8_max")));
  EXPECT_THAT(status(448, 65), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("margin = 65")));
}

// ---- histories

struct Recorded {
  std::vector<float> scales, history;
};
Recorded Steps(std::vector<float> magnitudes, std::vector<float> history, float scale, const Fp8ScaleRule& rule = {}) {
  Recorded result;
  Fp8TensorState state{Floats({scale}), Floats(std::move(history))};
  for (const float a : magnitudes) {
    state = ops::Fp8Update(Floats({a / 2, -a}), state, rule);
    result.scales.push_back(Numbers(state.scale)[0]);
  }
  result.history = Numbers(state.amax_history);
  return result;
}

TEST(Fp8UpdateTest, TheNewestIsFirstAndTheOneBeforeItLast) {
  const Recorded steps = Steps({1, 5, 2, 3, 0.5f, 0.25f, 9}, {0, 0, 0, 0}, 1);
  EXPECT_THAT(steps.scales, ElementsAre(0x1p-8f, 0x1p-6f, 0x1p-6f, 0x1p-6f, 0x1p-6f, 0x1p-7f, 0x1p-5f));
  EXPECT_THAT(steps.history, ElementsAre(9, 3, 0.5f, 0.25f));
  const Recorded gradients = Steps({1, 5}, {0, 0}, 1, {.dtype = kE5});
  EXPECT_THAT(gradients.scales, ElementsAre(0x1p-15f, 0x1p-13f));
  EXPECT_THAT(Steps({1}, {0, 0}, 1, {.margin = 1}).scales, ElementsAre(0x1p-7f));
}

TEST(Fp8UpdateTest, AHistoryOfOneHasTheLastMagnitude) {
  const Recorded steps = Steps({448, 1, 0, 896}, {0}, 1);
  EXPECT_THAT(steps.scales, ElementsAre(1, 0x1p-8f, 0x1p-8f, 2));
  EXPECT_THAT(steps.history, ElementsAre(896));
}

TEST(Fp8UpdateTest, ZerosNanAndInfinity) {
  // All zero: the scale stays. In the original it flips at each step until there is a nonzero number.
  EXPECT_THAT(Steps({0, 0, 0, 0, 5}, {0, 2}, 0.25f).scales, ElementsAre(0.25f, 0.25f, 0.25f, 0.25f, 0x1p-6f));
  EXPECT_THAT(Steps({0, 0, 0, 0, 5}, {0, 2}, 0.25f, {.compat = Fp8Compat::Original()}).scales,
              ElementsAre(4, 0.25f, 4, 0.25f, 0x1p-6f));
  // A NaN or an infinity stays in the window for its length in steps, and the scale does not change.
  EXPECT_THAT(Steps({448, NAN, 1, 1, 1}, {0, 0, 0}, 1).scales, ElementsAre(1, 1, 1, 1, 0x1p-8f));
  EXPECT_THAT(Steps({448, kInf, 1, 1, 1}, {0, 0, 0}, 1).scales, ElementsAre(1, 1, 1, 1, 0x1p-8f));
}

TEST(Fp8UpdateTest, Refuses) {
  const auto status = [](const Value& history) {
    return ops::Fp8Update(Floats({1}), {Floats({1}), history}).scale.ToArray().status();
  };
  EXPECT_THAT(status(Value(Array::Zeros(DType::kF32, {0}))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the history is f32[0], expected f32[length]")));
  EXPECT_THAT(status(Value(Array::Zeros(DType::kBF16, {3}))), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Fp8AmaxTest, OfShardsIsThatOfTheWhole) {
  const Array x = RandomArray({DType::kBF16, {8, 24}}, 3, -9, 9);
  std::vector<Value> local;
  for (int64_t i = 0; i < 4; ++i) local.push_back(ops::Fp8Amax(ops::Slice(Value(x), {2 * i, 0}, {2 * i + 2, 24})));
  const std::vector<float> whole = Numbers(ops::Fp8Amax(Value(x)));
  EXPECT_EQ(Numbers(ops::Fp8Amax(ops::Concatenate(local, 0))), whole);
  EXPECT_EQ(Numbers(ops::Fp8Amax(Value(Array::Zeros(DType::kF32, {0, 3})))), std::vector<float>{0});
  EXPECT_TRUE(std::isnan(Numbers(ops::Fp8Amax(Floats({1, NAN, 2})))[0]));
}

// ---- the kernels and the basic operations

TEST(Fp8ScalingTest, OperationsAreTheirExpansionsBitForBit) {
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    const DType from = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[random.Below(3)];
    const DType computes = random.Below(2) == 0 ? from : DType::kF32;
    const int64_t length = 1 + random.Below(4), n = random.Below(20) == 0 ? 70000 : random.Below(9);
    Fp8ScaleRule rule{.dtype = random.Below(2) == 0 ? kE4 : kE5, .margin = static_cast<int>(random.Below(5)) - 2};
    if (random.Below(2) == 0) rule.compat = Fp8Compat::Original();
    // Powers of two and others, including scales for which no magnitude fits.
    const double exponent = random.Uniform(-8, 8) * (random.Below(4) == 0 ? 16 : 1);
    const float scale = static_cast<float>(std::exp2(random.Below(3) == 0 ? exponent : std::round(exponent)));
    const Array x = WideNumbers({from, {n}}, 100 + i);
    const std::vector<Array> args = {x, Array::Of<float>({scale}, {1}), WideNumbers({DType::kF32, {length}}, 900 + i)};
    const absl::StatusOr<Program> program = TraceWith(
        [&](In in) {
          const Fp8TensorState next = ops::Fp8Update(in[0], {in[1], in[2]}, rule);
          return std::vector<Value>{ops::Fp8Quantize(in[0], in[1], rule.dtype, computes),
                                    ops::Fp8QuantizeDequantize(in[0], in[1], rule.dtype, computes), next.scale,
                                    next.amax_history};
        },
        args);
    ASSERT_THAT(program, IsOk());
    const absl::StatusOr<Program> expanded = ExpandFully(*program);
    ASSERT_THAT(expanded, IsOk());
    const absl::StatusOr<std::vector<Array>> got = Eval(*program, args), want = Eval(*expanded, args);
    ASSERT_THAT(got, IsOk());
    ASSERT_THAT(want, IsOk());
    for (size_t o = 0; o < want->size(); ++o) {
      EXPECT_TRUE(SameBits((*got)[o], (*want)[o])) << absl::StrCat("case ", i, " output ", o, " scale ", scale);
    }
  }
}

}  // namespace
}  // namespace aqt
