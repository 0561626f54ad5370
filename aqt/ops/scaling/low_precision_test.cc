// tests/e2e/older_layers_test.cc has recorded values. This file tests the rules that they cannot show, the expansion of
// the sum, and what is refused.

#include "aqt/ops/scaling/low_precision.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::RunBothWays;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// All numbers of the format, positive and ascending.
std::vector<double> Numbers(const SmallFloat& format) {
  std::vector<double> numbers = {0};
  for (int e = format.min_exponent; e <= format.max_exponent; ++e) {
    for (int i = 0; i < 1 << format.mantissa_bits; ++i) {
      numbers.push_back(std::ldexp(1 + std::ldexp(i, -format.mantissa_bits), e));
    }
  }
  return numbers;
}

// By the definition: the nearest number as if there were no smallest one, the even one at a tie, at most the largest,
// and 0 below the smallest; 0 for a subnormal number.
float ByDefinition(const SmallFloat& format, float x) {
  if (!std::isfinite(x)) return x;
  if (std::abs(x) < 0x1p-126f) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(x) - format.mantissa_bits);
  const double rounded = std::min(std::nearbyint(std::abs(double{x}) / unit) * unit, Numbers(format).back());
  return rounded < Numbers(format)[1] ? 0.0f : static_cast<float>(std::copysign(rounded, x));
}

TEST(LowPrecisionTest, RoundsByTheDefinition) {
  for (const SmallFloat& format : {SmallFloat{-6, 8, 3}, SmallFloat{-14, 15, 2}, SmallFloat{-2, 1, 4},
                                   SmallFloat{0, 0, 5}, SmallFloat{-126, 127, 1}}) {
    std::vector<float> x = {0, 0x1p-149f, 0x1p-127f, 3e38f, std::numeric_limits<float>::infinity()};
    for (const double v : Numbers(format)) {
      // The number, its neighbours, the midpoint to the next one and the midpoint's neighbours.
      const float number = static_cast<float>(v),
                  middle = static_cast<float>(v * (1 + std::ldexp(0.5, -format.mantissa_bits)));
      for (const float near : {number, middle}) {
        x.insert(x.end(), {near, std::nextafter(near, 0.0f), std::nextafter(near, 1e38f)});
      }
    }
    const size_t positive = x.size();
    for (size_t i = 0; i < positive; ++i) x.push_back(-x[i]);
    const auto n = static_cast<int64_t>(x.size());
    ArrayBuilder numbers(DType::kF32, {n});
    for (int64_t i = 0; i < n; ++i) numbers.Mutable<float>()[i] = x[i];
    const absl::StatusOr<std::vector<Array>> rounded =
        RunBothWays([&](In in) { return Values{ops::RoundToSmallFloat(in[0], format)}; }, {std::move(numbers).Build()});
    ASSERT_THAT(rounded, IsOk());
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ((*rounded)[0].View<float>()[i], ByDefinition(format, x[i])) << x[i];
      EXPECT_EQ(format.Round(x[i]), ByDefinition(format, x[i])) << x[i];
    }
  }
  EXPECT_TRUE(std::isnan(SmallFloat().Round(std::numeric_limits<float>::quiet_NaN())));
}

TEST(LowPrecisionTest, OfBf16IsThatOfF32) {
  const Array x = RandomArray({DType::kBF16, {500}}, 1, -600, 600);
  for (const SmallFloat& format : {SmallFloat{-6, 8, 3}, SmallFloat{-6, 8, 10}}) {
    const absl::StatusOr<Array> got = ops::RoundToSmallFloat(Value(x), format).ToArray();
    const absl::StatusOr<Array> want = ops::RoundToSmallFloat(Value(Cast(x, DType::kF32)), format).ToArray();
    ASSERT_THAT(got, IsOk());
    EXPECT_TRUE(BitEqual(*got, Cast(*want, DType::kBF16)));
  }
}

// One equation, with the bits of its expansion: sequential additions.
TEST(LowPrecisionTest, SumsAsItsExpansion) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const SmallFloat& format : {SmallFloat{-6, 8, 3}, SmallFloat{-6, 4, 10}}) {
      const Array x = RandomArray({dtype, {5, 12}}, 2, -3, 5);
      const absl::StatusOr<Program> program =
          testing::TraceWith([&](In in) { return Values{ops::LowPrecisionSum(in[0], {1}, format)}; }, {x});
      ASSERT_THAT(program, IsOk());
      ASSERT_EQ(testing::CountOps(*program, "low_precision_sum"), 1);
      const absl::StatusOr<std::vector<Array>> sums = Eval(*program, {x});
      ASSERT_THAT(sums, IsOk());
      for (const Equation& eqn : program->eqns) {
        const auto* op = std::get_if<CompositeOp>(&eqn.op);
        if (op == nullptr) continue;
        const absl::StatusOr<Array> by_expansion = op->impl->Expand({Value(x)})[0].ToArray();
        ASSERT_THAT(by_expansion, IsOk());
        EXPECT_TRUE(BitEqual((*sums)[0], *by_expansion));
      }
    }
  }
}

TEST(LowPrecisionTest, SumsOverAxesInRowMajorOrder) {
  const SmallFloat format{-6, 8, 3};
  const Array x = RandomArray({DType::kF32, {3, 5, 4}}, 2, -3, 5);
  const absl::StatusOr<Array> sums = ops::LowPrecisionSum(Value(x), {-1, 0}, format).ToArray();
  ASSERT_THAT(sums, IsOk());
  ASSERT_EQ(sums->shape(), (Shape{5}));
  for (int64_t j = 0; j < 5; ++j) {
    float sum = 0;
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t k = 0; k < 4; ++k) sum = format.Round(sum + x.View<float>()[(i * 5 + j) * 4 + k]);
    }
    EXPECT_EQ(sums->View<float>()[j], sum);
  }
}

// 2^4 has steps of 2: ones that are added to it one by one are lost, and the sum depends on the order.
TEST(LowPrecisionTest, SumsLoseSmallTerms) {
  const SmallFloat format{-6, 8, 3};
  const auto sum = [&](const Array& x, bool keepdims) {
    return *ops::LowPrecisionSum(Value(x), {0}, format, keepdims).ToArray();
  };
  EXPECT_TRUE(BitEqual(sum(Array::Of<float>({16, 1, 1, 1, 1}, {5}), false), Array::Scalar(16.0f)));
  EXPECT_TRUE(BitEqual(sum(Array::Of<float>({1, 1, 1, 1, 16}, {5}), true), Array::Of<float>({20}, {1})));
  EXPECT_TRUE(BitEqual(sum(Array::Zeros(DType::kF32, {0, 2}), false), Array::Zeros(DType::kF32, {2})));
}

// With a format as wide as f32 a softmax is the exact one except for its roundings: six steps of 2^-23 each; the sum of
// eight terms adds eight more.
TEST(LowPrecisionTest, AWideFormatGivesTheExactSoftmax) {
  const SmallFloat wide{-126, 127, 22};
  const Array x = RandomArray({DType::kF32, {4, 8}}, 3);
  const absl::StatusOr<Array> got = ops::LowPrecisionSoftmax(Value(x), {wide, wide}).ToArray(),
                              want = ops::Softmax(Value(x)).ToArray(),
                              lines = ops::ApproximateSoftmax(Value(x), {}).ToArray();
  ASSERT_THAT(got, IsOk());
  ASSERT_THAT(lines, IsOk());
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(got->View<float>()[i], want->View<float>()[i], 24 * 0x1p-23 * want->View<float>()[i]);
    EXPECT_NEAR(lines->View<float>()[i], want->View<float>()[i], 4 * 0x1p-23 * want->View<float>()[i]);
  }
}

TEST(LowPrecisionTest, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Value x(Array::Zeros(DType::kF32, {2, 3})), wide(Array::Zeros(DType::kF64, {2, 3}));
  EXPECT_THAT(ops::RoundToSmallFloat(x, {.mantissa_bits = 23}).status(), FailsWith(kInvalid, {"mantissa_bits = 23"}));
  EXPECT_THAT(ops::RoundToSmallFloat(x, {.mantissa_bits = 0}).status(), FailsWith(kInvalid, {"mantissa_bits = 0"}));
  EXPECT_THAT(ops::RoundToSmallFloat(x, {.min_exponent = 3, .max_exponent = 2}).status(),
              FailsWith(kInvalid, {"min_exponent = 3 and max_exponent = 2"}));
  EXPECT_THAT(ops::RoundToSmallFloat(wide, {}).status(), FailsWith(kInvalid, {"round_to_small_float", "f64"}));
  EXPECT_THAT(ops::LowPrecisionSum(x, {2}, {}).status(), FailsWith(kInvalid, {"low_precision_sum", "axis 2"}));
  EXPECT_THAT(ops::LowPrecisionSoftmax(x, {.sums = SmallFloat{-200, 0, 1}}).status(), FailsWith(kInvalid, {"-200"}));
  EXPECT_THAT(ops::ApproximateSoftmax(x, {.exp_slope = 0}).status(), FailsWith(kInvalid, {"exp_slope = 0"}));
  EXPECT_THAT(ops::ApproximateSoftmax(x, {.exp_low = 1}).status(), FailsWith(kInvalid, {"exp_low = 1"}));
  EXPECT_THAT(ops::ApproximateSoftmax(x, {.sum_high = 0.5}).status(), FailsWith(kInvalid, {"sum_high = 0.5"}));
  EXPECT_THAT(ops::ApproximateSoftmax(x, {.reciprocal_low = 2}).status(), FailsWith(kInvalid, {"reciprocal_low = 2"}));
  EXPECT_THAT(ops::RoundRowsToIntegers(x, 25).status(), FailsWith(kInvalid, {"bits = 25"}));
}

}  // namespace
}  // namespace aqt
