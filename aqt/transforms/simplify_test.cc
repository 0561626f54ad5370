#include "aqt/transforms/simplify.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

using testing::CountOps;
using testing::IsOk;
using testing::RandomArray;
using testing::TraceWith;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// Expects the last equation to be a dot_general with the bits of the transposed product, or else still a transpose.
void ExpectExchanged(const DotDims& dims, const Axes& permutation, const Aval& lhs, const Aval& rhs, bool exchanged) {
  const std::vector<Array> args = {RandomArray(lhs, 1), RandomArray(rhs, 2)};
  const absl::StatusOr<Program> program =
      TraceWith([&](In in) { return Values{ops::Transpose(ops::DotGeneral(in[0], in[1], dims), permutation)}; }, args);
  ASSERT_THAT(program, IsOk());
  const Program simple = WithoutTransposedProducts(*program);
  ASSERT_THAT(Check(simple), IsOk());
  EXPECT_EQ(CountOps(simple, "transpose"), exchanged ? 0 : 1);
  const absl::StatusOr<std::vector<Array>> got = Eval(simple, args);
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual((*got)[0], (*Eval(*program, args))[0]));
}

TEST(SimplifyTest, ExchangesTheOperandsOfTransposedProducts) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kS8, DType::kS32}) {
    const DotDims plain{{1}, {0}, {}, {}};
    ExpectExchanged(plain, {1, 0}, {dtype, {37, 65}}, {dtype, {65, 19}}, true);
    const DotDims batched{{3, 1}, {1, 2}, {0}, {0}};
    const Aval lhs{dtype, {2, 5, 9, 7}}, rhs{dtype, {2, 7, 5, 3, 4}};
    ExpectExchanged(batched, {0, 2, 3, 1}, lhs, rhs, true);
    ExpectExchanged(batched, {0, 3, 2, 1}, lhs, rhs, false);
    ExpectExchanged(batched, {2, 3, 0, 1}, lhs, rhs, false);
  }
}

TEST(SimplifyTest, LeavesWhatOthersRead) {
  const Array x = RandomArray({DType::kF32, {4, 6}}, 1), y = RandomArray({DType::kF32, {6, 5}}, 2);
  const absl::StatusOr<Program> program = TraceWith(
      [](In in) {
        const Value product = ops::MatMul(in[0], in[1]);
        return Values{product, ops::Transpose(product, {1, 0})};
      },
      {x, y});
  EXPECT_EQ(ToText(WithoutTransposedProducts(*program)), ToText(*program));
}

// A float with an integer: the kernel of such products needs the integers on the right.
TEST(SimplifyTest, LeavesMixedProducts) {
  ExpectExchanged({{1}, {0}, {}, {}}, {1, 0}, {DType::kF32, {4, 6}}, {DType::kS8, {6, 5}}, false);
}

// Operations between a product and its transpose are moved after the transpose, in the same order.
TEST(SimplifyTest, MovesTransposesBeforeElementwiseOperations) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {4, 6}}, 1), RandomArray({DType::kF32, {6, 5}}, 2),
                                   RandomArray({DType::kF32, {}}, 3), RandomArray({DType::kF32, {4, 5}}, 4)};
  const auto simplify = [&](TracedFunction fn, int transposes) {
    const absl::StatusOr<Program> program = TraceWith(fn, args);
    ASSERT_THAT(program, IsOk());
    const Program simple = WithoutTransposedProducts(*program);
    ASSERT_THAT(Check(simple), IsOk()) << ToText(simple);
    EXPECT_EQ(CountOps(simple, "transpose"), transposes) << ToText(simple);
    const std::vector<Array> got = *Eval(simple, args), want = *Eval(*program, args);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(BitEqual(got[i], want[i])) << i;
  };
  simplify([](In in) { return Values{ops::Transpose(ops::MatMul(in[0], in[1]) / in[2], {1, 0})}; }, 0);
  simplify(
      [](In in) {
        const Value scaled = in[2] - ops::Tanh(ops::MatMul(in[0], in[1]) / in[2]) * 3.0;
        return Values{ops::Transpose(ops::Cast(scaled, DType::kBF16), {1, 0})};
      },
      0);
  // Two products of one number.
  simplify(
      [](In in) {
        const Value number = ops::BroadcastTo(in[2], {4, 5});
        return Values{ops::Transpose(ops::MatMul(in[0], in[1]) / number, {1, 0}), number};
      },
      0);
  // A result that is also read elsewhere; an operation of two arrays; no product.
  simplify(
      [](In in) {
        const Value scaled = ops::MatMul(in[0], in[1]) / in[2];
        return Values{ops::Transpose(scaled, {1, 0}), scaled};
      },
      1);
  simplify([](In in) { return Values{ops::Transpose(ops::MatMul(in[0], in[1]) + in[3], {1, 0})}; }, 1);
  simplify([](In in) { return Values{ops::Transpose(in[3] / in[2], {1, 0})}; }, 1);
}

// Numbers of all kinds, with both zeros.
Array Extremes(DType dtype) {
  const double tiny = 0x1p-140, inf = INFINITY;
  return Cast(Array::Of<double>({NAN, -NAN, inf, -inf, 0.0, -0.0, tiny, -tiny, 1.5, -1.5, 1e30, -1e30}, {3, 4}), dtype);
}

TEST(SimplifyTest, ReluIsAMaximum) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    const Array x = Extremes(dtype);
    const absl::StatusOr<Program> program = TraceWith([](In in) { return Values{ops::Relu(in[0])}; }, {x});
    ASSERT_THAT(program, IsOk());
    const Program simple = WithRelusAsMaxima(*program);
    ASSERT_THAT(Check(simple), IsOk());
    EXPECT_EQ(CountOps(*program, "select"), 1);
    EXPECT_EQ(CountOps(simple, "select"), 0);
    EXPECT_TRUE(BitEqual((*Eval(simple, {x}))[0], (*Eval(*program, {x}))[0])) << ToString(dtype);
  }
}

TEST(SimplifyTest, OtherSelectsStay) {
  const auto expect_same = [](const TracedFunction& fn) {
    const absl::StatusOr<Program> program = TraceWith(fn, {Extremes(DType::kF32), Extremes(DType::kF32)});
    ASSERT_THAT(program, IsOk());
    EXPECT_EQ(ToText(WithRelusAsMaxima(*program)), ToText(*program));
  };
  using ops::Greater, ops::GreaterEqual, ops::Max, ops::Min, ops::Select;
  expect_same([](In in) { return Values{Select(GreaterEqual(in[0], 0.0), in[0], Max(in[0], 0.0))}; });  // -0
  expect_same([](In in) { return Values{Select(Greater(in[0], -0.0), in[0], Max(in[0], -0.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[0], 0.0), in[0], Max(in[0], 1.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[0], 1.0), in[0], Max(in[0], 0.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[0], 0.0), in[0], Min(in[0], 0.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[1], 0.0), in[0], Max(in[0], 0.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[0], 0.0), in[1], Max(in[0], 0.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[0], 0.0), in[0], Max(in[1], 0.0))}; });
  expect_same([](In in) { return Values{Select(Greater(in[0], 0.0), in[0], in[1])}; });
}

}  // namespace
}  // namespace aqt::internal
