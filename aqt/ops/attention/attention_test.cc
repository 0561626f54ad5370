#include "aqt/ops/attention/attention.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/attention/attention_op.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// The arrays of an attention, in the order of the operands.
struct Problem {
  std::vector<Array> arrays;
  bool has_bias = false, has_mask = false;

  AttentionOperands Operands(In in) const {
    AttentionOperands operands{in[0], in[1], in[2]};
    if (has_bias) operands.bias = in[3];
    if (has_mask) operands.mask = in[has_bias ? 4 : 3];
    return operands;
  }
  Program Traced() const {
    return *testing::TraceWith([&](In in) { return Values{ops::Attention(Operands(in))}; }, arrays);
  }
};

Shape Extents(int64_t a, int64_t b, int64_t c, int64_t d) { return {a, b, c, d}; }

// An operand that broadcasts to `full`: some axes are 1, and some in front are left out.
Shape Narrowed(const Shape& full, Random& random) {
  Shape shape;
  for (int64_t i = random.Below(3); i < 4; ++i) shape.push_back(random.Below(2) == 0 ? 1 : full[i]);
  return shape;
}

struct Sizes {
  int64_t batch, queries, keys, heads, features, out;
};

Problem MakeProblem(const Sizes& s, DType dtype, Random& random) {
  Problem problem;
  const double range = random.Below(4) == 0 ? 20 : 2;
  problem.arrays = {
      RandomArray({dtype, Extents(s.batch, s.queries, s.heads, s.features)}, random.Next(), -range, range),
      RandomArray({dtype, Extents(s.batch, s.keys, s.heads, s.features)}, random.Next(), -range, range),
      RandomArray({dtype, Extents(s.batch, s.keys, s.heads, s.out)}, random.Next())};
  const Shape scores = Extents(s.batch, s.heads, s.queries, s.keys);
  problem.has_bias = random.Below(2) == 0;
  problem.has_mask = random.Below(2) == 0;
  if (problem.has_bias) problem.arrays.push_back(RandomArray({DType::kF32, Narrowed(scores, random)}, random.Next()));
  if (problem.has_mask) {
    const Array numbers = RandomArray({DType::kF32, Narrowed(scores, random)}, random.Next());
    // Some queries see no key.
    problem.arrays.push_back(*ops::Less(Value(numbers), random.Uniform(-2, 2)).ToArray());
  }
  return problem;
}

Program Expanded(const Program& program) {
  return *Rewrite(program, [](const Equation& eqn, In operands) {
    const auto* op = std::get_if<CompositeOp>(&eqn.op);
    return op == nullptr ? BindAgain(eqn, operands) : op->impl->Expand(operands);
  });
}

Array Result(const Program& program, const std::vector<Array>& arrays, Executor* executor = nullptr) {
  const UseExecutor use(executor);
  return (*Eval(program, arrays))[0];
}

void ExpectBitsOfExpansion(const Problem& problem, Executor* executor, absl::string_view what) {
  const Program program = problem.Traced();
  ASSERT_EQ(CountOps(program, "attention"), 1) << what;
  const Program parts = Expanded(program);
  ASSERT_EQ(CountOps(parts, "attention"), 0);
  ASSERT_EQ(CountOps(parts, "dot_general"), 2);
  EXPECT_TRUE(SameBits(Result(program, problem.arrays, executor), Result(parts, problem.arrays))) << what << "\n"
                                                                                                  << ToText(program);
}

TEST(AttentionOpTest, HasTheBitsOfItsExpansion) {
  kernels::ThreadPool pool(3);
  Random random(1);
  for (int i = 0; i < 150; ++i) {
    const auto draw = [&](int64_t most) { return 1 + random.Below(most); };
    const DType dtypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
    const Sizes sizes = {draw(3), draw(50), draw(50), draw(4), draw(40), draw(40)};
    const Problem problem = MakeProblem(sizes, dtypes[random.Below(5)], random);
    if (::testing::Test::HasFatalFailure()) return;
    ExpectBitsOfExpansion(problem, random.Below(2) == 0 ? &pool : nullptr, absl::StrCat("problem ", i));
  }
}

// Large enough for several units, blocks of queries and threads.
TEST(AttentionOpTest, DoesNotDependOnBlocksOrThreads) {
  kernels::ThreadPool two(2), seven(7);
  Random random(2);
  const Sizes all[] = {{1, 700, 700, 1, 8, 8},    // blocks of queries; more threads than matrices
                       {3, 130, 129, 5, 16, 24},  // units that do not divide the heads
                       {40, 16, 16, 12, 8, 8},    // several entries of the batch at once
                       {2, 1, 3000, 3, 33, 5},    // one query
                       {1, 3000, 1, 2, 7, 9}};    // one key
  for (const Sizes& sizes : all) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Problem problem = MakeProblem(sizes, dtype, random);
      for (Executor* executor : std::initializer_list<Executor*>{nullptr, &two, &seven}) {
        ExpectBitsOfExpansion(problem, executor, absl::StrCat(sizes.batch, "x", sizes.queries, "x", sizes.keys));
      }
    }
  }
}

// An entry of the batch has the bits that it has alone.
TEST(AttentionOpTest, DoesNotDependOnTheBatch) {
  Random random(3);
  Problem all = MakeProblem({5, 20, 33, 3, 16, 16}, DType::kF32, random);
  all.has_bias = all.has_mask = false;
  all.arrays.resize(3);
  const Array together = Result(all.Traced(), all.arrays);
  for (int64_t b = 0; b < 5; ++b) {
    const auto entry = [&](const Array& x) {
      const Shape& s = x.shape();
      return *ops::Slice(Value(x), {b, 0, 0, 0}, {b + 1, s[1], s[2], s[3]}).ToArray();
    };
    Problem one;
    for (const Array& x : all.arrays) one.arrays.push_back(entry(x));
    EXPECT_TRUE(SameBits(Result(one.Traced(), one.arrays), entry(together))) << b;
  }
}

// NaN and infinities reach the rows that they reach in the expansion.
TEST(AttentionOpTest, SpecialNumbers) {
  Random random(4);
  for (const double special : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (int operand = 0; operand < 3; ++operand) {
      Problem problem = MakeProblem({2, 9, 18, 2, 8, 8}, DType::kF32, random);
      std::vector<float> numbers(problem.arrays[operand].View<float>().begin(),
                                 problem.arrays[operand].View<float>().end());
      numbers[random.Below(static_cast<int64_t>(numbers.size()))] = static_cast<float>(special);
      problem.arrays[operand] = Array::FromSpan(absl::MakeConstSpan(numbers), problem.arrays[operand].shape());
      ExpectBitsOfExpansion(problem, nullptr, absl::StrCat(special, " in operand ", operand));
    }
  }
}

// The scores of 8192 tokens are 256 MiB.
TEST(AttentionOpTest, MemoryDoesNotGrowWithTheProductOfTheLengths) {
  const auto scratch = [](int64_t queries, int64_t keys) {
    const Aval q{DType::kF32, {1, queries, 1, 32}}, k{DType::kF32, {1, keys, 1, 32}};
    const auto op = *internal::MakeComposite(internal::AttentionFields{});
    return op->MakeKernel({{q}, {k}, {k}}, {true})->scratch_bytes;
  };
  EXPECT_EQ(scratch(16384, 8192), scratch(8192, 8192));
  EXPECT_LT(scratch(8192, 8192), 16 << 20);
  EXPECT_LT(scratch(8192, 16384), 2 * scratch(8192, 8192));
}

// The gradients of the float operands have the bits of the expansion's.
TEST(AttentionOpTest, GradientIsThatOfTheExpansion) {
  Random random(5);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    Problem problem = MakeProblem({2, 5, 6, 3, 4, 7}, dtype, random);
    while (!problem.has_bias || !problem.has_mask) problem = MakeProblem({2, 5, 6, 3, 4, 7}, dtype, random);
    const Value weights(RandomArray({dtype, {2, 5, 3, 7}}, 6));
    const Program loss = *testing::TraceWith(
        [&](In in) { return Values{ops::ReduceSum(ops::Attention(problem.Operands(in)) * weights)}; }, problem.arrays);
    const std::vector<int> wrt = {0, 1, 2, 3};
    const Program gradient = *Grad(loss, wrt), of_parts = *Grad(Expanded(loss), wrt);
    // No equation computes what nothing reads, such as the result once more.
    EXPECT_EQ(CountOps(gradient, "dot_general"), 5);
    const std::vector<Array> got = *Eval(gradient, problem.arrays), want = *Eval(of_parts, problem.arrays);
    for (size_t i = 0; i < wrt.size(); ++i) EXPECT_TRUE(SameBits(got[i], want[i])) << ToString(dtype) << " " << i;
  }
}

TEST(AttentionOpTest, ItsPartsHaveScopes) {
  Random random(6);
  const Problem problem = MakeProblem({1, 2, 3, 1, 4, 5}, DType::kF32, random);
  const Program program = *testing::TraceWith(
      [&](In in) {
        const NamedScope scope("layer");
        return Values{ops::Attention(problem.Operands(in))};
      },
      problem.arrays);
  const Program parts = Expanded(program);
  std::vector<std::string> products;
  for (const Equation& eqn : parts.eqns) {
    if (OpName(eqn.op) == "dot_general") {
      products.push_back(absl::StrCat(parts.scope(eqn), " ", parts.aval(eqn.in[0]).ToString(), ", ",
                                      parts.aval(eqn.in[1]).ToString()));
    }
  }
  // As ContractionsOfAttention says.
  std::vector<Aval> avals;
  for (const Equation& eqn : program.eqns) {
    if (OpName(eqn.op) != "attention") continue;
    for (const VarId var : eqn.in) avals.push_back(program.aval(var));
  }
  std::vector<std::string> said;
  for (const internal::InnerContraction& inner : internal::ContractionsOfAttention(avals)) {
    said.push_back(absl::StrCat("layer/", inner.scope, " ", inner.lhs.ToString(), ", ", inner.rhs.ToString()));
  }
  EXPECT_EQ(products, said);
}

TEST(AttentionOpTest, Text) {
  Problem problem;
  for (const Shape& shape : {Shape{1, 2, 1, 4}, Shape{1, 3, 1, 4}, Shape{1, 3, 1, 5}, Shape{2, 3}}) {
    problem.arrays.push_back(Array::Zeros(DType::kF32, shape));
  }
  problem.has_bias = true;
  EXPECT_THAT(ToText(problem.Traced()), ::testing::HasSubstr("= attention(%0, %1, %2, %4) {bias}"));
}

TEST(AttentionOpTest, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Aval q{DType::kF32, {2, 3, 4, 5}}, k{DType::kF32, {2, 6, 4, 5}}, v{DType::kF32, {2, 6, 4, 7}};
  const auto op = *internal::MakeComposite({.has_bias = true, .has_mask = true});
  const Aval bias{DType::kF32, {1, 4, 1, 6}}, mask{DType::kBool, {2, 1, 3, 1}};
  EXPECT_EQ(*op->Infer({q, k, v, bias, mask}), (std::vector<Aval>{{DType::kF32, {2, 3, 4, 7}}}));
  EXPECT_THAT(op->Infer({q, k, v, bias}), FailsWith(kInvalid, {"takes 5 operands"}));
  EXPECT_THAT(op->Infer({q, v, v, bias, mask}), FailsWith(kInvalid, {"takes query [batch, queries, heads, features]"}));
  EXPECT_THAT(op->Infer({{DType::kBF16, q.shape}, k, v, bias, mask}), FailsWith(kInvalid, {"of one dtype"}));
  EXPECT_THAT(op->Infer({{DType::kF32, {2, 3, 4}}, k, v, bias, mask}), FailsWith(kInvalid, {"takes arrays [batch"}));
  EXPECT_THAT(op->Infer({q, k, v, {DType::kF64, bias.shape}, mask}),
              FailsWith(kInvalid, {"takes a bias f32 with 4 axes that broadcasts to [2,4,3,6], not f64[1,4,1,6]"}));
  EXPECT_THAT(op->Infer({q, k, v, bias, {DType::kBool, {3, 6}}}), FailsWith(kInvalid, {"takes a mask bool"}));
  EXPECT_THAT(op->Infer({q, k, v, bias, {DType::kBool, {2, 1, 3, 5}}}), FailsWith(kInvalid, {"not bool[2,1,3,5]"}));
}

// Operands that one equation cannot hold have the errors of the operations.
TEST(AttentionOpTest, OtherOperandsAreInBasicOperations) {
  const Value q(Array::Zeros(DType::kF32, {1, 2, 1, 4})), v(Array::Zeros(DType::kBF16, {1, 2, 1, 4}));
  EXPECT_THAT(ops::Attention({q, q, v}).ToArray(), FailsWith(absl::StatusCode::kInvalidArgument, {"dot_general [av]"}));
  const Value mask(Array::Zeros(DType::kBool, {3, 2}));
  EXPECT_THAT(ops::Attention({.query = q, .key = q, .value = q, .mask = mask}).ToArray(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"select"}));
}

// There may be no keys, or nothing at all.
TEST(AttentionOpTest, EmptyExtents) {
  Random random(7);
  for (const Sizes& sizes : {Sizes{0, 2, 3, 1, 4, 5}, Sizes{1, 0, 3, 1, 4, 5}, Sizes{1, 2, 3, 0, 4, 5},
                             Sizes{1, 2, 3, 1, 4, 0}, Sizes{1, 2, 0, 1, 4, 5}}) {
    Problem problem = MakeProblem(sizes, DType::kF32, random);
    problem.arrays.resize(3);
    problem.has_bias = problem.has_mask = false;
    ExpectBitsOfExpansion(problem, nullptr, absl::StrCat(sizes.queries, "x", sizes.keys));
  }
}

}  // namespace
}  // namespace aqt
