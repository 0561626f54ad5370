#include "aqt/graph/interpret/grad.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CheckGradients;
using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::TraceWith;
using ::testing::ElementsAre;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Array F64(const Shape& shape, uint64_t seed, double low = -2, double high = 2) {
  return RandomArray({DType::kF64, shape}, seed, low, high);
}

struct RuleCase {
  const char* name;
  Value (*fn)(In);
  std::vector<Array> args;
};

void PrintTo(const RuleCase& c, std::ostream* os) { *os << c.name; }

class RuleTest : public ::testing::TestWithParam<RuleCase> {};

// The random arguments avoid kinks: no element is near 0, and no two are equal.
TEST_P(RuleTest, AgreesWithDifferenceQuotients) {
  const RuleCase& c = GetParam();
  EXPECT_THAT(CheckGradients([&](In in) { return Values{c.fn(in)}; }, c.args), IsOk());
}

const DotDims kGeneralDims = {.lhs_contracting = {3, 1}, .rhs_contracting = {0, 2}, .lhs_batch = {2}, .rhs_batch = {3}};

INSTANTIATE_TEST_SUITE_P(
    Rules, RuleTest,
    ::testing::ValuesIn(std::vector<RuleCase>{
        {"neg", [](In x) { return -x[0]; }, {F64({5}, 1)}},
        {"abs", [](In x) { return ops::Abs(x[0]); }, {F64({7}, 2)}},
        {"flush", [](In x) { return ops::Flush(x[0]) * x[0]; }, {F64({5}, 49)}},
        {"exp", [](In x) { return ops::Exp(x[0]); }, {F64({5}, 3)}},
        {"log", [](In x) { return ops::Log(x[0]); }, {F64({5}, 4, 0.5, 3)}},
        {"sign", [](In x) { return ops::Sign(x[0]) * x[0]; }, {F64({5}, 50)}},
        {"ceil", [](In x) { return ops::Ceil(x[0]) * x[0]; }, {F64({5}, 51)}},
        {"sqrt", [](In x) { return ops::Sqrt(x[0]); }, {F64({5}, 52, 0.5, 3)}},
        {"rsqrt", [](In x) { return ops::Rsqrt(x[0]); }, {F64({5}, 53, 0.5, 3)}},
        {"cbrt", [](In x) { return ops::Cbrt(x[0]) * x[1]; }, {F64({5}, 94, -3, -0.5), F64({5}, 95)}},
        {"cbrt_positive", [](In x) { return ops::Cbrt(x[0]); }, {F64({5}, 96, 0.5, 3)}},
        {"expm1", [](In x) { return ops::Expm1(x[0]); }, {F64({5}, 54)}},
        {"log1p", [](In x) { return ops::Log1p(x[0]); }, {F64({5}, 55, -0.5, 3)}},
        {"sin", [](In x) { return ops::Sin(x[0]); }, {F64({5}, 56)}},
        {"cos", [](In x) { return ops::Cos(x[0]); }, {F64({5}, 57)}},
        {"tanh", [](In x) { return ops::Tanh(x[0]); }, {F64({5}, 58)}},
        {"logistic", [](In x) { return ops::Logistic(x[0]); }, {F64({5}, 59)}},
        {"erf", [](In x) { return ops::Erf(x[0]); }, {F64({5}, 60)}},
        {"pow", [](In x) { return ops::Pow(x[0], x[1]); }, {F64({7}, 61, 0.5, 2), F64({7}, 62)}},
        {"integer_pow", [](In x) { return ops::IntegerPow(x[0], 3); }, {F64({5}, 63)}},
        {"integer_pow_negative", [](In x) { return ops::IntegerPow(x[0], -2); }, {F64({5}, 64, 0.5, 2)}},
        {"clamp",
         [](In x) { return ops::Clamp(x[0], x[1], x[2]); },
         {F64({9}, 65, -2, 0), F64({9}, 66), F64({9}, 67, 0, 2)}},
        {"clamp_crossed",
         [](In x) { return ops::Clamp(x[0], x[1], x[2]); },
         {F64({9}, 68), F64({9}, 69), F64({9}, 70)}},
        {"is_finite",
         [](In x) { return ops::Select(ops::Not(ops::IsFinite(x[0])), x[0], x[0] * 2.0); },
         {F64({4}, 71)}},
        {"add", [](In x) { return x[0] + x[1]; }, {F64({2, 3}, 5), F64({2, 3}, 6)}},
        {"sub", [](In x) { return x[0] - x[1]; }, {F64({2, 3}, 7), F64({2, 3}, 8)}},
        {"mul", [](In x) { return x[0] * x[1]; }, {F64({2, 3}, 9), F64({2, 3}, 10)}},
        {"square", [](In x) { return x[0] * x[0]; }, {F64({4}, 11)}},
        {"div", [](In x) { return x[0] / x[1]; }, {F64({5}, 12), F64({5}, 13, 0.5, 2)}},
        {"max", [](In x) { return ops::Max(x[0], x[1]); }, {F64({9}, 14), F64({9}, 15)}},
        // clang-format off
        {"min", [](In x) { return ops::Min(x[0], x[1]); }, {F64({9}, 16), F64({9}, 17)}},
        {"select", [](In x) { return ops::Select(ops::Greater(x[0], 0.0), x[0] * x[1], x[1]); },
         {F64({9}, 18), F64({9}, 19)}},
        {"reduce_sum", [](In x) { return ops::ReduceSum(x[0] * x[0], {0, 2}); }, {F64({2, 3, 4}, 20)}},
        {"reduce_sum_keepdims", [](In x) { return ops::ReduceSum(x[0] * x[0], {1}, true); }, {F64({2, 3, 4}, 21)}},
        {"reduce_sum_all", [](In x) { return ops::ReduceSum(x[0]); }, {F64({2, 3}, 22)}},
        {"reduce_max", [](In x) { return ops::ReduceMax(x[0], {1}); }, {F64({3, 5}, 23)}},
        {"reduce_max_keepdims", [](In x) { return ops::ReduceMax(x[0], {0}, true); }, {F64({3, 5}, 24)}},
        {"reduce_min", [](In x) { return ops::ReduceMin(x[0], {1}); }, {F64({3, 5}, 72)}},
        {"reduce_prod", [](In x) { return ops::ReduceProd(x[0], {0, 2}); }, {F64({2, 3, 4}, 73)}},
        {"reduce_prod_keepdims", [](In x) { return ops::ReduceProd(x[0], {1}, true); }, {F64({2, 5, 2}, 74)}},
        {"reduce_prod_one", [](In x) { return ops::ReduceProd(x[0], {0}); }, {F64({1, 3}, 75)}},
        {"argmax", [](In x) { return ops::Cast(ops::ArgMax(x[0], 1), DType::kF64) * ops::ReduceMax(x[0], {1}); },
         {F64({3, 4}, 76)}},
        {"cumulative_sum", [](In x) { return ops::CumulativeSum(x[0], 1); }, {F64({2, 4, 3}, 77)}},
        {"cumulative_sum_reverse", [](In x) { return ops::CumulativeSum(x[0], 0, true); }, {F64({4}, 78)}},
        {"reverse", [](In x) { return ops::Reverse(x[0], {0, 2}) * x[1]; }, {F64({2, 3, 2}, 79), F64({2, 3, 2}, 80)}},
        {"iota", [](In x) { return x[0] * ops::Iota(DType::kF64, {2, 3}, 1); }, {F64({2, 3}, 81)}},
        {"pad_value", [](In x) { return ops::Pad(x[0], {1, 0}, {0, 2}, {2, 1}, 3) * x[1]; },
         {F64({3, 2}, 82), F64({8, 5}, 83)}},
        {"take", [](In x) { return ops::Take(x[0], Value(Array::Of<int32_t>({2, 0, 2, -1, 9, 2}, {2, 3}))) * x[1]; },
         {F64({3, 2}, 84), F64({2, 3, 2}, 85)}},
        {"take_inner", [](In x) { return ops::Take(x[0], Value(Array::Of<int32_t>({1, 1, 0}, {3})), 1); },
         {F64({2, 3, 2}, 86)}},
        {"scatter_add",
         [](In x) { return ops::ScatterAdd(Value(Array::Of<int32_t>({2, 0, 2, 9}, {4})), x[0], 5, 1) * x[1]; },
         {F64({2, 4, 2}, 87), F64({2, 5, 2}, 88)}},
        {"window_sum", [](In x) { return ops::ReduceWindowSum(x[0], {{1, 3, 2}, {1, 2, 1}, {0, 2, 0}, {0, 1, 1}}); },
         {F64({2, 7, 3}, 89)}},
        {"window_sum_rest", [](In x) { return ops::ReduceWindowSum(x[0], {{2}, {3}, {}, {}}); }, {F64({7}, 90)}},
        {"window_max", [](In x) { return ops::ReduceWindowMax(x[0], {{3, 2}, {2, 1}, {1, 0}, {2, 1}}); },
         {F64({6, 4}, 91)}},
        {"window_min", [](In x) { return ops::ReduceWindowMin(x[0], {{2, 2}, {1, 2}, {}, {}}); }, {F64({4, 5}, 92)}},
        {"window_none", [](In x) { return ops::ReduceSum(ops::ReduceWindowMax(x[0], {{9}, {}, {}, {}})) + x[0]; },
         {F64({4}, 93)}},
        {"broadcast_column", [](In x) { return x[0] * x[1]; }, {F64({3, 1}, 25), F64({4}, 26)}},
        {"broadcast_scalar", [](In x) { return x[0] * x[1]; }, {F64({}, 27), F64({2, 2}, 28)}},
        {"broadcast_in_dim", [](In x) { return ops::BroadcastInDim(x[0], {3, 2, 4}, {0, 1}); }, {F64({3, 1}, 29)}},
        {"reshape", [](In x) { return ops::Reshape(x[0], {3, 2}) * x[1]; }, {F64({6}, 30), F64({3, 2}, 31)}},
        {"transpose", [](In x) { return ops::Transpose(x[0], {2, 0, 1}) * x[1]; },
         {F64({2, 3, 4}, 32), F64({4, 2, 3}, 33)}},
        {"slice", [](In x) { return ops::Slice(x[0], {1, 0}, {3, 5}); }, {F64({4, 5}, 34)}},
        {"split",
         [](In x) {
           const Value a = ops::Slice(x[0], {0, 0}, {4, 2}), b = ops::Slice(x[0], {0, 2}, {4, 4});
           return ops::Slice(x[0], {0, 4}, {4, 6}) * b + a * a;
         },
         {F64({4, 6}, 97)}},
        {"slice_strided", [](In x) { return ops::Slice(x[0], {1, 0}, {4, 5}, {2, 3}); }, {F64({5, 6}, 35)}},
        {"slice_empty", [](In x) { return ops::Slice(x[0], {2}, {2}); }, {F64({4}, 36)}},
        {"pad", [](In x) { return ops::Pad(x[0], {1, 0}, {0, 2}, {2, 1}); }, {F64({3, 2}, 37)}},
        {"crop", [](In x) { return ops::Pad(x[0], {-1, 2}, {1, -2}, {1, 0}, 3) * x[1]; },
         {F64({3, 4}, 97), F64({5, 4}, 98)}},
        {"crop_all", [](In x) { return ops::Pad(x[0], {-5}, {3}) * x[1]; }, {F64({3}, 99), F64({1}, 100)}},
        {"concatenate", [](In x) { return ops::Concatenate({x[0], x[1], x[0]}, 1); },
         {F64({2, 1}, 38), F64({2, 3}, 39)}},
        {"matmul", [](In x) { return ops::MatMul(x[0], x[1]); }, {F64({3, 4}, 40), F64({4, 2}, 41)}},
        {"dot_general", [](In x) { return ops::DotGeneral(x[0], x[1], kGeneralDims); },
         {F64({2, 3, 2, 4}, 42), F64({4, 3, 3, 2}, 43)}},
        {"dot_vectors", [](In x) { return ops::MatMul(x[0], x[1]); }, {F64({5}, 44), F64({5}, 45)}},
        // clang-format on
        {"dot_outer", [](In x) { return ops::DotGeneral(x[0], x[1], DotDims{}); }, {F64({3}, 46), F64({2}, 47)}},
        {"dot_self", [](In x) { return ops::MatMul(x[0], x[0]); }, {F64({3, 3}, 48)}},
    }),
    [](const ::testing::TestParamInfo<RuleCase>& info) { return std::string(info.param.name); });

TEST(GradTest, ADeepFunction) {
  EXPECT_THAT(CheckGradients(
                  [](In in) {
                    Value x = in[0];
                    for (int i = 0; i < 4; ++i) x = ops::MatMul(x, in[1]) / (1.0 + ops::Exp(-x)) + in[2];
                    const Value shifted = x - ops::ReduceMax(x, {1}, true);
                    return Values{shifted - ops::Log(ops::ReduceSum(ops::Exp(shifted), {1}, true))};
                  },
                  {F64({3, 4}, 1, -1, 1), F64({4, 4}, 2, -0.5, 0.5), F64({4}, 3)}, 1e-6),
              IsOk());
}

Array Scalar64(double x) { return Array::Scalar(x); }

// The gradients of fn with respect to each argument at `args`, from one program.
std::vector<Array> GradientsAt(const std::function<Value(In)>& fn, const std::vector<Array>& args) {
  absl::StatusOr<Program> program = TraceWith([&](In in) { return Values{ops::ReduceSum(fn(in))}; }, args);
  EXPECT_THAT(program, IsOk());
  std::vector<int> wrt;
  for (size_t i = 0; i < args.size(); ++i) wrt.push_back(static_cast<int>(i));
  absl::StatusOr<Program> gradient = Grad(*program, wrt);
  EXPECT_THAT(gradient, IsOk());
  absl::StatusOr<std::vector<Array>> out = Eval(*gradient, args);
  EXPECT_THAT(out, IsOk());
  return *out;
}

TEST(GradTest, KinksAndTies) {
  EXPECT_EQ(GradientsAt([](In x) { return ops::Abs(x[0]); }, {Scalar64(0)})[0].View<double>()[0], 0);
  const std::vector<Array> tie = GradientsAt([](In x) { return ops::Max(x[0], x[1]); }, {Scalar64(1), Scalar64(1)});
  EXPECT_EQ(tie[0].View<double>()[0], 0.5);
  EXPECT_EQ(tie[1].View<double>()[0], 0.5);
  const Array shared =
      GradientsAt([](In x) { return ops::ReduceMax(x[0]); }, {Array::Of<double>({3, 1, 3, 3}, {4})})[0];
  EXPECT_TRUE(BitEqual(shared, Array::Of<double>({1 / 3.0, 0, 1 / 3.0, 1 / 3.0}, {4})));
  EXPECT_EQ(GradientsAt([](In x) { return ops::Round(x[0]) + ops::Floor(x[0]) + x[0] * 0.0; }, {Scalar64(1.3)})[0]
                .View<double>()[0],
            0);
}

double GradientAt(const std::function<Value(In)>& fn, double x) {
  return GradientsAt(fn, {Scalar64(x)})[0].View<double>()[0];
}

// Gradients as in JAX.
TEST(GradTest, EndsAndRounding) {
  for (const auto& [x, want] : {std::pair(-1.0, 0.0), std::pair(0.5, 1.0), std::pair(2.0, 0.0), std::pair(3.0, 0.0)}) {
    EXPECT_EQ(GradientAt([](In in) { return ops::Clamp(-1.0, in[0], 2.0); }, x), want) << x;
  }
  EXPECT_EQ(GradientAt([](In in) { return ops::IntegerPow(in[0], 0); }, 3), 0);
  EXPECT_EQ(GradientAt([](In in) { return ops::IntegerPow(in[0], 1); }, 3), 1);
  EXPECT_EQ(GradientAt([](In in) { return ops::IntegerPow(in[0], 2); }, 0), 0);
  EXPECT_EQ(GradientAt([](In in) { return ops::Pow(in[0], 2.0); }, -3), -6);
  EXPECT_EQ(GradientAt([](In in) { return ops::Pow(0.0, in[0]); }, 2), 0);
  // Products of the other elements, where a quotient would be 0 / 0.
  const auto product = [](In in) { return ops::ReduceProd(in[0]); };
  EXPECT_TRUE(
      BitEqual(GradientsAt(product, {Array::Of<double>({0, 2, 3}, {3})})[0], Array::Of<double>({6, 0, 0}, {3})));
  EXPECT_TRUE(
      BitEqual(GradientsAt(product, {Array::Of<double>({0, 0, 3}, {3})})[0], Array::Of<double>({0, 0, 0}, {3})));
  // Among equal elements the first of a window gets the full cotangent.
  const auto pooled = [](In in) { return ops::ReduceWindowMax(in[0], {{2}, {}, {}, {}}); };
  EXPECT_TRUE(
      BitEqual(GradientsAt(pooled, {Array::Of<double>({1, 1, 1, 0}, {4})})[0], Array::Of<double>({1, 1, 1, 0}, {4})));
  // The cotangent is rounded like the value: 9.7 * 3.3 becomes 32.
  EXPECT_EQ(GradientAt([](In in) { return ops::ReducePrecision(in[0], 4, 3) * 9.7 * 3.3; }, 1), 32);
}

TEST(GradTest, NothingFlowsThroughStopGradientAndIntegers) {
  const Array x = Array::Of<double>({1, -2, 3}, {3});
  const Array stopped = GradientsAt([](In in) { return ops::StopGradient(in[0]) * in[0]; }, {x})[0];
  EXPECT_TRUE(BitEqual(stopped, x));
  const Array through =
      GradientsAt([](In in) { return ops::Cast(ops::Cast(in[0], DType::kS32), DType::kF64) * 3.0 + in[0]; }, {x})[0];
  EXPECT_TRUE(BitEqual(through, Array::Of<double>({1, 1, 1}, {3})));
  const Array bits = GradientsAt(
      [](In in) { return ops::Bitcast(ops::Bitcast(in[0], DType::kS64), DType::kF64) * 3.0 + in[0]; }, {x})[0];
  EXPECT_TRUE(BitEqual(bits, Array::Of<double>({1, 1, 1}, {3})));
  const Array unused = GradientsAt([](In in) { return in[1] * 1.0; }, {x, Scalar64(2)})[0];
  EXPECT_TRUE(BitEqual(unused, Array::Zeros(DType::kF64, {3})));
}

TEST(GradTest, SmallFloatsKeepTheirDtypes) {
  const Array x = RandomArray({DType::kBF16, {2, 3}}, 1), w = RandomArray({DType::kBF16, {3, 2}}, 2);
  const auto fn = [](In in) {
    return Values{ops::ReduceSum(ops::DotGeneral(in[0], in[1], MatMulDims(), DType::kF32))};
  };
  absl::StatusOr<Program> program = TraceWith(fn, {x, w});
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<Program> gradient = Grad(*program, {0, 1});
  ASSERT_THAT(gradient, IsOk());
  // The backward products are computed in f32, like the forward sum; their results are rounded once.
  EXPECT_EQ(ToText(*gradient), R"text(in %0: bf16[2,3] data "0"
in %1: bf16[3,2] data "1"
const %2: f32[] = 1
%3: f32[2,2] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))}
%4: f32[] = reduce_sum(%3) {axes=[0,1]}
%5: f32[2,2] = broadcast(%2) {axes=[]} @grad()
%6: f32[3,2] = cast(%1) @grad()
%7: f32[2,3] = dot_general(%5, %6) {dims=(([1],[1]),([],[]))} @grad()
%8: bf16[2,3] = cast(%7) @grad()
%9: f32[2,3] = cast(%0) @grad()
%10: f32[2,3] = dot_general(%5, %9) {dims=(([0],[0]),([],[]))} @grad()
%11: f32[3,2] = transpose(%10) {permutation=[1,0]} @grad()
%12: bf16[3,2] = cast(%11) @grad()
out %8 data "grad(0)"
out %12 data "grad(1)"
)text");
}

// 8-bit floats have no sums: cotangents are added in f32 and rounded. 1.125 three times is 3.375, between 3.25 and 3.5
// of e4m3fn, and becomes 3.5, the even one; 2 + 1.125 is 3.125, which becomes 3.
TEST(GradTest, SumsOfCotangentsOfEightBitFloats) {
  for (const DType dtype : {DType::kE4M3FN, DType::kE5M2}) {
    const auto narrow = [&](const Value& x) { return ops::Cast(x, dtype); };
    const auto wide = [](const Value& x) { return ops::Cast(x, DType::kF32); };
    const double ct = dtype == DType::kE4M3FN ? 1.125 : 1.25;
    const auto taken = [&](In in) {
      const Value indices = Value(Array::Of<int32_t>({1, 1, 0, 1}, {4}));
      return Values{ops::ReduceSum(wide(ops::Take(narrow(in[0]), indices, 0)) * ct)};
    };
    const auto spread = [&](In in) {
      return Values{ops::ReduceSum(wide(ops::BroadcastTo(narrow(in[0]), {3, 2})) * ct)};
    };
    const auto twice = [&](In in) {
      const Value x = narrow(in[0]);
      return Values{ops::ReduceSum(wide(x) * 2.0 + wide(ops::Transpose(x, {0})) * ct)};
    };
    const Array x = Array::Of<float>({1, 2}, {2});
    const auto gradient = [&](const auto& fn) {
      const absl::StatusOr<Program> program = TraceWith(fn, {x});
      EXPECT_THAT(program, IsOk());
      const absl::StatusOr<Program> both = ValueAndGrad(*program, {0});
      EXPECT_THAT(both, IsOk());
      const absl::StatusOr<std::vector<Array>> out = Eval(*both, {x});
      EXPECT_THAT(out, IsOk());
      const absl::Span<const float> g = (*out)[1].View<float>();
      return std::vector<float>(g.begin(), g.end());
    };
    const bool is_e4m3 = dtype == DType::kE4M3FN;
    EXPECT_THAT(gradient(taken), is_e4m3 ? ElementsAre(1.125f, 3.5f) : ElementsAre(1.25f, 4.0f));
    EXPECT_THAT(gradient(spread), is_e4m3 ? ElementsAre(3.5f, 3.5f) : ElementsAre(4.0f, 4.0f));
    EXPECT_THAT(gradient(twice), is_e4m3 ? ElementsAre(3.0f, 3.0f) : ElementsAre(3.0f, 3.0f));
  }
}

TEST(GradTest, ProgramText) {
  const auto loss = [](In in) {
    Value y;
    {
      const NamedScope scope("fc1");
      y = ops::MatMul(in[0], in[1]);
    }
    WriteSlot({SlotKind::kStat, "max"}, ops::ReduceMax(y));
    return Values{ops::ReduceSum(y * y), y};
  };
  absl::StatusOr<Program> program = Trace(loss, {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}},
                                                 {{SlotKind::kParam, "fc1/kernel"}, {DType::kF32, {3, 4}}}});
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<Program> both = ValueAndGrad(*program, {1});
  ASSERT_THAT(both, IsOk());
  // There is no product for x, whose gradient was not requested.
  EXPECT_EQ(ToText(*both), R"text(in %0: f32[2,3] data "x"
in %1: f32[3,4] param "fc1/kernel"
const %2: f32[] = 1
%3: f32[2,4] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @fc1
%4: f32[] = reduce_max(%3) {axes=[0,1]}
%5: f32[2,4] = mul(%3, %3)
%6: f32[] = reduce_sum(%5) {axes=[0,1]}
%7: f32[2,4] = broadcast(%2) {axes=[]} @grad()
%8: f32[2,4] = mul(%7, %3) @grad()
%9: f32[2,4] = mul(%7, %3) @grad()
%10: f32[2,4] = add(%8, %9) @grad()
%11: f32[4,3] = dot_general(%10, %0) {dims=(([0],[0]),([],[]))} @grad(fc1)
%12: f32[3,4] = transpose(%11) {permutation=[1,0]} @grad(fc1)
out %6 data "0"
out %3 data "1"
out %4 stat "max"
out %12 data "grad(fc1/kernel)"
)text");
  EXPECT_EQ(both->eqns.back().where.line, program->eqns.front().where.line);
  absl::StatusOr<Program> alone = Grad(*program, {1});
  ASSERT_THAT(alone, IsOk());
  ASSERT_EQ(alone->outputs.size(), 2u);  // the state and the gradient
  EXPECT_EQ(alone->outputs[0].slot.path, "max");
  EXPECT_EQ(alone->outputs[1].slot.path, "grad(fc1/kernel)");
}

// Slices that cover a value give the concatenation of their gradients; one without a gradient gives zeros.
TEST(GradTest, SlicesOfAllOfAValue) {
  const auto slice = [](const Value& x, int64_t from, int64_t to) { return ops::Slice(x, {0, from}, {2, to}); };
  const auto program_of = [](TracedFunction fn) {
    return *Grad(
        *TraceWith([&](In x) { return Values{ops::ReduceSum(fn(x)[0])}; }, {Array::Zeros(DType::kF32, {2, 5})}), {{0}});
  };
  const auto gradient = [](const Program& program) {
    const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const Array out = (*Eval(program, {Array::FromSpan<float>(x, {2, 5})}))[0];
    return std::vector<float>(out.View<float>().begin(), out.View<float>().end());
  };
  const Program split = program_of([&](In x) { return Values{slice(x[0], 2, 5) * 3.0, slice(x[0], 0, 2) * -0.0}; });
  EXPECT_EQ(CountOps(split, "concatenate"), 1);
  EXPECT_EQ(CountOps(split, "pad"), 0);
  EXPECT_THAT(gradient(split), ElementsAre(0, 0, 3, 3, 3, 0, 0, 3, 3, 3));
  const Program all = program_of([&](In x) {
    const Value sum = ops::ReduceSum(slice(x[0], 2, 5) * 3.0) + ops::ReduceSum(slice(x[0], 0, 2) * x[0].dim(0));
    return Values{sum};
  });
  EXPECT_EQ(CountOps(all, "concatenate"), 1);
  EXPECT_THAT(gradient(all), ElementsAre(2, 2, 3, 3, 3, 2, 2, 3, 3, 3));
  // Slices that overlap; slices that leave a gap; a value with another use.
  const auto sums = [](const Value& a, const Value& b) { return Values{ops::ReduceSum(a) + ops::ReduceSum(b * b)}; };
  for (const Program& other :
       {program_of([&](In x) { return sums(slice(x[0], 0, 3), slice(x[0], 2, 5)); }),
        program_of([&](In x) { return sums(slice(x[0], 0, 2), slice(x[0], 3, 5)); }), program_of([&](In x) {
          return Values{sums(slice(x[0], 0, 2), slice(x[0], 2, 5))[0] + ops::ReduceSum(x[0])};
        })}) {
    EXPECT_EQ(CountOps(other, "concatenate"), 0);
    EXPECT_EQ(CountOps(other, "pad"), 2);
  }
}

TEST(GradTest, GradientsAreProgramsAndCanBeDifferentiatedAgain) {
  const auto cube = [](In in) { return Values{in[0] * in[0] * in[0]}; };
  absl::StatusOr<Program> program = TraceWith(cube, {Scalar64(2)});
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<Program> first = Grad(*program, {0});
  ASSERT_THAT(first, IsOk());
  absl::StatusOr<Program> second = Grad(*first, {0});
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ((*Eval(*first, {Scalar64(2)}))[0].View<double>()[0], 12);
  EXPECT_EQ((*Eval(*second, {Scalar64(2)}))[0].View<double>()[0], 12);
}

// Second derivatives through the operations in the gradients of windows and rows.
TEST(GradTest, SecondDerivatives) {
  const Array x = F64({4, 3}, 94);
  for (const auto& fn : std::vector<std::function<Value(In)>>{
           [](In in) {
             return ops::ReduceWindowMax(in[0], {{2, 2}, {}, {}, {}});
           },
           [](In in) {
             return ops::ReduceWindowSum(in[0], {{2, 2}, {2, 1}, {1, 0}, {0, 0}});
           },
           [](In in) {
             return ops::Take(in[0], Value(Array::Of<int32_t>({1, 1, 3}, {3})));
           },
           [](In in) { return ops::ReduceProd(in[0], {0}); },
           [](In in) { return ops::CumulativeSum(in[0], 0); },
           [](In in) { return ops::Tanh(in[0]) + ops::Erf(in[0]) * ops::Logistic(in[0]); },
       }) {
    absl::StatusOr<Program> loss =
        TraceWith([&](In in) { return Values{ops::ReduceSum(ops::IntegerPow(fn(in), 3))}; }, {x});
    ASSERT_THAT(loss, IsOk());
    absl::StatusOr<Program> gradient = Grad(*loss, {0});
    ASSERT_THAT(gradient, IsOk());
    EXPECT_THAT(CheckGradients([&](In in) { return Inline(*gradient, in); }, {x}, 1e-6), IsOk());
  }
}

TEST(GradTest, Errors) {
  const Array f = Array::Zeros(DType::kF32, {2}), i = Array::Zeros(DType::kS32, {2});
  const auto grad_of = [](const std::function<Values(In)>& fn, const std::vector<Array>& args, std::vector<int> wrt) {
    return Grad(*TraceWith([&](In in) { return fn(in); }, args), wrt);
  };
  const auto sum = [](In in) { return Values{ops::ReduceSum(in[0])}; };
  EXPECT_THAT(grad_of([](In in) { return Values{in[0]}; }, {f}, {0}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"grad: output 0, the loss, is f32[2]"}));
  EXPECT_THAT(grad_of([](In) { return Values{}; }, {f}, {0}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"no output"}));
  EXPECT_THAT(grad_of([](In in) { return Values{ops::ReduceSum(in[0])}; }, {i}, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"the loss, is s32[]"}));
  EXPECT_THAT(grad_of(sum, {f, i}, {1}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"data \"1\"", "s32", "no float"}));
  EXPECT_THAT(grad_of(sum, {f}, {0, 0}), FailsWith(absl::StatusCode::kInvalidArgument, {"data \"0\"", "twice"}));
  EXPECT_THAT(grad_of(sum, {f}, {1}), FailsWith(absl::StatusCode::kInvalidArgument, {"no input 1"}));
  EXPECT_THAT(grad_of(sum, {f}, {-1}), FailsWith(absl::StatusCode::kInvalidArgument, {"no input -1"}));
}

// Shows that the check itself can fail.
TEST(CheckGradientsTest, SeesAWrongGradient) {
  EXPECT_THAT(CheckGradients([](In in) { return Values{in[0] * ops::StopGradient(in[0])}; }, {F64({3}, 1)}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"argument 0, element 0"}));
}

}  // namespace
}  // namespace aqt
