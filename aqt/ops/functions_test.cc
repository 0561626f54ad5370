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
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
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

// As jax.nn.relu: NaN stays NaN, -0 becomes 0, and the gradient is 0 wherever x > 0 is false.
TEST(FunctionsTest, ReluKeepsNan) {
  const Program program = *testing::TraceWith([](In in) { return Values{ops::ReduceSum(ops::Relu(in[0]) * in[1])}; },
                                              {Array::Zeros(DType::kF32, {5}), Array::Zeros(DType::kF32, {5})});
  const Program with_gradient = *ValueAndGrad(program, {{0}});
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Array x = Array::Of<float>({NAN, -kInf, -0.0f, 2, kInf}, {5}), ct = Array::Of<float>({3, 4, 5, 6, 7}, {5});
  const std::vector<Array> y = *RunBothWays([](In in) { return Values{ops::Relu(in[0])}; }, {x});
  EXPECT_TRUE(std::isnan(y[0].View<float>()[0]));
  EXPECT_TRUE(
      BitEqual(Array::FromSpan<float>(y[0].View<float>().subspan(1), {4}), Array::Of<float>({0, 0, 2, kInf}, {4})));
  const std::vector<Array> out = *Eval(with_gradient, {x, ct});
  EXPECT_TRUE(BitEqual(out[1], Array::Of<float>({0, 0, 0, 6, 7}, {5})));
}

// Compared with the C library in f64, which agrees up to a few roundings.
TEST(FunctionsTest, Activations) {
  const Array x = F64({40}, 3);
  absl::StatusOr<std::vector<Array>> out = RunBothWays(
      [](In in) {
        return Values{ops::Gelu(in[0]), ops::GeluTanh(in[0]), ops::Silu(in[0])};
      },
      {x});
  ASSERT_THAT(out, IsOk());
  for (int64_t i = 0; i < 40; ++i) {
    const double v = x.View<double>()[i];
    EXPECT_NEAR((*out)[0].View<double>()[i], v * 0.5 * std::erfc(-v / std::sqrt(2.0)), 1e-14);
    const double inner = 0.7978845608028654 * (v + 0.044715 * v * v * v);
    EXPECT_NEAR((*out)[1].View<double>()[i], 0.5 * v * (1 + std::tanh(inner)), 1e-14);
    EXPECT_NEAR((*out)[2].View<double>()[i], v / (1 + std::exp(-v)), 1e-14);
  }
  EXPECT_THAT(CheckGradients([](In in) { return Values{ops::Gelu(in[0]) + ops::GeluTanh(in[1]) + ops::Silu(in[2])}; },
                             {x, F64({40}, 4), F64({40}, 5)}),
              IsOk());
}

// Probabilities equal those of LogSoftmax, and do not overflow.
TEST(FunctionsTest, Softmax) {
  const Array x = F64({3, 4}, 6);
  absl::StatusOr<std::vector<Array>> out = RunBothWays(
      [](In in) {
        return Values{ops::Softmax(in[0]), ops::Exp(ops::LogSoftmax(in[0])), ops::Softmax(in[0], 0),
                      ops::Softmax(in[0] * 1e300)};
      },
      {x});
  ASSERT_THAT(out, IsOk());
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_NEAR((*out)[0].View<double>()[i], (*out)[1].View<double>()[i], 1e-14);
    EXPECT_TRUE(std::isfinite((*out)[3].View<double>()[i]));
  }
  for (int64_t i = 0; i < 4; ++i) {
    double sum = 0;
    for (int64_t row = 0; row < 3; ++row) sum += (*out)[2].View<double>()[row * 4 + i];
    EXPECT_NEAR(sum, 1, 1e-14);
  }
  EXPECT_THAT(CheckGradients([](In in) { return Values{ops::Softmax(in[0], 0)}; }, {x}), IsOk());
}

TEST(FunctionsTest, OneHot) {
  absl::StatusOr<std::vector<Array>> out = RunBothWays(
      [](In in) {
        return Values{ops::OneHot(in[0], 3), ops::OneHot(in[0], 1, DType::kBF16)};
      },
      {Array::Of<int32_t>({2, 0, 3, -1}, {2, 2})});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Of<float>({0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, {2, 2, 3})));
  EXPECT_EQ((*out)[1].aval(), (Aval{DType::kBF16, {2, 2, 1}}));
  EXPECT_THAT(
      Trace([](In in) { return Values{ops::OneHot(in[0], 0)}; }, {{{SlotKind::kData, "ids"}, {DType::kS32, {2}}}}),
      FailsWith(absl::StatusCode::kInvalidArgument, {"one_hot: classes = 0", "functions_test.cc:"}));
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

// The values are from flax.linen.max_pool and avg_pool.
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
