#include "aqt/ops/fp8/fp8_dot.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/fp8/fp8_projections.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using ::aqt::testing::RandomArray;
using ::aqt::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using In = absl::Span<const Value>;

constexpr int64_t kLength = 3;
Slot Data(const std::string& name) { return {SlotKind::kData, name}; }

// sum(dot(x, k) * dy) and the product; x, k and dy are of one dtype.
absl::StatusOr<Program> TraceDot(const Aval& x, const Aval& k, const Fp8DotOptions& options = {.name = "dot"}) {
  const Aval dy{x.dtype, {x.shape[0], k.shape[1]}};
  return Trace(
      [&](In in) {
        const Value y = ops::Fp8Dot(in[0], in[1], Fp8StateInputs(options.name, kLength), options);
        return std::vector<Value>{ops::ReduceSum(y * in[2]), y};
      },
      std::vector<Input>{{Data("x"), x}, {Data("k"), k}, {Data("dy"), dy}}, std::vector<Slot>{Data("loss"), Data("y")});
}

std::vector<float> Numbers(const Array& array) {
  const Array numbers = Cast(array, DType::kF32);
  return {numbers.View<float>().begin(), numbers.View<float>().end()};
}
std::vector<float> Stat(const SlotValues& values, const std::string& path) {
  return Numbers(values.at({SlotKind::kStat, path}));
}

// ---- the slow reference: f64, element by element

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data;
  double& at(int64_t r, int64_t c) { return data[r * cols + c]; }
  double at(int64_t r, int64_t c) const { return data[r * cols + c]; }
};
Matrix MatrixOf(const Array& array) {
  const std::vector<float> numbers = Numbers(array);
  return {array.shape()[0], array.shape()[1], {numbers.begin(), numbers.end()}};
}
Matrix Transposed(const Matrix& a) {
  Matrix t{a.cols, a.rows, std::vector<double>(a.data.size())};
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) t.at(c, r) = a.at(r, c);
  }
  return t;
}
// a b, and the same with magnitudes, for the error bound.
struct Product {
  Matrix sum, magnitude;
};
Product Multiplied(const Matrix& a, const Matrix& b) {
  Product product{{a.rows, b.cols, std::vector<double>(a.rows * b.cols)}, {}};
  product.magnitude = product.sum;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < b.cols; ++c) {
      for (int64_t i = 0; i < a.cols; ++i) {
        product.sum.at(r, c) += a.at(r, i) * b.at(i, c);
        product.magnitude.at(r, c) += std::fabs(a.at(r, i) * b.at(i, c));
      }
    }
  }
  return product;
}

// The values of 8-bit floats, by the functions of dtype.h, element by element.
Matrix Dequantized(const Array& x, double scale, DType dtype) {
  Matrix m = MatrixOf(x);
  for (double& v : m.data) {
    const double q = dtype == DType::kE4M3FN ? double{ToFloat(RoundTo<Float8E4M3FN>(v / scale, Overflow::kSaturate))}
                                             : double{ToFloat(RoundTo<Float8E5M2>(v / scale, Overflow::kSaturate))};
    v = q * scale;
  }
  return m;
}

// The state of one tensor, by its definition.
struct ReferenceState {
  double scale = 1;
  std::vector<double> newest_first = std::vector<double>(kLength, 0);
  void Step(const Array& x, double max) {
    double amax = 0, largest = 0;
    for (const float v : Numbers(x)) amax = std::max(amax, std::fabs(double{v}));
    newest_first.insert(newest_first.begin(), amax);
    newest_first.pop_back();
    for (const double own : newest_first) largest = std::max(largest, own);
    if (largest == 0) return;
    scale = 1;
    while (largest / scale > max) scale *= 2;
    while (largest / scale <= max / 2) scale /= 2;
  }
  // In stored order: the newest first, then the oldest, and so on.
  std::vector<float> stored() const {
    std::vector<float> result = {static_cast<float>(newest_first[0])};
    for (size_t i = newest_first.size() - 1; i >= 1; --i) result.push_back(static_cast<float>(newest_first[i]));
    return result;
  }
};

// The error bound for `terms` products of magnitude `sum` in total, added in f32, then rounded to the dtype: the bound
// of the kernels (kernels/gemm/table.h), plus half a unit of the dtype.
double Bound(DType dtype, int64_t terms, double sum, double value) {
  const double unit = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  const double least = dtype == DType::kF16 ? 0x1p-25 : 0x1p-126;
  return (terms + 3) * 0x1p-23 * sum + unit * std::fabs(value) * 1.01 + least + (terms + 1) * 0x1p-126;
}

void ExpectProduct(const Array& got, const Product& want, int64_t terms, const std::string& what) {
  const Matrix numbers = MatrixOf(got);
  ASSERT_EQ(numbers.data.size(), want.sum.data.size()) << what;
  for (size_t i = 0; i < numbers.data.size(); ++i) {
    const double bound = Bound(got.dtype(), terms, want.magnitude.data[i], want.sum.data[i]);
    EXPECT_NEAR(numbers.data[i], want.sum.data[i], bound) << what << " element " << i;
  }
}

TEST(Fp8DotTest, StepsAreTheReference) {
  Random random(11);
  for (int trial = 0; trial < 30; ++trial) {
    const DType dtype = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[trial % 3];
    const int64_t m = 1 + random.Below(20), k = 1 + random.Below(40), n = 1 + random.Below(20);
    const absl::StatusOr<Program> forward = TraceDot({dtype, {m, k}}, {dtype, {k, n}});
    ASSERT_THAT(forward, IsOk());
    const absl::StatusOr<Program> program = ValueAndGrad(*forward, {{0, 1}});
    ASSERT_THAT(program, IsOk());
    SlotValues state = InitialStats(*program);
    ASSERT_EQ(state.size(), 6u);
    ReferenceState input, kernel, output_grad;
    for (int step = 0; step < 6; ++step) {
      // The gradients of f16 stay large enough for a normal scale of f16.
      const auto array = [&](const Shape& shape) {
        const double size = std::exp2(random.Uniform(3, 9));
        return RandomArray({dtype, shape}, random.Next(), -size, size);
      };
      const Array x = array({m, k}), kernel_values = array({k, n}), dy = array({m, n});
      const Matrix dx = Dequantized(x, input.scale, DType::kE4M3FN);
      const Matrix dk = Dequantized(kernel_values, kernel.scale, DType::kE4M3FN);
      const Matrix dg = Dequantized(dy, output_grad.scale, DType::kE5M2);
      SlotValues values = state;
      values.insert({{Data("x"), x}, {Data("k"), kernel_values}, {Data("dy"), dy}});
      const absl::StatusOr<SlotValues> out = EvalSlots(*program, values);
      ASSERT_THAT(out, IsOk());
      const std::string what = absl::StrCat("trial ", trial, " step ", step, " ");
      // f16 is left out because sums of the reference may be too large for it.
      if (dtype != DType::kF16) {
        ExpectProduct(out->at(Data("y")), Multiplied(dx, dk), k, what + "y");
        ExpectProduct(out->at(Data("grad(x)")), Multiplied(dg, Transposed(dk)), n, what + "dx");
        ExpectProduct(out->at(Data("grad(k)")), Multiplied(Transposed(dx), dg), m, what + "dk");
      }
      input.Step(x, 448);
      kernel.Step(kernel_values, 448);
      output_grad.Step(dy, 57344);
      for (auto& [slot, own] : state) own = out->at(slot);
      EXPECT_THAT(Stat(state, "dot/input_scale"), ElementsAre(static_cast<float>(input.scale))) << what;
      EXPECT_THAT(Stat(state, "dot/kernel_scale"), ElementsAre(static_cast<float>(kernel.scale))) << what;
      EXPECT_THAT(Stat(state, "dot/output_grad_scale"), ElementsAre(static_cast<float>(output_grad.scale))) << what;
      EXPECT_EQ(Stat(state, "dot/input_amax_history"), input.stored()) << what;
      EXPECT_EQ(Stat(state, "dot/kernel_amax_history"), kernel.stored()) << what;
      EXPECT_EQ(Stat(state, "dot/output_grad_amax_history"), output_grad.stored()) << what;
    }
  }
}

TEST(Fp8DotTest, TheFirstStepHasTheScaleOne) {
  const absl::StatusOr<Program> forward = TraceDot({DType::kF32, {1, 3}}, {DType::kF32, {3, 1}});
  ASSERT_THAT(forward, IsOk());
  const absl::StatusOr<Program> program = ValueAndGrad(*forward, {{0, 1}});
  ASSERT_THAT(program, IsOk());
  SlotValues values = InitialStats(*program);
  values[Data("x")] = Array::Of<float>({1000, 0x1p-11f, 1}, {1, 3});
  values[Data("k")] = Array::Of<float>({1, 64, 2}, {3, 1});
  values[Data("dy")] = Array::Of<float>({1e6f}, {1, 1});
  absl::StatusOr<SlotValues> out = EvalSlots(*program, values);
  ASSERT_THAT(out, IsOk());
  // 448 instead of 1000, and 0 instead of 2^-11.
  EXPECT_THAT(Numbers(out->at(Data("y"))), ElementsAre(448 + 2));
  // 57344 instead of a million. x was clipped, and still has its gradient.
  EXPECT_THAT(Numbers(out->at(Data("grad(x)"))), ElementsAre(57344, 57344 * 64, 57344 * 2));
  EXPECT_THAT(Numbers(out->at(Data("grad(k)"))), ElementsAre(448 * 57344, 0, 57344));
  for (auto& [slot, array] : values) {
    if (slot.kind == SlotKind::kStat) array = out->at(slot);
  }
  EXPECT_THAT(Stat(values, "dot/input_scale"), ElementsAre(4));
  EXPECT_THAT(Stat(values, "dot/output_grad_scale"), ElementsAre(32));
  out = EvalSlots(*program, values);
  ASSERT_THAT(out, IsOk());
  EXPECT_THAT(Numbers(out->at(Data("y"))), ElementsAre(1024 + 2));  // 1000 / 4 is 256 in e4m3fn, and 2^-13 is 0
}

TEST(Fp8DotTest, WithoutAGradientNothingIsUpdated) {
  const absl::StatusOr<Program> forward = TraceDot({DType::kF32, {2, 3}}, {DType::kF32, {3, 4}});
  ASSERT_THAT(forward, IsOk());
  EXPECT_EQ(CountOps(*forward, "fp8_dot"), 1);
  EXPECT_EQ(forward->outputs.size(), 2u);
  EXPECT_EQ(InitialStats(*forward).size(), 6u);
  const absl::StatusOr<Program> program = ValueAndGrad(*forward, {{0, 1}});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(CountOps(*program, "fp8_dot_fwd"), 1);
  EXPECT_EQ(CountOps(*program, "fp8_dot_bwd"), 1);
  EXPECT_EQ(program->outputs.size(), 2u + 2u + 6u);
  // The kernel is trained even if the input needs no gradient: all six are updated.
  const absl::StatusOr<Program> kernel_only = ValueAndGrad(*forward, {{1}});
  ASSERT_THAT(kernel_only, IsOk());
  EXPECT_EQ(kernel_only->outputs.size(), 2u + 1u + 6u);
}

// A scale that is not a power of two rounds each dequantized operand: 13 * bf16(0.3) is 3.90625 in bf16, and its square
// is 15.25; the square of 3.91015625 would be 15.3125.
TEST(Fp8DotTest, OtherScalesRoundTheOperands) {
  const Aval one{DType::kBF16, {1, 1}};
  const absl::StatusOr<Program> program = TraceDot(one, one);
  ASSERT_THAT(program, IsOk());
  SlotValues values = InitialStats(*program);
  for (auto& [slot, array] : values) {
    if (array.num_elements() == 1) array = Array::Of<float>({0.3f}, {1});
  }
  for (const char* name : {"x", "k", "dy"}) {
    values[Data(name)] = Cast(Array::Of<float>({3.90625f}, {1, 1}), DType::kBF16);
  }
  const absl::StatusOr<SlotValues> out = EvalSlots(*program, values);
  ASSERT_THAT(out, IsOk());
  EXPECT_THAT(Numbers(out->at(Data("y"))), ElementsAre(15.25f));
}

// Products of codes by the kernels and in basic operations: the same bits, for scales of every kind.
TEST(Fp8DotTest, IsItsExpansionBitForBit) {
  Random random(3);
  for (int i = 0; i < 60; ++i) {
    const DType dtype = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[random.Below(3)];
    const int64_t m = random.Below(40), k = random.Below(70), n = random.Below(40);
    Fp8DotOptions options{.name = "dot"};
    if (random.Below(2) == 0) options.compute_dtype = DType::kF32;
    if (random.Below(2) == 0) options.compat = Fp8Compat::Original();
    const absl::StatusOr<Program> forward = TraceDot({dtype, {m, k}}, {dtype, {k, n}}, options);
    ASSERT_THAT(forward, IsOk());
    const absl::StatusOr<Program> trained = ValueAndGrad(*forward, {{0, 1}});
    ASSERT_THAT(trained, IsOk());
    for (const Program* program : {&*forward, &*trained}) {
      const absl::StatusOr<Program> expanded = ExpandFully(*program);
      ASSERT_THAT(expanded, IsOk());
      EXPECT_EQ(CountOps(*expanded, "fp8_dot") + CountOps(*expanded, "fp8_dot_fwd") +
                    CountOps(*expanded, "fp8_dot_bwd") + CountOps(*expanded, "fp8_quantize"),
                0);
      SlotValues values = InitialStats(*program);
      for (auto& [slot, array] : values) {
        if (array.num_elements() != 1) continue;
        const double exponent = random.Uniform(-6, 3);
        array = Array::Of<float>(
            {static_cast<float>(std::exp2(random.Below(3) == 0 ? exponent : std::round(exponent)))}, {1});
      }
      values[Data("x")] = RandomArray({dtype, {m, k}}, 10 * i, -50, 50);
      values[Data("k")] = RandomArray({dtype, {k, n}}, 10 * i + 1, -50, 50);
      values[Data("dy")] = RandomArray({dtype, {m, n}}, 10 * i + 2, -50, 50);
      const absl::StatusOr<SlotValues> got = EvalSlots(*program, values), want = EvalSlots(*expanded, values);
      ASSERT_THAT(got, IsOk());
      ASSERT_THAT(want, IsOk());
      for (const auto& [slot, array] : *want) {
        EXPECT_TRUE(SameBits(got->at(slot), array)) << slot.ToString() << " of case " << i;
      }
    }
  }
}

// Threads that process parts of a tensor from the end.
class BackwardExecutor : public Executor {
 public:
  int NumThreads() const override { return 3; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override {
    for (int64_t i = n - 1; i >= 0; --i) body(i);
  }
};

TEST(Fp8DotTest, ThreadsChangeNoBits) {
  const absl::StatusOr<Program> forward = TraceDot({DType::kF32, {150, 300}}, {DType::kF32, {300, 400}});
  ASSERT_THAT(forward, IsOk());
  const absl::StatusOr<Program> program = ValueAndGrad(*forward, {{0, 1}});
  ASSERT_THAT(program, IsOk());
  SlotValues values = InitialStats(*program);
  values[Data("x")] = RandomArray({DType::kF32, {150, 300}}, 1);
  values[Data("k")] = RandomArray({DType::kF32, {300, 400}}, 2);
  values[Data("dy")] = RandomArray({DType::kF32, {150, 400}}, 3);
  const absl::StatusOr<SlotValues> want = EvalSlots(*program, values);
  BackwardExecutor executor;
  const UseExecutor use(&executor);
  const absl::StatusOr<SlotValues> got = EvalSlots(*program, values);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  for (const auto& [slot, array] : *want) EXPECT_TRUE(BitEqual(got->at(slot), array)) << slot.ToString();
}

TEST(Fp8DotTest, Refuses) {
  const auto trace = [](const Aval& x, const Aval& k) {
    return Trace([](In in) { return std::vector<Value>{ops::Fp8Dot(in[0], in[1], Fp8StateInputs("dot", 2))}; },
                 std::vector<Input>{{Data("x"), x}, {Data("k"), k}})
        .status();
  };
  EXPECT_THAT(trace({DType::kF32, {2, 3, 4}}, {DType::kF32, {4, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected [m, k] and [k, n]; reshape them")));
  EXPECT_THAT(trace({DType::kF32, {2, 3}}, {DType::kF32, {4, 5}}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(trace({DType::kF32, {2, 3}}, {DType::kBF16, {3, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected one dtype")));
  EXPECT_THAT(trace({DType::kF64, {2, 3}}, {DType::kF64, {3, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected f32, bf16 or f16")));
  const Aval matrix{DType::kF32, {2, 2}};
  EXPECT_THAT(Trace(
                  [](In in) {
                    const Value once = ops::Fp8Dot(in[0], in[0], Fp8StateInputs("dot", 2), {.name = "dot"});
                    return std::vector<Value>{ops::Fp8Dot(once, in[0], Fp8StateInputs("dot", 2), {.name = "dot"})};
                  },
                  std::vector<Input>{{Data("x"), matrix}}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("share their scales and histories")));
  EXPECT_THAT(Trace([](In in) { return std::vector<Value>{ops::Fp8Dot(in[0], in[0], Fp8StateInputs("dot", 0))}; },
                    std::vector<Input>{{Data("x"), matrix}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("amax_history_length = 0, expected at least 1")));
  const absl::StatusOr<Program> forward = TraceDot(matrix, matrix);
  ASSERT_THAT(forward, IsOk());
  const absl::StatusOr<Program> first = ValueAndGrad(*forward, {{0}});
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(ValueAndGrad(*first, {{0}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("has no second derivative")));
}

// ---- projections

Value Fresh(const Shape& shape, float value) {
  return ops::BroadcastTo(ValueOrNumber(double{value}).As(DType::kF32), shape);
}
Fp8DotState FreshState() {
  const Fp8TensorState state{Fresh({1}, 1), Fresh({kLength}, 0)};
  return {state, state, state};
}

// Small integers: products and sums are exact, so an einsum in f32 is the reference.
Value Integers(const Shape& shape, uint64_t seed) {
  return ops::Round(Value(RandomArray({DType::kF32, shape}, seed, -3, 3)));
}
// sum over the contracted axes, in f32, then + bias.
Value Sum(const Value& x, const Value& w, const DotDims& dims) { return ops::DotGeneral(x, w, dims); }
void ExpectEqual(const Value& got, const Value& want) {
  const absl::StatusOr<Array> a = got.ToArray(), b = want.ToArray();
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_TRUE(BitEqual(*a, *b)) << a->shape() << b->shape();
}

TEST(Fp8ProjectionTest, AreTheirEquations) {
  const Value x = Integers({2, 3, 5}, 1), bias = Integers({4}, 2), w = Integers({5, 4}, 3);
  const DotDims last_first{.lhs_contracting = {2}, .rhs_contracting = {0}};
  ExpectEqual(ops::Fp8Projection(x, w, bias, FreshState()), Sum(x, w, last_first) + bias);
  ExpectEqual(ops::Fp8Projection(x, w, std::nullopt, FreshState()), Sum(x, w, last_first));

  const Value qkv = Integers({5, 2, 3}, 4), qkv_bias = Integers({2, 3}, 5);
  ExpectEqual(ops::Fp8QkvProjection(x, qkv, qkv_bias, FreshState()), Sum(x, qkv, last_first) + qkv_bias);

  const Value combined = Integers({3, 5, 2, 4}, 6), combined_bias = Integers({3, 2, 4}, 7);
  const Value each = Sum(x, combined, {.lhs_contracting = {2}, .rhs_contracting = {1}}) + combined_bias;
  ExpectEqual(ops::Fp8QkvCombinedProjection(x, combined, combined_bias, FreshState()),
              ops::Transpose(each, {2, 0, 1, 3, 4}));

  const Value heads = Integers({2, 3, 4, 5}, 8), out_bias = Integers({6}, 9);
  const Value nhd = Integers({4, 5, 6}, 10), dnh = ops::Transpose(nhd, {2, 0, 1});
  const Value want = Sum(heads, nhd, {.lhs_contracting = {2, 3}, .rhs_contracting = {0, 1}}) + out_bias;
  ExpectEqual(ops::Fp8AttentionOutputProjection(heads, nhd, out_bias, ops::Fp8OutputKernel::kNHD, FreshState()), want);
  ExpectEqual(ops::Fp8AttentionOutputProjection(heads, dnh, out_bias, ops::Fp8OutputKernel::kDNH, FreshState()), want);
}

TEST(Fp8ProjectionTest, Refuse) {
  const auto status = [](const Value& value) { return value.ToArray().status(); };
  const Value w = Integers({5, 4}, 3);
  EXPECT_THAT(status(ops::Fp8Projection(Integers({5}, 1), w, std::nullopt, FreshState())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which do not fit ...K,KN->...N")));
  EXPECT_THAT(status(ops::Fp8Projection(Integers({2, 4}, 1), w, std::nullopt, FreshState())),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(status(ops::Fp8Projection(Integers({2, 5}, 1), w, Integers({5}, 1), FreshState())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the bias is f32[5], expected the shape [4]")));
  EXPECT_THAT(status(ops::Fp8QkvProjection(Integers({2, 5}, 1), w, std::nullopt, FreshState())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected rank 3")));
}

// An f32 bias and its gradient are rounded to bf16.
TEST(Fp8ProjectionTest, TheBiasIsRounded) {
  const Array y = Array::Zeros(DType::kF32, {2, 1}), bias = Array::Of<float>({1.001f}, {1});
  const Array dy = Array::Of<float>({1.001f, 2.002f}, {2, 1});
  absl::StatusOr<Program> program = testing::TraceWith(
      [&](In in) {
        const Value sum = ops::Fp8AddBias(in[0], in[1]);
        return std::vector<Value>{ops::ReduceSum(sum * Value(dy)), sum};
      },
      {y, bias});
  ASSERT_THAT(program, IsOk());
  program = ValueAndGrad(*program, {{1}});
  ASSERT_THAT(program, IsOk());
  const absl::StatusOr<std::vector<Array>> out = Eval(*program, {y, bias});
  ASSERT_THAT(out, IsOk());
  EXPECT_THAT(Numbers((*out)[1]), ElementsAre(1.0f, 1.0f));
  EXPECT_THAT(Numbers((*out)[2]), ElementsAre(ToFloat(RoundToBFloat16(3.003f))));
  // A bf16 bias needs no rounding.
  const Value narrow = ops::Fp8AddBias(ops::Cast(Value(y), DType::kBF16), ops::Cast(Value(bias), DType::kBF16));
  EXPECT_EQ(narrow.dtype(), DType::kBF16);
}

}  // namespace
}  // namespace aqt
