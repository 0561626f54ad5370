#include "aqt/ops/functions.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CheckGradients;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::RunBothWays;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Array F64(const Shape& shape, uint64_t seed) { return RandomArray({DType::kF64, shape}, seed); }

TEST(FunctionsTest, Values) {
  const Array x = Array::Of<float>({-1, 0, 2, 5, 1, -3}, {2, 3});
  absl::StatusOr<std::vector<Array>> out = RunBothWays(
      [](In in) {
        return Values{ops::Relu(in[0]), ops::Mean(in[0]), ops::Mean(in[0], {-1}), ops::Mean(in[0], {0}, true)};
      },
      {x});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Of<float>({0, 0, 2, 5, 1, 0}, {2, 3})));
  EXPECT_TRUE(BitEqual((*out)[1], Array::Scalar(4.0f / 6)));
  EXPECT_TRUE(BitEqual((*out)[2], Array::Of<float>({1.0f / 3, 1}, {2})));
  EXPECT_TRUE(BitEqual((*out)[3], Array::Of<float>({2, 0.5f, -0.5f}, {1, 3})));
}

TEST(FunctionsTest, LogSoftmaxDoesNotOverflow) {
  const float inf = std::numeric_limits<float>::infinity();
  absl::StatusOr<std::vector<Array>> out = RunBothWays([](In in) { return Values{ops::LogSoftmax(in[0])}; },
                                                       {Array::Of<float>({1e30f, 0, 1000, 1000, -inf, 0}, {3, 2})});
  ASSERT_THAT(out, IsOk());
  const absl::Span<const float> got = (*out)[0].View<float>();
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], -1e30f);
  EXPECT_FLOAT_EQ(got[2], -std::log(2.0f));
  EXPECT_EQ(got[4], -inf);
  EXPECT_EQ(got[5], 0);
}

TEST(FunctionsTest, CrossEntropy) {
  const Array logits = Array::Of<double>({0.5, -1, 2, 0, 0, 0}, {2, 3}),
              labels = Array::Of<double>({0, 0, 1, 1, 0, 0}, {2, 3});
  absl::StatusOr<std::vector<Array>> out =
      RunBothWays([](In in) { return Values{ops::SoftmaxCrossEntropy(in[0], in[1])}; }, {logits, labels});
  ASSERT_THAT(out, IsOk());
  const double first = std::log(std::exp(0.5) + std::exp(-1) + std::exp(2)) - 2;
  EXPECT_NEAR((*out)[0].View<double>()[0], (first + std::log(3.0)) / 2, 1e-15);
}

TEST(FunctionsTest, Gradients) {
  EXPECT_THAT(CheckGradients([](In in) { return Values{ops::Relu(in[0])}; }, {F64({7}, 1)}), IsOk());
  EXPECT_THAT(CheckGradients([](In in) { return Values{ops::Mean(in[0] * in[0], {0})}; }, {F64({3, 2}, 2)}), IsOk());
  EXPECT_THAT(CheckGradients([](In in) { return Values{ops::LogSoftmax(in[0], 0)}; }, {F64({4, 3}, 3)}), IsOk());
  EXPECT_THAT(CheckGradients([](In in) { return Values{ops::SoftmaxCrossEntropy(in[0], in[1])}; },
                             {F64({4, 3}, 4), F64({4, 3}, 5)}),
              IsOk());
}

TEST(FunctionsTest, LinesAreTheCallers) {
  uint32_t line = 0;
  absl::StatusOr<Program> program = testing::TraceWith(
      [&](In in) {
        line = __LINE__ + 1;
        return Values{ops::SoftmaxCrossEntropy(in[0], in[1])};
      },
      {F64({4, 3}, 4), F64({4, 3}, 5)});
  ASSERT_THAT(program, IsOk());
  for (const Equation& eqn : program->eqns) EXPECT_EQ(eqn.where.line, line) << OpName(eqn.op);
}

// The numbers of flax.linen.max_pool and avg_pool.
TEST(FunctionsTest, PoolsAreThoseOfFlax) {
  const Array x = Array::Of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 5, 2, 1});
  const auto gives = [&](const std::function<Value(const Value&)>& fn, const Array& want) {
    absl::StatusOr<std::vector<Array>> out = RunBothWays([&](In in) { return Values{fn(in[0])}; }, {x});
    ASSERT_THAT(out, IsOk());
    EXPECT_TRUE(BitEqual((*out)[0], want)) << (*out)[0].aval();
  };
  constexpr auto kSame = ops::PoolPadding::kSame;
  gives(
      [&](const Value& v) {
        return ops::AvgPool(v, {2, 2}, {2, 1}, kSame);
      },
      Array::Of<float>({1.5, 1, 5.5, 3, 4.25, 2.25}, {1, 3, 2, 1}));
  gives(
      [&](const Value& v) {
        return ops::AvgPool(v, {2, 2}, {2, 1}, kSame, /*count_padding=*/false);
      },
      Array::Of<float>({1.5, 2, 5.5, 6, 8.5, 9}, {1, 3, 2, 1}));
  gives(
      [&](const Value& v) {
        return ops::MaxPool(v, {3, 1}, {2, 1}, kSame);
      },
      Array::Of<float>({2, 3, 6, 7, 8, 9}, {1, 3, 2, 1}));
  gives([&](const Value& v) { return ops::MaxPool(v, {2, 2}); }, Array::Of<float>({3, 5, 7, 9}, {1, 4, 1, 1}));
  gives([&](const Value& v) { return ops::AvgPool(v, {4, 1}, {3, 1}); }, Array::Of<float>({3, 4}, {1, 1, 2, 1}));
}

TEST(FunctionsTest, PoolGradients) {
  const Array x = F64({2, 5, 4, 3}, 7);
  EXPECT_THAT(CheckGradients(
                  [](In in) {
                    return Values{ops::MaxPool(in[0], {2, 3}, {2, 1}, ops::PoolPadding::kSame)};
                  },
                  {x}),
              IsOk());
  EXPECT_THAT(CheckGradients(
                  [](In in) {
                    return Values{ops::AvgPool(in[0], {3, 2}, {2, 2}, ops::PoolPadding::kSame, false)};
                  },
                  {x}),
              IsOk());
}

TEST(FunctionsTest, PoolsRefuse) {
  const Value x(Array::Zeros(DType::kF32, {2, 5, 3}));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ops::MaxPool(x, {2, 2}).status(), FailsWith(kInvalid, {"max_pool", "2 numbers for the 1 spatial axes"}));
  EXPECT_THAT(ops::AvgPool(x, {2}, {1, 1}).status(), FailsWith(kInvalid, {"avg_pool", "2 strides and 1 extents"}));
  EXPECT_THAT(ops::AvgPool(x, {0}).status(), FailsWith(kInvalid, {"window 0 and stride 1 of spatial axis 0"}));
  EXPECT_THAT(ops::MaxPool(Value(Array::Scalar(1.0f)), {}).status(), FailsWith(kInvalid, {"0 spatial axes"}));
}

// jax.random.uniform(jax.random.PRNGKey(5), (4,)).
TEST(FunctionsTest, RandomUniformIsThatOfJax) {
  absl::StatusOr<std::vector<Array>> out =
      RunBothWays([](In in) { return Values{ops::RandomUniform(in[0], {4})}; }, {Array::Of<uint32_t>({0, 5}, {2})});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Of<float>({0.46637988f, 0.92088103f, 0.73581016f, 0.09508145f}, {4})));
}

}  // namespace
}  // namespace aqt
