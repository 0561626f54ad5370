#include "aqt/nn/layers/parameter.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// One kernel used twice, and a bias.
Values Model(In in) {
  const NamedScope scope("layer");
  const Value kernel = Parameter("kernel", {DType::kF32, {3, 3}}, LecunUniform({0}));
  const Value again = Parameter("kernel", {DType::kF32, {3, 3}}, LecunUniform({0}));
  return {ops::MatMul(ops::MatMul(in[0], kernel), again) + Parameter("bias", {DType::kF32, {3}}, Zeros())};
}

const std::vector<Input> kInputs = {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}};
const Slot kKernel{SlotKind::kParam, "layer/kernel"}, kBias{SlotKind::kParam, "layer/bias"};

TEST(ParameterTest, InitTraceAndEagerAgree) {
  absl::StatusOr<SlotValues> params = InitParams(Model, kInputs, MakeKey(1));
  ASSERT_THAT(params, IsOk());
  ASSERT_EQ(params->size(), 2u);
  EXPECT_TRUE(BitEqual(params->at(kBias), Array::Zeros(DType::kF32, {3})));
  absl::StatusOr<Program> program = Trace(Model, kInputs);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(program->InputsOfKind(SlotKind::kParam).size(), 2u);
  const Array x = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  SlotValues values = *params;
  values[{SlotKind::kData, "x"}] = x;
  absl::StatusOr<SlotValues> traced = EvalSlots(*program, values);
  ASSERT_THAT(traced, IsOk());
  const EagerParams eager(*params);
  absl::StatusOr<Array> at_once = Model({Value(x)})[0].ToArray();
  ASSERT_THAT(at_once, IsOk());
  EXPECT_TRUE(BitEqual(*at_once, traced->at({SlotKind::kData, "0"})));
}

TEST(ParameterTest, InitialValuesDependOnKeyAndNameAlone) {
  absl::StatusOr<SlotValues> a = InitParams(Model, kInputs, MakeKey(1)), b = InitParams(Model, kInputs, MakeKey(1)),
                             c = InitParams(Model, kInputs, MakeKey(2));
  EXPECT_TRUE(BitEqual(a->at(kKernel), b->at(kKernel)));
  EXPECT_FALSE(BitEqual(a->at(kKernel), c->at(kKernel)));
  absl::StatusOr<SlotValues> more = InitParams(
      [](In in) {
        Parameter("another", {DType::kF32, {5}}, LecunUniform({0}));
        return Model(in);
      },
      kInputs, MakeKey(1));
  EXPECT_TRUE(BitEqual(a->at(kKernel), more->at(kKernel)));
  const absl::Span<const float> other = more->at({SlotKind::kParam, "another"}).View<float>();
  EXPECT_NE(other[0], a->at(kKernel).View<float>()[0]);
}

TEST(ParameterTest, LecunUniformHasItsVariance) {
  const Array x = LecunUniform({0, 1})({DType::kF32, {10, 5, 400}}, MakeKey(3));
  double sum = 0, squares = 0, largest = 0;
  for (const float v : x.View<float>()) {
    sum += v;
    squares += static_cast<double>(v) * v;
    largest = std::max<double>(largest, std::fabs(v));
  }
  const double n = static_cast<double>(x.num_elements());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1.0 / 50, 0.02 / 50 * 2);
  EXPECT_LE(largest, std::sqrt(3.0 / 50));
  EXPECT_TRUE(BitEqual(x, LecunUniform({-3, -2})({DType::kF32, {10, 5, 400}}, MakeKey(3))));
  EXPECT_EQ(LecunUniform({0})({DType::kF32, {0, 4}}, MakeKey(3)).num_elements(), 0);
}

TEST(ParameterTest, Errors) {
  const Value x(Array::Zeros(DType::kF32, {2, 3}));
  EXPECT_THAT(Model({x})[0].ToArray(),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"[layer]", "param \"layer/kernel\"", "EagerParams"}));
  {
    const SlotValues nothing;
    const EagerParams eager(nothing);
    EXPECT_THAT(Model({x})[0].ToArray(), FailsWith(absl::StatusCode::kNotFound, {"param \"layer/kernel\""}));
  }
  const SlotValues wrong = {{kKernel, Array::Zeros(DType::kF32, {3, 4})}};
  const EagerParams eager(wrong);
  EXPECT_THAT(Model({x})[0].ToArray(), FailsWith(absl::StatusCode::kInvalidArgument, {"f32[3,4]", "f32[3,3]"}));
  EXPECT_THAT(InitParams([](In in) { return Values{ops::Reshape(in[0], {7})}; }, kInputs, MakeKey(1)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"reshape"}));
  EXPECT_THAT(InitParams(
                  [&](In) {
                    return Values{Parameter("w", {DType::kF32, {2}}, nullptr)};
                  },
                  kInputs, MakeKey(1)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"param \"w\" has no initializer"}));
  const auto scalar = [](const Aval&, Key) { return Array::Zeros(DType::kF32, {}); };
  EXPECT_THAT(InitParams(
                  [&](In) {
                    return Values{Parameter("w", {DType::kF32, {2}}, scalar)};
                  },
                  kInputs, MakeKey(1)),
              FailsWith(absl::StatusCode::kInvalidArgument, {"param \"w\" returns f32[], expected f32[2]"}));
}

// Four standard deviations of the estimates from 40,000 numbers; kurtosis 3 distinguishes a normal distribution from a
// uniform one.
TEST(ParameterTest, NormalNumbers) {
  const Array numbers = Normal(0.5)({DType::kF64, {200, 200}}, MakeKey(3));
  double sum = 0, square = 0, fourth = 0;
  for (const double v : numbers.View<double>()) {
    sum += v / 0.5;
    square += std::pow(v / 0.5, 2);
    fourth += std::pow(v / 0.5, 4);
  }
  EXPECT_NEAR(sum / 40000, 0, 4 * std::sqrt(1.0 / 40000));
  EXPECT_NEAR(square / 40000, 1, 4 * std::sqrt(2.0 / 40000));
  EXPECT_NEAR(fourth / 40000, 3, 4 * std::sqrt(96.0 / 40000));
}

TEST(ParameterTest, StatisticsAreInputsAndOutputsOfKindStat) {
  const auto model = [](In in) {
    const NamedScope scope("layer");
    const Value count = Statistic("count", {DType::kF32, {}}, Ones());
    WriteStatistic("count", count + 1.0);
    return Values{in[0] * count};
  };
  const Slot count{SlotKind::kStat, "layer/count"};
  const absl::StatusOr<SlotValues> initial = InitParams(model, kInputs, MakeKey(1));
  ASSERT_THAT(initial, IsOk());
  EXPECT_TRUE(BitEqual(initial->at(count), Array::Scalar(1.0f)));
  SlotValues values = *initial;
  values[{SlotKind::kData, "x"}] = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const absl::StatusOr<SlotValues> out = EvalSlots(*Trace(model, kInputs), values);
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual(out->at(count), Array::Scalar(2.0f)));
  const EagerParams eager(*initial);
  EXPECT_THAT(model({Value(values.at({SlotKind::kData, "x"}))})[0].ToArray(), IsOk());
}

}  // namespace
}  // namespace aqt::nn
