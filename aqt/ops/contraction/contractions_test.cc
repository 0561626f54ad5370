// Convolutions and ragged contractions in programs. The operations have the bits of their plans and of their
// expansions, forward and backward. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing case.

#include "aqt/ops/contraction/contractions.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/testing/environment.h"
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
using ::aqt::testing::FromEnvironment;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using ::aqt::testing::TraceWith;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// Output and gradients by the plan of the problem's kind.
absl::StatusOr<std::vector<Array>> RunPlan(const ContractionProblem& problem) {
  const Context context{.key = Key{0, 3}};
  const PlanOptions options{.semantics = problem.semantics};
  const auto run = [&](const auto& plan, const auto& forward,
                       const auto& backward) -> absl::StatusOr<std::vector<Array>> {
    ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
    Residuals residuals;
    AQT_RETURN_IF_ERROR(forward(out.ref(), residuals));
    AQT_RETURN_IF_ERROR(backward(LossWeights(plan.out_aval()), residuals, dlhs.ref(), drhs.ref()));
    return std::vector<Array>{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
  };
  if (const ConvDims* dims = std::get_if<ConvDims>(&problem.dims)) {
    AQT_ASSIGN_OR_RETURN(const ConvGeneralPlan plan, ConvGeneralPlan::Make(problem.config.fwd, problem.lhs.aval(),
                                                                           problem.rhs.aval(), *dims, options));
    return run(
        plan,
        [&](const MutableArrayRef& out, Residuals& residuals) {
          return plan.Forward(problem.lhs, problem.rhs, context, out, &residuals);
        },
        [&](const Array& g, const Residuals& residuals, const MutableArrayRef& dlhs, const MutableArrayRef& drhs) {
          return plan.Backward(g, residuals, dlhs, drhs);
        });
  }
  if (const EinsumDims* dims = std::get_if<EinsumDims>(&problem.dims)) {
    AQT_ASSIGN_OR_RETURN(const EinsumPlan plan, EinsumPlan::Make(dims->equation, problem.config, problem.lhs.aval(),
                                                                 problem.rhs.aval(), options));
    return run(
        plan,
        [&](const MutableArrayRef& out, Residuals& residuals) {
          return plan.Forward(problem.lhs, problem.rhs, context, out, &residuals);
        },
        [&](const Array& g, const Residuals& residuals, const MutableArrayRef& dlhs, const MutableArrayRef& drhs) {
          return plan.Backward(g, residuals, context, dlhs, drhs);
        });
  }
  const std::vector<int64_t> sizes = internal::GroupSizesOf(*problem.group_sizes);
  AQT_ASSIGN_OR_RETURN(const RaggedDotPlan plan,
                       RaggedDotPlan::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), options));
  return run(
      plan,
      [&](const MutableArrayRef& out, Residuals& residuals) {
        return plan.Forward(problem.lhs, problem.rhs, sizes, context, out, &residuals);
      },
      [&](const Array& g, const Residuals& residuals, const MutableArrayRef& dlhs, const MutableArrayRef& drhs) {
        return plan.Backward(g, residuals, sizes, context, dlhs, drhs);
      });
}

int CountComposites(const Program& program) {
  int count = CountOps(program, "einsum");
  for (const char* kind : {"aqt_dot_general", "aqt_conv", "aqt_ragged_dot", "conv", "ragged_dot"}) {
    for (const char* pass : {"", "_fwd", "_bwd"}) count += CountOps(program, absl::StrCat(kind, pass));
  }
  return count;
}

void ExpectPlanFusedAndExpandedAgree(ContractionProblem (*draw)(Random&), std::map<std::string, int> features) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), wanted = FromEnvironment("AQT_TEST_CASES", 500);
  const std::vector<Slot> outputs = {OutSlot(), {SlotKind::kData, "grad(lhs)"}, {SlotKind::kData, "grad(rhs)"}};
  kernels::ThreadPool pool(2);
  int64_t legal = 0, refused = 0;
  for (int64_t tries = 0; legal < wanted && tries < 40 * wanted; ++tries) {
    Random random(static_cast<uint64_t>(first_seed + tries));
    const ContractionProblem problem = draw(random);
    const std::string text = problem.ToString();
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + tries, ": ", text));
    const absl::StatusOr<std::vector<Array>> want = RunPlan(problem);
    const absl::StatusOr<Program> loss = LossOf(problem);
    ASSERT_EQ(loss.ok(), want.ok()) << loss.status() << " " << want.status();
    if (!want.ok()) {
      EXPECT_EQ(loss.status().code(), want.status().code());
      ++refused;
      continue;
    }
    ++legal;
    for (auto& [feature, count] : features) count += absl::StrContains(text, feature) ? 1 : 0;
    ASSERT_EQ(CountComposites(*loss), 1);
    const absl::StatusOr<Program> fused = ValueAndGrad(*loss, {0, 1});
    ASSERT_THAT(fused, IsOk());
    ASSERT_EQ(CountComposites(*fused), 2);
    const absl::StatusOr<Program> expanded = ExpandFully(*fused);
    ASSERT_THAT(expanded, IsOk());
    ASSERT_EQ(CountComposites(*expanded), 0);
    const SlotValues values = ValuesOf(problem);
    for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool)}) {
      const UseExecutor threads(executor);
      const absl::StatusOr<SlotValues> inferred = EvalSlots(*loss, values), got = EvalSlots(*fused, values),
                                       meant = EvalSlots(*expanded, values);
      ASSERT_THAT(inferred, IsOk());
      ASSERT_THAT(got, IsOk());
      ASSERT_THAT(meant, IsOk());
      ASSERT_TRUE(SameBits(inferred->at(OutSlot()), (*want)[0])) << "without a gradient";
      for (size_t i = 0; i < outputs.size(); ++i) {
        ASSERT_TRUE(SameBits(got->at(outputs[i]), (*want)[i])) << outputs[i].path << " is not the plan's";
        ASSERT_TRUE(SameBits(meant->at(outputs[i]), (*want)[i])) << outputs[i].path << " of the expansion";
      }
    }
  }
  EXPECT_EQ(legal, wanted);
  if (wanted < 100) return;
  for (const auto& [feature, count] : features) EXPECT_GE(count, 5) << feature;
  EXPECT_GE(refused, 5);
}

TEST(ConvTest, PlanFusedAndExpandedAgree) {
  ExpectPlanFusedAndExpandedAgree(&RandomConvProblem, {{"SAME", 0},
                                                       {"VALID", 0},
                                                       {"padding=[(", 0},
                                                       {"strides=", 0},
                                                       {"lhs_dilation", 0},
                                                       {"rhs_dilation", 0},
                                                       {"groups=", 0},
                                                       {"fwd=float", 0},
                                                       {"this_input", 0},
                                                       {"clip_gradient", 0},
                                                       {"per_tensor", 0},
                                                       {"-> s32", 0},
                                                       {"-> f16", 0},
                                                       {"jax_uniform", 0},
                                                       {"fp8", 0},
                                                       {"bf16[", 0},
                                                       {"f16[", 0}});
}

TEST(RaggedDotTest, PlanFusedAndExpandedAgree) {
  ExpectPlanFusedAndExpandedAgree(&RandomRaggedProblem, {{"fwd=float", 0},
                                                         {"use_fwd_quant", 0},
                                                         {"this_input", 0},
                                                         {"other_input", 0},
                                                         {"clip_gradient", 0},
                                                         {"-> s32", 0},
                                                         {"jax_uniform", 0},
                                                         {"fp8", 0},
                                                         {"bf16[", 0}});
}

TEST(EinsumTest, PlanFusedAndExpandedAgree) {
  ExpectPlanFusedAndExpandedAgree(&RandomEinsumProblem, {{"...", 0},
                                                         {"fwd=float", 0},
                                                         {"use_fwd_quant", 0},
                                                         {"this_input", 0},
                                                         {"other_input", 0},
                                                         {"clip_gradient", 0},
                                                         {"-> s32", 0},
                                                         {"jax_uniform", 0},
                                                         {"fp8", 0},
                                                         {"bf16[", 0}});
}

TEST(ConvTest, ProgramText) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {2, 8, 8, 4}}, 1),
                                   RandomArray({DType::kF32, {3, 3, 2, 6}}, 2)};
  const ConvDims dims{.window_strides = {2, 2}, .padding = ConvPadding::kSame, .feature_group_count = 2};
  const absl::StatusOr<Program> program = TraceWith([&](In in) { return Values{ops::Conv(in[0], in[1], dims)}; }, args);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[2,8,8,4] data "0"
in %1: f32[3,3,2,6] data "1"
%2: f32[2,4,4,6] = conv(%0, %1) {padding=SAME, strides=[2,2], groups=2}
out %2 data "0"
)");
}

TEST(RaggedDotTest, ProgramText) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {6, 3}}, 1), RandomArray({DType::kF32, {2, 3, 5}}, 2),
                                   Array::Of<int32_t>({2, 3}, {2})};
  const absl::StatusOr<Program> program =
      TraceWith([&](In in) { return Values{ops::RaggedDot(in[0], in[1], in[2])}; }, args);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[6,3] data "0"
in %1: f32[2,3,5] data "1"
in %2: s32[2] data "2"
%3: f32[6,5] = ragged_dot(%0, %1, %2)
out %3 data "0"
)");
}

// A sum that underflows to -0 with FMA stays -0: the rows of other groups add -0.
TEST(RaggedDotTest, TheSignOfAVanishingSum) {
  const float tiny = 1e-30f;
  ContractionProblem problem{.dims = RaggedDims(),
                             .lhs = Array::Of<float>({tiny, 1}, {2, 1}),
                             .rhs = Array::Of<float>({1, 1}, {2, 1, 1}),
                             .group_sizes = Array::Of<int32_t>({1, 1}, {2})};
  const absl::StatusOr<Program> loss = Trace(
      [&](In in) {
        const Value out = ops::RaggedDot(in[0], in[1], in[2]);
        return Values{ops::ReduceSum(out * Value(Array::Of<float>({-tiny, 1}, {2, 1})))};
      },
      InputsFor(problem));
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<Program> fused = Grad(*loss, {1});
  ASSERT_THAT(fused, IsOk());
  const SlotValues values = ValuesOf(problem);
  const Slot gradient{SlotKind::kData, "grad(rhs)"};
  const absl::StatusOr<SlotValues> got = EvalSlots(*fused, values), meant = EvalSlots(*ExpandFully(*fused), values);
  ASSERT_THAT(got, IsOk());
  ASSERT_THAT(meant, IsOk());
  EXPECT_TRUE(BitEqual(got->at(gradient), meant->at(gradient)));
}

TEST(EinsumTest, ProgramText) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {2, 3}}, 1), RandomArray({DType::kF32, {5, 3, 3}}, 2)};
  const absl::StatusOr<Program> program =
      TraceWith([&](In in) { return Values{ops::Einsum("ij,kjj->ki", in[0], in[1])}; }, args);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[2,3] data "0"
in %1: f32[5,3,3] data "1"
%2: f32[5,2] = einsum(%0, %1) {"ij,kjj->ki"}
out %2 data "0"
)");
  // The diagonal of the second operand, which is first in jax's order.
  EXPECT_EQ(ToText(*Rewrite(*program, ExpandAll)), R"(in %0: f32[2,3] data "0"
in %1: f32[5,3,3] data "1"
%2: f32[5,9] = reshape(%1)
%3: f32[5,3] = slice(%2) {start=[0,0], limit=[5,9], stride=[1,4]}
%4: f32[5,2] = aqt_dot_general(%3, %0) {dims=(([1],[1]),([],[])), fwd=float, dlhs=float, drhs=float}
out %4 data "0"
)");
}

// An integer operand is converted to the dtype of the other one, and has no gradient.
TEST(EinsumTest, IntegerOperand) {
  const Array lhs = Array::Of<int8_t>({1, -2, 3, 4}, {2, 2}), rhs = Array::Of<float>({1, 2, 3, 4}, {2, 2});
  const absl::StatusOr<std::vector<Array>> out =
      aqt::testing::RunBothWays([](In in) { return Values{ops::Einsum("ij,jk->ik", in[0], in[1])}; }, {lhs, rhs});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Of<float>({-5, -6, 15, 22}, {2, 2})));
}

TEST(EinsumTest, Errors) {
  const auto einsum = [](absl::string_view equation) {
    return TraceWith([&](In in) { return Values{ops::Einsum(equation, in[0], in[1])}; },
                     {RandomArray({DType::kF32, {2, 3}}, 1), RandomArray({DType::kF32, {3, 4}}, 2)});
  };
  EXPECT_THAT(einsum("ij,jk->il"), FailsWith(absl::StatusCode::kInvalidArgument, {"einsum: ", "ij,jk->il", "'l'"}));
  EXPECT_THAT(einsum("ij,kj->ik"), FailsWith(absl::StatusCode::kInvalidArgument,
                                             {"'j' is 3 in lhs f32[2,3], but 4", "contractions_test.cc:"}));
}

// Computed by hand: two examples of three elements, kernel [1,10].
TEST(ConvTest, ByHand) {
  const Array x = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3, 1}), kernel = Array::Of<float>({1, 10}, {2, 1, 1});
  const absl::StatusOr<std::vector<Array>> out =
      aqt::testing::RunBothWays([](In in) { return Values{ops::Conv(in[0], in[1])}; }, {x, kernel});
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(BitEqual((*out)[0], Array::Of<float>({21, 32, 54, 65}, {2, 2, 1})));
}

// Float operations can be differentiated again, through the gradients of their expansions.
TEST(ConvTest, SecondDerivative) {
  const std::vector<Array> args = {RandomArray({DType::kF32, {1, 4, 1}}, 1), RandomArray({DType::kF32, {2, 1, 1}}, 2)};
  const absl::StatusOr<Program> loss = TraceWith(
      [](In in) {
        const Value y = ops::Conv(in[0], in[1]);
        return Values{ops::ReduceSum(y * y)};
      },
      args);
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<Program> gradient = ValueAndGrad(*loss, {1});
  ASSERT_THAT(gradient, IsOk());
  const absl::StatusOr<Program> first =
      TraceWith([&](In in) { return Values{ops::ReduceSum(Inline(*gradient, in)[1])}; }, args);
  ASSERT_THAT(first, IsOk());
  const absl::StatusOr<Program> second = ValueAndGrad(*first, {1});
  ASSERT_THAT(second, IsOk());
  const absl::StatusOr<std::vector<Array>> got = Eval(*second, args);
  ASSERT_THAT(got, IsOk());
  // loss = sum (x[o] k0 + x[o+1] k1)^2; the derivatives of its gradient's sum are 2 sum x[o]^2 + 2 sum x[o] x[o+1] etc.
  const absl::Span<const float> x = args[0].View<float>();
  double want[2] = {0, 0};
  for (int o = 0; o < 3; ++o) {
    want[0] += 2.0 * x[o] * x[o] + 2.0 * x[o] * x[o + 1];
    want[1] += 2.0 * x[o + 1] * x[o + 1] + 2.0 * x[o] * x[o + 1];
  }
  // The tolerance is a few roundings of numbers below 32.
  for (int i = 0; i < 2; ++i) EXPECT_NEAR((*got)[1].View<float>()[i], want[i], 32 * 16 * 6e-8);
}

TEST(ConvTest, Errors) {
  const auto conv = [](const Shape& lhs, const Shape& rhs, const ConvDims& dims) {
    return TraceWith([&](In in) { return Values{ops::Conv(in[0], in[1], dims)}; },
                     {RandomArray({DType::kF32, lhs}, 1), RandomArray({DType::kF32, rhs}, 2)});
  };
  EXPECT_THAT(conv({2, 3}, {3, 4}, {}), FailsWith(absl::StatusCode::kInvalidArgument,
                                                  {"conv: conv_general: lhs is [2,3]", "contractions_test.cc:"}));
  EXPECT_THAT(conv({2, 5, 3}, {2, 2, 4}, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"feature_group_count = 1 with 3 input channels"}));
  // Settings that a convolution would ignore are refused.
  const Aval x{DType::kF32, {2, 5, 3}}, kernel{DType::kF32, {2, 3, 4}};
  EXPECT_THAT(
      AqtDot::Make(FullyQuantized(), x, kernel, ConvDims()),
      FailsWith(absl::StatusCode::kInvalidArgument, {"sets dlhs", "the gradients of a convolution are not quantized"}));
  DotGeneralConfig config{.fwd = ConvGeneralDilatedMake(1, 8, 8)};
  EXPECT_THAT(AqtDot::Make(config, x, kernel, ConvDims()), IsOk());
  config.drhs.rhs.use_fwd_quant = true;
  EXPECT_THAT(AqtDot::Make(config, x, kernel, ConvDims()),
              FailsWith(absl::StatusCode::kInvalidArgument, {"sets drhs"}));
  config.drhs = {};
  config.tiling.emplace();
  EXPECT_THAT(AqtDot::Make(config, x, kernel, ConvDims()),
              FailsWith(absl::StatusCode::kInvalidArgument, {"sets tiling"}));
}

// Sizes are data. Groups stop at the end of lhs, in the operation and in its expansion.
TEST(RaggedDotTest, GroupsEndWithLhs) {
  const Array lhs = RandomArray({DType::kF32, {6, 3}}, 1), rhs = RandomArray({DType::kF32, {3, 3, 5}}, 2);
  const Array sizes = Array::Of<int32_t>({2, 7, 1}, {3}), within = Array::Of<int32_t>({2, 4, 0}, {3});
  const absl::StatusOr<Program> program =
      TraceWith([&](In in) { return Values{ops::RaggedDot(in[0], in[1], in[2])}; }, {lhs, rhs, sizes});
  ASSERT_THAT(program, IsOk());
  for (const Program& each : {*program, *ExpandFully(*program)}) {
    const absl::StatusOr<std::vector<Array>> got = Eval(each, {lhs, rhs, sizes});
    ASSERT_THAT(got, IsOk());
    EXPECT_TRUE(BitEqual((*got)[0], (*Eval(each, {lhs, rhs, within}))[0]));
  }
}

TEST(RaggedDotTest, Errors) {
  const Array lhs = RandomArray({DType::kF32, {6, 3}}, 1), rhs = RandomArray({DType::kF32, {2, 3, 5}}, 2);
  const auto traced = [&](const Array& sizes) {
    return TraceWith([&](In in) { return Values{ops::RaggedDot(in[0], in[1], in[2])}; }, {lhs, rhs, sizes});
  };
  EXPECT_THAT(traced(Array::Of<int32_t>({1, 2, 3}, {3})),
              FailsWith(absl::StatusCode::kInvalidArgument, {"group_sizes is s32[3], expected s32[2]"}));
  EXPECT_THAT(traced(Array::Of<float>({1, 2}, {2})),
              FailsWith(absl::StatusCode::kInvalidArgument, {"group_sizes is f32[2], expected s32[2]"}));
  // Sizes are data: the operation and its expansion fail in the same way at run time.
  const Array negative = Array::Of<int32_t>({-1, 3}, {2});
  const absl::StatusOr<Program> program = traced(negative);
  ASSERT_THAT(program, IsOk());
  for (const Program& each : {*program, *ExpandFully(*program)}) {
    EXPECT_THAT(Eval(each, {lhs, rhs, negative}),
                FailsWith(absl::StatusCode::kInvalidArgument, {"[-1,3]: a negative size"}));
  }
  // An operation with groups needs their sizes; any other one takes none.
  const absl::StatusOr<AqtDot> ragged = AqtDot::Make(DotGeneralMake(8, 8), lhs.aval(), rhs.aval(), RaggedDims());
  ASSERT_THAT(ragged, IsOk());
  EXPECT_THAT(ragged->Apply({Value(lhs)}, {Value(rhs)}, std::nullopt, SourceLine()).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, {"aqt_ragged_dot", "give it group_sizes"}));
}

}  // namespace
}  // namespace aqt
