#include "aqt/graph/basic_ops.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RunBothWays;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// Eager and traced runs agree in every bit and give `want`.
void ExpectGives(const std::function<Value(In)>& fn, const std::vector<Array>& args, const Array& want) {
  absl::StatusOr<std::vector<Array>> got = RunBothWays([&](In in) { return Values{fn(in)}; }, args);
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual((*got)[0], want)) << (*got)[0].aval();
}

template <class T>
Array Vec(std::initializer_list<T> values) {
  return Array::Of<T>(values, {static_cast<int64_t>(values.size())});
}

TEST(BasicOpsTest, Elementwise) {
  const std::vector<Array> ab = {Vec<float>({1, -2, 3.5}), Vec<float>({2, 2, -1})};
  ExpectGives([](In x) { return x[0] + x[1]; }, ab, Vec<float>({3, 0, 2.5}));
  ExpectGives([](In x) { return x[0] - x[1]; }, ab, Vec<float>({-1, -4, 4.5}));
  ExpectGives([](In x) { return x[0] * x[1]; }, ab, Vec<float>({2, -4, -3.5}));
  ExpectGives([](In x) { return x[0] / x[1]; }, ab, Vec<float>({0.5, -1, -3.5}));
  ExpectGives([](In x) { return -x[0]; }, ab, Vec<float>({-1, 2, -3.5}));
  ExpectGives([](In x) { return ops::Max(x[0], x[1]); }, ab, Vec<float>({2, 2, 3.5}));
  ExpectGives([](In x) { return ops::Min(x[0], x[1]); }, ab, Vec<float>({1, -2, -1}));
  ExpectGives([](In x) { return ops::Abs(x[0]); }, ab, Vec<float>({1, 2, 3.5}));
  ExpectGives([](In x) { return ops::Round(x[0]); }, ab, Vec<float>({1, -2, 4}));
  ExpectGives([](In x) { return ops::Floor(x[0] / 2.0); }, ab, Vec<float>({0, -1, 1}));
  ExpectGives([](In x) { return ops::Flush(x[0] * 0x1p-127); }, ab, Vec<float>({0, -0x1p-126f, 0x1.cp-126f}));
  ExpectGives([](In x) { return ops::Exp(ops::Log(ops::Abs(x[1]))); }, ab, Vec<float>({2, 2, 1}));
  ExpectGives([](In x) { return ops::Less(x[0], x[1]); }, ab, Vec<bool>({true, true, false}));
  ExpectGives([](In x) { return ops::LessEqual(x[0], 1.0); }, ab, Vec<bool>({true, true, false}));
  ExpectGives([](In x) { return ops::Greater(x[0], x[1]); }, ab, Vec<bool>({false, false, true}));
  ExpectGives([](In x) { return ops::GreaterEqual(x[0], 3.5); }, ab, Vec<bool>({false, false, true}));
  ExpectGives([](In x) { return ops::Equal(x[0], -2.0); }, ab, Vec<bool>({false, true, false}));
  ExpectGives([](In x) { return ops::NotEqual(x[1], 2.0); }, ab, Vec<bool>({false, false, true}));
  ExpectGives([](In x) { return ops::Select(ops::Less(x[0], 0.0), x[1], 7.0); }, ab, Vec<float>({7, 2, 7}));
  ExpectGives([](In x) { return ops::StopGradient(x[0]); }, ab, ab[0]);
}

// Arguments with exact results.
TEST(BasicOpsTest, Functions) {
  const std::vector<Array> x = {Vec<float>({0, 4, -2})};
  ExpectGives([](In x) { return ops::Sign(x[0]); }, x, Vec<float>({0, 1, -1}));
  ExpectGives([](In x) { return ops::Ceil(x[0] * 0.375); }, x, Vec<float>({0, 2, -0.0f}));
  ExpectGives([](In x) { return ops::Sqrt(ops::Abs(x[0] * 4.0)); }, {Vec<float>({1, -4})}, Vec<float>({2, 4}));
  ExpectGives([](In x) { return ops::Rsqrt(ops::Abs(x[0] * 4.0)); }, {Vec<float>({1, -4})}, Vec<float>({0.5, 0.25}));
  ExpectGives([](In x) { return ops::Cbrt(x[0] * 2.0); }, x, Vec<float>({0, 2, -0x1.965feap+0f}));
  ExpectGives([](In x) { return ops::Expm1(x[0] * 0.0); }, x, Vec<float>({0, 0, -0.0f}));
  ExpectGives([](In x) { return ops::Log1p(x[0] * 0.0); }, x, Vec<float>({0, 0, -0.0f}));
  ExpectGives([](In x) { return ops::Sin(x[0] * 0.0) + ops::Cos(x[0] * 0.0); }, x, Vec<float>({1, 1, 1}));
  ExpectGives([](In x) { return ops::Tanh(x[0] * 50.0); }, x, Vec<float>({0, 1, -1}));
  ExpectGives([](In x) { return ops::Erf(x[0] * 50.0); }, x, Vec<float>({0, 1, -1}));
  ExpectGives([](In x) { return ops::Logistic(x[0] * 100.0); }, x, Vec<float>({0.5, 1, 0}));
  ExpectGives([](In x) { return ops::Pow(x[0], 3.0); }, x, Vec<float>({0, 64, -8}));
  ExpectGives([](In x) { return ops::Pow(2.0, x[0]); }, x, Vec<float>({1, 16, 0.25}));
  ExpectGives([](In x) { return ops::IntegerPow(x[0], -2); }, x, Vec<float>({HUGE_VALF, 0.0625, 0.25}));
  ExpectGives([](In x) { return ops::IntegerPow(x[0], 3); }, {Vec<int32_t>({-2, 5})}, Vec<int32_t>({-8, 125}));
  ExpectGives([](In x) { return ops::Clamp(-1.0, x[0], 3); }, x, Vec<float>({0, 3, -1}));
  ExpectGives([](In x) { return ops::Clamp(x[0], 1.0, x[0] + 1.0); }, x, Vec<float>({1, 4, -1}));
  ExpectGives([](In x) { return ops::Clamp(-1.0, x[0], 3); }, {Vec<int32_t>({7, -7})}, Vec<int32_t>({3, -1}));
  ExpectGives([](In x) { return ops::ReducePrecision(x[0] * 4.4, 4, 3); }, x, Vec<float>({0, 18, -9}));
}

TEST(BasicOpsTest, Bitcast) {
  const std::vector<Array> x = {Vec<float>({1, -0.0f, HUGE_VALF})};
  ExpectGives([](In x) { return ops::Bitcast(x[0], DType::kS32); }, x,
              Vec<int32_t>({0x3f800000, INT32_MIN, 0x7f800000}));
  ExpectGives([](In x) { return ops::Bitcast(x[0], DType::kF32); }, {Vec<int32_t>({0x3f800000, INT32_MIN})},
              Vec<float>({1, -0.0f}));
  ExpectGives([](In x) { return ops::Bitcast(ops::Cast(x[0], DType::kF16), DType::kS16); }, x,
              Vec<int16_t>({0x3c00, INT16_MIN, 0x7c00}));
  ExpectGives([](In x) { return ops::Bitcast(ops::Cast(x[0], DType::kBF16), DType::kS16); }, x,
              Vec<int16_t>({0x3f80, INT16_MIN, 0x7f80}));
  ExpectGives([](In x) { return ops::Bitcast(x[0], DType::kF32); }, x, x[0]);
}

TEST(BasicOpsTest, Logic) {
  const std::vector<Array> ab = {Vec<bool>({false, false, true, true}), Vec<bool>({false, true, false, true})};
  ExpectGives([](In x) { return ops::And(x[0], x[1]); }, ab, Vec<bool>({false, false, false, true}));
  ExpectGives([](In x) { return ops::Or(x[0], x[1]); }, ab, Vec<bool>({false, true, true, true}));
  ExpectGives([](In x) { return ops::Not(x[0]); }, ab, Vec<bool>({true, true, false, false}));
  ExpectGives([](In x) { return ops::And(x[0], 1.0); }, ab, ab[0]);
  ExpectGives([](In x) { return ops::IsFinite(x[0] / 0.0); }, {Vec<float>({1, 0})}, Vec<bool>({false, false}));
  ExpectGives([](In x) { return ops::IsFinite(x[0]); }, {Vec<int32_t>({1, 0})}, Vec<bool>({true, true}));
}

TEST(BasicOpsTest, NumbersTakeTheOtherOperandsDtype) {
  ExpectGives([](In x) { return 1.0 - x[0]; }, {Vec<int32_t>({3, -4})}, Vec<int32_t>({-2, 5}));
  ExpectGives([](In x) { return x[0] * 2; }, {Vec<double>({0.1})}, Vec<double>({0.2}));
  ExpectGives([](In x) { return x[0] + 0.1; }, {Vec<BFloat16>({RoundToBFloat16(0)})},
              Vec<BFloat16>({RoundToBFloat16(0.1f)}));
  ExpectGives([](In) { return ops::Add(1.0, 2.0); }, {}, Array::Scalar(3.0f));
}

TEST(BasicOpsTest, ShapesAreBroadcast) {
  const Array column = Array::Of<float>({1, 2}, {2, 1}), row = Vec<float>({10, 20, 30});
  ExpectGives([](In x) { return x[0] + x[1]; }, {column, row}, Array::Of<float>({11, 21, 31, 12, 22, 32}, {2, 3}));
  ExpectGives([](In x) { return x[1] - x[0]; }, {column, Array::Scalar(1.0f)}, Array::Of<float>({0, -1}, {2, 1}));
  ExpectGives([](In x) { return x[0] * x[1]; }, {Array::Zeros(DType::kF32, {0, 3}), row},
              Array::Zeros(DType::kF32, {0, 3}));
  ExpectGives([](In x) { return ops::Select(x[0], x[1], x[2]); }, {Array::Scalar(true), column, row},
              Array::Of<float>({1, 1, 1, 2, 2, 2}, {2, 3}));
}

TEST(BasicOpsTest, Movement) {
  const Array x = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  ExpectGives([](In in) { return ops::Reshape(in[0], {3, -1}); }, {x}, Array::Of<float>({1, 2, 3, 4, 5, 6}, {3, 2}));
  ExpectGives([](In in) { return ops::Transpose(in[0], {1, 0}); }, {x}, Array::Of<float>({1, 4, 2, 5, 3, 6}, {3, 2}));
  // clang-format off
  ExpectGives([](In in) { return ops::Transpose(in[0], {-1, 0}); }, {x}, Array::Of<float>({1, 4, 2, 5, 3, 6}, {3, 2}));
  ExpectGives([](In in) { return ops::Slice(in[0], {0, 0}, {2, 3}, {1, 2}); }, {x},
              Array::Of<float>({1, 3, 4, 6}, {2, 2}));
  ExpectGives([](In in) { return ops::Slice(in[0], {1, 1}, {2, 3}); }, {x}, Array::Of<float>({5, 6}, {1, 2}));
  ExpectGives([](In in) { return ops::Slice(in[0], {1, 3}, {2, 3}); }, {x}, Array::Zeros(DType::kF32, {1, 0}));
  ExpectGives([](In in) { return ops::Pad(in[0], {0, 1}, {1, 0}, {0, 1}); }, {x},
              Array::Of<float>({0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 0, 0, 0, 0, 0}, {3, 6}));
  ExpectGives([](In in) { return ops::Pad(in[0], {-1, 1}, {1, -2}, {0, 1}, 9); }, {x},
              Array::Of<float>({9, 4, 9, 5, 9, 9, 9, 9}, {2, 4}));
  ExpectGives([](In in) { return ops::Pad(in[0], {0, -3}, {-1, 2}, {0, 1}); }, {x}, Array::Of<float>({0, 3, 0, 0}, {1, 4}));
  ExpectGives([](In in) { return ops::Pad(in[0], {0, 4}, {0, -6}); }, {x}, Array::Zeros(DType::kF32, {2, 1}));
  ExpectGives([](In in) { return ops::Pad(in[0], {-3, 0}, {2, 0}); }, {x}, Array::Zeros(DType::kF32, {1, 3}));
  ExpectGives([](In in) { return ops::Pad(in[0], {-1, 0}, {-1, 0}); }, {x}, Array::Zeros(DType::kF32, {0, 3}));
  ExpectGives([](In in) { return ops::Pad(in[0], {2}, {1}); }, {Array::Zeros(DType::kS8, {0})},
              Array::Zeros(DType::kS8, {3}));
  ExpectGives([](In in) { return ops::Concatenate({in[0], in[1]}, -1); }, {x, Array::Of<float>({7, 8}, {2, 1})},
              Array::Of<float>({1, 2, 3, 7, 4, 5, 6, 8}, {2, 4}));
  ExpectGives([](In in) { return ops::Concatenate({in[0], in[1], in[0]}, 0); },
              {Vec<bool>({true}), Array::Zeros(DType::kBool, {0})}, Vec<bool>({true, true}));
  ExpectGives([](In in) { return ops::BroadcastInDim(in[0], {2, 2, 1}, {0}); }, {Vec<float>({1, 2})},
              Array::Of<float>({1, 1, 2, 2}, {2, 2, 1}));
  ExpectGives([](In in) { return ops::BroadcastTo(in[0], {2, 2}); }, {Array::Of<float>({5}, {1, 1})},
              Array::Of<float>({5, 5, 5, 5}, {2, 2}));
  // clang-format on
}

TEST(BasicOpsTest, Reductions) {
  const Array x = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  ExpectGives([](In in) { return ops::ReduceSum(in[0]); }, {x}, Array::Scalar(21.0f));
  ExpectGives([](In in) { return ops::ReduceSum(in[0], {-1}); }, {x}, Vec<float>({6, 15}));
  ExpectGives([](In in) { return ops::ReduceMax(in[0], {0}, true); }, {x}, Array::Of<float>({4, 5, 6}, {1, 3}));
  ExpectGives([](In in) { return ops::ReduceSum(in[0], {1, 0}); }, {x}, Array::Scalar(21.0f));
  ExpectGives([](In in) { return ops::ReduceSum(in[0], {}); }, {x}, x);
}

TEST(BasicOpsTest, MoreReductions) {
  const Array x = Array::Of<float>({1, 5, 3, 4, 5, 2}, {2, 3});
  ExpectGives([](In in) { return ops::ReduceMin(in[0]); }, {x}, Array::Scalar(1.0f));
  ExpectGives([](In in) { return ops::ReduceMin(in[0], {0}); }, {x}, Vec<float>({1, 5, 2}));
  ExpectGives([](In in) { return ops::ReduceProd(in[0]); }, {x}, Array::Scalar(600.0f));
  ExpectGives([](In in) { return ops::ReduceProd(in[0], {-1}, true); }, {x}, Array::Of<float>({15, 40}, {2, 1}));
  ExpectGives([](In in) { return ops::ArgMax(in[0], -1); }, {x}, Vec<int32_t>({1, 1}));
  ExpectGives([](In in) { return ops::ArgMax(in[0], 0); }, {x}, Vec<int32_t>({1, 0, 0}));
  ExpectGives([](In in) { return ops::ArgMin(in[0], 1); }, {x}, Vec<int32_t>({0, 2}));
  ExpectGives([](In in) { return ops::CumulativeSum(in[0], -1); }, {x}, Array::Of<float>({1, 6, 9, 4, 9, 11}, {2, 3}));
  ExpectGives([](In in) { return ops::CumulativeSum(in[0], 0, true); }, {x},
              Array::Of<float>({5, 10, 5, 4, 5, 2}, {2, 3}));
}

TEST(BasicOpsTest, ReverseIotaAndPadding) {
  const Array x = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  ExpectGives([](In in) { return ops::Reverse(in[0], {-1}); }, {x}, Array::Of<float>({3, 2, 1, 6, 5, 4}, {2, 3}));
  ExpectGives([](In in) { return ops::Reverse(in[0], {1, 0}); }, {x}, Array::Of<float>({6, 5, 4, 3, 2, 1}, {2, 3}));
  ExpectGives([](In in) { return ops::Reverse(in[0], {0}); }, {Array::Zeros(DType::kS8, {0, 2})},
              Array::Zeros(DType::kS8, {0, 2}));
  ExpectGives([](In) { return ops::Iota(DType::kF32, {2, 3}, 1); }, {}, Array::Of<float>({0, 1, 2, 0, 1, 2}, {2, 3}));
  ExpectGives([](In) { return ops::Iota(DType::kS32, {2, 2}, -2); }, {}, Array::Of<int32_t>({0, 0, 1, 1}, {2, 2}));
  ExpectGives([](In) { return ops::Iota(DType::kBF16, {2, 0}, 0); }, {}, Array::Zeros(DType::kBF16, {2, 0}));
  ExpectGives(
      [](In in) {
        return ops::Pad(in[0], {0, 1}, {1, 0}, {0, 1}, -1.5);
      },
      {x},
      Array::Of<float>({-1.5, 1, -1.5, 2, -1.5, 3, -1.5, 4, -1.5, 5, -1.5, 6, -1.5, -1.5, -1.5, -1.5, -1.5, -1.5},
                       {3, 6}));
  ExpectGives([](In in) { return ops::Pad(in[0], {1}, {0}, {}, -HUGE_VAL); }, {Array::Zeros(DType::kF64, {0})},
              Vec<double>({-HUGE_VAL}));
  ExpectGives([](In in) { return ops::Pad(in[0], {1}, {1}, {}, 1); }, {Vec<bool>({false})},
              Vec<bool>({true, false, true}));
}

TEST(BasicOpsTest, TakeAndScatterAdd) {
  const Array x = Array::Of<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const Array numbers = Array::Of<int32_t>({2, 0, 2, -7, 99, 1}, {2, 3});
  ExpectGives([](In in) { return ops::Take(in[0], in[1]); }, {x, numbers},
              Array::Of<float>({5, 6, 1, 2, 5, 6, 1, 2, 5, 6, 3, 4}, {2, 3, 2}));
  ExpectGives([](In in) { return ops::Take(in[0], in[1], -1); }, {x, Vec<int32_t>({1})},
              Array::Of<float>({2, 4, 6}, {3, 1}));
  ExpectGives([](In in) { return ops::Take(in[0], 1); }, {x}, Vec<float>({3, 4}));  // a scalar index has no axes
  ExpectGives([](In in) { return ops::Take(in[0], in[1]); },
              {Array::Zeros(DType::kBool, {0, 2}), Array::Zeros(DType::kS32, {0})}, Array::Zeros(DType::kBool, {0, 2}));
  const Array updates = Array::Of<float>({1, 10, 100, 1000, 1e4, 1e5}, {2, 3});
  ExpectGives([](In in) { return ops::ScatterAdd(in[0], in[1], 4); }, {numbers, updates},
              Vec<float>({1010, 1e5, 101, 1e4}));
  ExpectGives([](In in) { return ops::ScatterAdd(in[0], in[1], 2, 1); }, {Vec<int32_t>({1, 1, 0}), updates},
              Array::Of<float>({100, 11, 1e5, 11000}, {2, 2}));
  ExpectGives([](In in) { return ops::ScatterAdd(in[0], in[1], 2, -1); }, {Vec<int32_t>({1, 1, 0}), updates},
              Array::Of<float>({100, 11, 1e5, 11000}, {2, 2}));
}

TEST(BasicOpsTest, Windows) {
  const Array x = Vec<float>({3, 1, 4, 1, 5});
  ExpectGives([](In in) { return ops::ReduceWindowSum(in[0], {{2}, {}, {}, {}}); }, {x}, Vec<float>({4, 5, 5, 6}));
  ExpectGives([](In in) { return ops::ReduceWindowSum(in[0], {{3}, {2}, {1}, {2}}); }, {x}, Vec<float>({4, 6, 6}));
  ExpectGives([](In in) { return ops::ReduceWindowMax(in[0], {{2}, {2}, {0}, {1}}); }, {x}, Vec<float>({3, 4, 5}));
  ExpectGives([](In in) { return ops::ReduceWindowMin(in[0], {{2}, {2}, {0}, {1}}); }, {x}, Vec<float>({1, 1, 5}));
  ExpectGives([](In in) { return ops::WindowArgMax(in[0], {{3}, {}, {}, {}}); }, {x}, Vec<int32_t>({2, 2, 4}));
  ExpectGives([](In in) { return ops::WindowArgMin(in[0], {{3}, {}, {}, {}}); }, {x}, Vec<int32_t>({1, 1, 3}));
  ExpectGives(
      [](In in) {
        return ops::ReduceWindowSum(in[0], {{6}, {}, {}, {}});
      },
      {x}, Array::Zeros(DType::kF32, {0}));
}

TEST(BasicOpsTest, RandomBitsAreThoseOfTheKey) {
  const RandomBits bits({7, 9}, 6);
  ArrayBuilder want(DType::kU32, {2, 3});
  for (int64_t i = 0; i < 6; ++i) want.Mutable<uint32_t>()[i] = bits.Bits32(i);
  ExpectGives([](In in) { return ops::RandomBits(in[0], {2, 3}); }, {Vec<uint32_t>({7, 9})}, std::move(want).Build());
}

TEST(BasicOpsTest, CastsAndProducts) {
  ExpectGives([](In in) { return ops::Cast(in[0], DType::kS8); }, {Vec<float>({1.7f, -300, 5})},
              Vec<int8_t>({1, -128, 5}));
  const Array a = Array::Of<int8_t>({1, 2, 3, 4}, {2, 2}), b = Array::Of<int8_t>({1, -1, 1, 1}, {2, 2});
  ExpectGives([](In in) { return ops::MatMul(in[0], in[1]); }, {a, b}, Array::Of<int32_t>({3, 1, 7, 1}, {2, 2}));
  const Array half = Array::Of<BFloat16>({RoundToBFloat16(3)}, {1, 1});
  ExpectGives([](In in) { return ops::DotGeneral(in[0], in[0], MatMulDims(), DType::kF32); }, {half},
              Array::Of<float>({9}, {1, 1}));
  ExpectGives([](In in) { return ops::MatMul(in[0], in[1]); },
              {Array::Zeros(DType::kF32, {2, 3, 4}), Array::Zeros(DType::kF32, {4, 5})},
              Array::Zeros(DType::kF32, {2, 3, 5}));
}

// Operations that only move data accept every dtype.
TEST(BasicOpsTest, MovementTakesEveryDtype) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const Array x = testing::RandomArray({static_cast<DType>(d), {3, 2}}, d);
    absl::StatusOr<std::vector<Array>> out = RunBothWays(
        [](In in) {
          const Value y = ops::Transpose(ops::Concatenate({in[0], in[0]}, 1), {1, 0});
          return Values{ops::Transpose(ops::Slice(y, {2, 0}, {4, 3}), {1, 0})};
        },
        {x});
    ASSERT_THAT(out, IsOk());
    EXPECT_TRUE(BitEqual((*out)[0], x)) << x.aval();
  }
}

// A call that is refused, and parts of the message: the operation, its operands and the remedy.
struct Refusal {
  std::string name;
  std::function<Value(In)> fn;
  std::vector<Array> args;
  std::vector<std::string> parts;
};

void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& c : refusals) {
    const auto fn = [&](In in) { return Values{c.fn(in)}; };
    std::vector<std::string> parts = c.parts;
    parts.push_back("basic_ops_test.cc:");
    EXPECT_THAT(testing::TraceWith(fn, c.args), FailsWith(absl::StatusCode::kInvalidArgument, parts)) << c.name;
    EXPECT_THAT(testing::RunEagerly(fn, c.args), FailsWith(absl::StatusCode::kInvalidArgument, parts)) << c.name;
  }
}

Array F32() { return Array::Zeros(DType::kF32, {2, 3}); }
Array Bf16() { return Array::Zeros(DType::kBF16, {2, 3}); }
Array S8() { return Array::Zeros(DType::kS8, {2}); }

// clang-format off
TEST(BasicOpsTest, ElementwiseRefusals) {
  ExpectRefused({
    {"dtypes", [](In x) { return x[0] + x[1]; }, {F32(), Bf16()},
     {"add: dtypes differ", "f32[2,3]", "bf16[2,3]", "cast"}},
    {"arithmetic", [](In x) { return x[0] * x[0]; }, {S8()}, {"mul: ", "not in s8", "cast"}},
    {"float", [](In x) { return ops::Exp(x[0]); }, {Array::Zeros(DType::kS32, {})},
     {"exp: takes floats", "s32[]"}},
    {"bool", [](In x) { return ops::Not(x[0]); }, {F32()}, {"not: takes bool, not f32[2,3]", "compare"}},
    {"logic", [](In x) { return ops::Or(x[0], true); }, {F32()}, {"or: dtypes differ"}},
    {"pow", [](In x) { return ops::Pow(x[0], x[0]); }, {Array::Zeros(DType::kS32, {})}, {"pow: takes floats"}},
    {"clamp", [](In x) { return ops::Clamp(x[0], x[1], 2.0); }, {F32(), Bf16()},
     {"clamp: the lower end and the operand: dtypes differ"}},
    {"clamp bool", [](In x) { return ops::Clamp(0.0, x[0], 1.0); }, {Array::Zeros(DType::kBool, {})},
     {"clamp: ", "not in bool"}},
    {"is_finite", [](In x) { return ops::IsFinite(x[0]); }, {S8()}, {"is_finite: ", "not in s8"}},
    {"integer_pow", [](In x) { return ops::IntegerPow(x[0], -1); }, {Array::Zeros(DType::kS32, {2})},
     {"integer_pow: exponent -1 is negative", "s32[2]", "cast"}},
    {"bitcast", [](In x) { return ops::Bitcast(x[0], DType::kS16); }, {F32()},
     {"bitcast: the widths differ: f32 has 32 bits, s16 has 16; cast"}},
    {"bitcast bool", [](In x) { return ops::Bitcast(x[0], DType::kBool); }, {S8()},
     {"bitcast: the bits of s8[", "do not become bool"}},
    {"exponent_bits", [](In x) { return ops::ReducePrecision(x[0], 0, 3); }, {F32()}, {"exponent_bits is 0"}},
    {"mantissa_bits", [](In x) { return ops::ReducePrecision(x[0], 4, -1); }, {F32()}, {"mantissa_bits is -1"}},
    {"reduce_precision", [](In x) { return ops::ReducePrecision(x[0], 4, 3); },
     {Array::Zeros(DType::kS32, {2})}, {"reduce_precision: takes floats"}},
    {"pred", [](In x) { return ops::Select(x[0], x[0], x[0]); }, {F32()}, {"select: the predicate is f32[2,3]"}},
  });
}

TEST(BasicOpsTest, MovementRefusals) {
  ExpectRefused({
    {"axes", [](In x) { return ops::ReduceSum(x[0], {2}); }, {F32()}, {"reduce_sum: ", "2"}},
    {"axes twice", [](In x) { return ops::ReduceMax(x[0], {1, -1}); }, {F32()}, {"reduce_max: "}},
    {"broadcast", [](In x) { return ops::BroadcastTo(x[0], {2, 4}); }, {F32()},
     {"broadcast: axis 1", "extent 3", "has 4"}},
    {"broadcast rank", [](In x) { return ops::BroadcastTo(x[0], {3}); }, {F32()}, {"broadcast: "}},
    {"broadcast order", [](In x) { return ops::BroadcastInDim(x[0], {3, 2}, {1, 0}); }, {F32()}, {"are not in ascending order"}},
    {"reshape", [](In x) { return ops::Reshape(x[0], {4}); }, {F32()}, {"reshape: ", "has 6", "has 4"}},
    {"reshape open", [](In x) { return ops::Reshape(x[0], {-1, -1}); }, {F32()}, {"reshape: ", "-1"}},
    {"reshape huge", [](In x) { return ops::Reshape(x[0], {int64_t{1} << 40, int64_t{1} << 40}); }, {F32()},
     {"reshape: "}},
    {"transpose", [](In x) { return ops::Transpose(x[0], {0}); }, {F32()}, {"transpose: [0] is not a permutation"}},
    {"slice", [](In x) { return ops::Slice(x[0], {0, 0}, {2, 4}); }, {F32()},
     {"slice: [0:4:1] is not a slice of axis 1"}},
    {"slice stride", [](In x) { return ops::Slice(x[0], {0, 0}, {2, 3}, {1, 0}); }, {F32()}, {"[0:3:0]"}},
    {"slice rank", [](In x) { return ops::Slice(x[0], {0}, {2}); }, {F32()}, {"start has 1 numbers for 2 axes"}},
    {"pad", [](In x) { return ops::Pad(x[0], {-1, 0}, {-2, 0}); }, {F32()},
     {"pad: the padding of axis 0 of f32[2,3] takes more elements away than there are: low -1, high -2"}},
    {"pad interior", [](In x) { return ops::Pad(x[0], {1, 0}, {0, 0}, {0, -1}); }, {F32()},
     {"pad: the padding of axis 1 of f32[2,3] is negative between elements", "interior -1"}},
    {"pad value", [](In x) { return ops::Pad(x[0], {0}, {1}, {}, 128); }, {S8()}, {"pad: the value 128 is none of s8"}},
    {"pad fraction", [](In x) { return ops::Pad(x[0], {0}, {1}, {}, 0.5); }, {S8()}, {"the value 0.5"}},
    {"reverse", [](In x) { return ops::Reverse(x[0], {2}); }, {F32()}, {"reverse: ", "2"}},
    {"iota", [](In) { return ops::Iota(DType::kF32, {2}, 1); }, {}, {"iota: axis 1 of [1] is not in 0 .. 0"}},
    {"iota bool", [](In) { return ops::Iota(DType::kBool, {2}, 0); }, {}, {"iota: ", "not in bool"}},
    {"iota huge", [](In) { return ops::Iota(DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}, 0); }, {},
     {"iota: ", "more elements"}},
  });
}

TEST(BasicOpsTest, IndexWindowAndProductRefusals) {
  ExpectRefused({
    {"argmax", [](In x) { return ops::ArgMax(x[0], 0); }, {Array::Zeros(DType::kF32, {0, 2})},
     {"argmax: axis 0 of f32[0,2] has no elements"}},
    {"argmin", [](In x) { return ops::ArgMin(x[0], 2); }, {F32()}, {"argmin: axis 2"}},
    {"cumulative_sum", [](In x) { return ops::CumulativeSum(x[0], -3); }, {F32()}, {"cumulative_sum: axis -1"}},
    {"take indices", [](In x) { return ops::Take(x[0], x[0]); }, {F32()}, {"take: the indices are f32[2,3], not s32"}},
    {"take nothing", [](In x) { return ops::Take(x[0], 0); }, {Array::Zeros(DType::kF32, {0, 2})},
     {"take: axis 0 of f32[0,2] has no elements to take"}},
    {"scatter", [](In x) { return ops::ScatterAdd(x[1], x[0], 4); }, {F32(), Array::Zeros(DType::kS32, {3})},
     {"scatter_add: axis 0 of the updates f32[2,3]", "s32[3]"}},
    {"scatter axis", [](In x) { return ops::ScatterAdd(x[1], x[0], 4, 2); }, {F32(), Array::Zeros(DType::kS32, {3})},
     {"scatter_add: axis 2 and the 1 axes"}},
    {"scatter extent", [](In x) { return ops::ScatterAdd(x[1], x[0], 0); }, {F32(), Array::Zeros(DType::kS32, {2})},
     {"scatter_add: the extent is 0"}},
    {"window", [](In x) { return ops::ReduceWindowSum(x[0], {{1}, {}, {}, {}}); }, {F32()},
     {"reduce_window_sum: window has 1 numbers for 2 axes"}},
    {"window zero", [](In x) { return ops::ReduceWindowMax(x[0], {{1, 0}, {}, {}, {}}); }, {F32()},
     {"reduce_window_max: window 0 and stride 1 of axis 1"}},
    {"window padding", [](In x) { return ops::ReduceWindowMin(x[0], {{1, 2}, {}, {0, 2}, {}}); }, {F32()},
     {"reduce_window_min: padding 2 and 0 of axis 1", "0 .. 1"}},
    {"window prod", [](In x) {
       return Bind(ReduceWindowOp{kernels::ReduceKind::kProd, {{1, 1}, {1, 1}, {0, 0}, {0, 0}}}, {x[0]},
                   std::source_location::current())[0];
     }, {F32()}, {"reduce_window_prod: there are no products"}},
    {"empty windows", [](In x) { return ops::WindowArgMax(x[0], {{2}, {}, {1}, {1}}); },
     {Array::Zeros(DType::kF32, {0})}, {"window_argmax: the windows of f32[0] have no elements"}},
    {"key", [](In x) { return ops::RandomBits(x[0], {2}); }, {F32()}, {"random_bits: the key is f32[2,3], expected u32[2]"}},
    {"concatenate", [](In x) { return ops::Concatenate({x[0], x[1]}, 0); }, {F32(), Bf16()},
     {"concatenate: operand 1 is bf16[2,3]"}},
    {"concatenate axis", [](In x) { return ops::Concatenate({x[0]}, 2); }, {F32()},
     {"axis 2 is not one of f32[2,3]"}},
    {"nothing", [](In) { return ops::Concatenate({}, 0); }, {}, {"one or more"}},
    {"dot", [](In x) { return ops::MatMul(x[0], x[0]); }, {F32()}, {"dot_general: ", "f32[2,3]"}},
    {"dot dtypes", [](In x) { return ops::MatMul(x[0], x[1]); }, {F32(), Bf16()}, {"dot_general: dtypes differ", "cast"}},
    {"dot out", [](In x) { return ops::DotGeneral(x[0], x[0], MatMulDims(), DType::kS32); }, {F32()}, {"gives f16"}},
    {"dot bool", [](In x) { return ops::MatMul(x[0], x[0]); }, {Array::Zeros(DType::kBool, {2, 2})},
     {"not bool"}},
    {"scalar", [](In x) { return ops::MatMul(x[0], x[0]); }, {Array::Scalar(1.0f)}, {"dot_general: "}},
  });
}
// clang-format on

}  // namespace
}  // namespace aqt
