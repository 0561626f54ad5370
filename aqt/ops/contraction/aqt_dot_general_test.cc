#include "aqt/ops/contraction/aqt_dot_general.h"

#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/ops/contraction/aqt_dot_testing.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/contraction/dot_general.h"
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
using ::aqt::testing::TraceWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// ---- one problem

Problem Int8MatMul() {
  return {
      {}, FullyQuantized(), MatMulDims(), RandomArray({DType::kF32, {3, 4}}, 1), RandomArray({DType::kF32, {4, 2}}, 2)};
}

TEST(AqtDotGeneralTest, ProgramTextOfForwardAndBackward) {
  absl::StatusOr<Program> program = TraceWith(
      [&](In in) {
        const NamedScope scope("fc1");
        return Values{ops::ReduceSum(ops::AqtDotGeneral(in[0], in[1], MatMulDims(), FullyQuantized(), in[2]))};
      },
      {Int8MatMul().lhs, Int8MatMul().rhs, KeyArray(0)});
  ASSERT_THAT(program, IsOk());
  const std::string attributes =
      "{dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32), "
      "dlhs=(int8:s8+jax_uniform absmax * int8:s8+jax_uniform absmax use_fwd_quant -> s32), "
      "drhs=(int8:s8+jax_uniform absmax * int8:s8+jax_uniform absmax use_fwd_quant -> s32)}";
  EXPECT_EQ(ToText(*program), absl::StrCat("in %0: f32[3,4] data \"0\"\n"
                                           "in %1: f32[4,2] data \"1\"\n"
                                           "in %2: u32[2] data \"2\"\n"
                                           "%3: f32[3,2] = aqt_dot_general(%0, %1, %2) ",
                                           attributes, " @fc1\n",
                                           "%4: f32[] = reduce_sum(%3) {axes=[0,1]} @fc1\n"
                                           "out %4 data \"0\"\n"));
  absl::StatusOr<Program> gradient = Grad(*program, {1});
  ASSERT_THAT(gradient, IsOk());
  EXPECT_EQ(ToText(*gradient),
            absl::StrCat(
                "in %0: f32[3,4] data \"0\"\n"
                "in %1: f32[4,2] data \"1\"\n"
                "in %2: u32[2] data \"2\"\n"
                "const %3: f32[] = 1\n"
                "%4: f32[3,2], %5: s8[3,4], %6: f32[3,1], %7: s8[4,2], %8: f32[1,2] = aqt_dot_general_fwd(%0, %1, %2) ",
                attributes, " @fc1\n",
                "%9: f32[] = reduce_sum(%4) {axes=[0,1]} @fc1\n"
                "%10: f32[3,2] = broadcast(%3) {axes=[]} @grad(fc1)\n"
                "%11: f32[3,4], %12: f32[4,2] = aqt_dot_general_bwd(%10, %5, %6, %7, %8, %2) ",
                attributes, " @grad(fc1)\n", "out %12 data \"grad(1)\"\n"));
}

// The program gives the same result as the plan called without a graph.
TEST(AqtDotGeneralTest, IsTheOneShotFunction) {
  const Problem problem = Int8MatMul();
  absl::StatusOr<Program> program = LossAndGradients(problem);
  ASSERT_THAT(program, IsOk());
  absl::StatusOr<std::vector<Array>> got = Eval(*program, {problem.lhs, problem.rhs, KeyArray(3)});
  ASSERT_THAT(got, IsOk());
  const Array g = RandomArray({DType::kF32, {3, 2}}, 7);
  absl::StatusOr<DotGeneralGradients> want =
      QuantizedDotGeneralWithGradients(problem.config, problem.lhs, problem.rhs, g, problem.dims, {.key = Key{0, 3}});
  ASSERT_THAT(want, IsOk());
  EXPECT_TRUE(BitEqual((*got)[1], want->out));
  EXPECT_TRUE(BitEqual((*got)[2], want->dlhs));
  EXPECT_TRUE(BitEqual((*got)[3], want->drhs));
}

TEST(AqtDotGeneralTest, ErrorsNameOperationScopeAndRemedy) {
  const auto traced = [](const DotGeneralConfig& config, DType dtype, bool with_key, bool grad) -> absl::Status {
    absl::StatusOr<Program> program = TraceWith(
        [&](In in) {
          const NamedScope scope("fc1");
          return Values{ops::ReduceSum(ops::AqtDotGeneral(in[0], in[1], MatMulDims(), config,
                                                          with_key ? std::optional<Value>(in[2]) : std::nullopt))};
        },
        {RandomArray({dtype, {3, 4}}, 1), RandomArray({dtype, {4, 2}}, 2), KeyArray(0)});
    return program.ok() && grad ? Grad(*program, {0, 1}).status() : program.status();
  };
  EXPECT_THAT(traced(FullyQuantized(), DType::kF32, true, true), IsOk());
  EXPECT_THAT(traced(FullyQuantized(), DType::kF32, false, false), IsOk());
  EXPECT_THAT(traced(FullyQuantized(), DType::kF32, false, true),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        {"aqt_dot_general [fc1]", "no key", "aqt_dot_general_test.cc:"}));
  DotGeneralConfig noisy = FullyQuantized();
  std::get<IntSymmetric>(noisy.fwd.lhs.quantizer.numerics).noise = Noise{};
  EXPECT_THAT(traced(noisy, DType::kF32, false, false),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"aqt_dot_general [fc1]", "give it a key"}));
  EXPECT_THAT(traced(FullyQuantized(), DType::kF64, true, false),
              FailsWith(absl::StatusCode::kInvalidArgument, {"aqt_dot_general [fc1]", "f64[3,4], f64[4,2]"}));
  DotGeneralConfig illegal = FullyQuantized();
  illegal.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  EXPECT_THAT(traced(illegal, DType::kF32, true, false),
              FailsWith(absl::StatusCode::kInvalidArgument, {"aqt_dot_general [fc1]: fwd.lhs", "REMAINING_AXIS"}));
}

TEST(AqtDotGeneralTest, AnOperandQuantizedBeforeHasNoGradient) {
  const Problem problem = Int8MatMul();
  absl::StatusOr<AqtDot> dot = AqtDot::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), problem.dims);
  ASSERT_THAT(dot, IsOk());
  absl::StatusOr<Program> program = TraceWith(
      [&](In in) {
        const AqtDot::Operand rhs = dot->Quantize(Side::kRhs, in[1], std::nullopt, SourceLine());
        return Values{ops::ReduceSum(dot->Apply({in[0]}, rhs, std::nullopt, SourceLine()))};
      },
      {problem.lhs, problem.rhs});
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(Grad(*program, {0}),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"already quantized", "no gradient"}));
}

// Equal names and attributes mean the same computation, even if a qvalue has the dtype of the operand.
TEST(AqtDotGeneralTest, ProgramTextTellsScalesFromQuantizedOperands) {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs}) {
    std::get<IntSymmetric>(tensor->quantizer.numerics).dtype = std::nullopt;
  }
  config.fwd.dg_accumulator_dtype = std::nullopt;
  const Problem problem = Int8MatMul();
  absl::StatusOr<AqtDot> dot = AqtDot::Make(config, problem.lhs.aval(), problem.rhs.aval(), problem.dims);
  ASSERT_THAT(dot, IsOk());
  const auto text = [&](bool lhs_is_quantized, bool rhs_is_quantized) {
    absl::StatusOr<Program> program = TraceWith(
        [&](In in) {
          return Values{dot->Apply({in[0], in[2], lhs_is_quantized}, {in[1], in[3], rhs_is_quantized}, std::nullopt,
                                   std::source_location::current())};
        },
        {problem.lhs, problem.rhs, Array::Zeros(DType::kF32, {3, 1}), Array::Zeros(DType::kF32, {1, 2})});
    EXPECT_THAT(program, IsOk());
    return ToText(*program);
  };
  EXPECT_THAT(text(true, true), Not(HasSubstr("given scale")));
  EXPECT_THAT(text(false, true), HasSubstr(", lhs by a given scale}"));
  EXPECT_THAT(text(true, false), HasSubstr(", rhs by a given scale}"));
  EXPECT_THAT(text(false, false), HasSubstr(", lhs by a given scale, rhs by a given scale}"));
}

TEST(AqtDotGeneralTest, HasNoSecondDerivative) {
  absl::StatusOr<Program> loss = TraceWith(
      [](In in) {
        const NamedScope scope("fc1");
        return Values{ops::ReduceSum(ops::AqtDotGeneral(in[0], in[1], MatMulDims(), DotGeneralMake(8, 8)))};
      },
      {Int8MatMul().lhs, Int8MatMul().rhs});
  ASSERT_THAT(loss, IsOk());
  absl::StatusOr<Program> gradients = ValueAndGrad(*loss, {0, 1});
  ASSERT_THAT(gradients, IsOk());
  EXPECT_THAT(Grad(*gradients, {0}),
              FailsWith(absl::StatusCode::kUnimplemented, {"aqt_dot_general_fwd [fc1]", "part of a gradient",
                                                           "no second derivative", "aqt_dot_general_test.cc:"}));
}

TEST(AqtDotGeneralTest, QuantizeRefuses) {
  const Problem problem = Int8MatMul();
  const Value x(problem.rhs);
  const auto quantized = [&](const DotGeneralConfig& config) {
    absl::StatusOr<AqtDot> dot = AqtDot::Make(config, problem.lhs.aval(), problem.rhs.aval(), problem.dims);
    EXPECT_THAT(dot, IsOk());
    return dot->Quantize(Side::kRhs, x, std::nullopt, std::source_location::current()).value.status();
  };
  EXPECT_THAT(quantized(DefaultUnquantizedConfig()),
              FailsWith(absl::StatusCode::kInvalidArgument, {"aqt_quantize: fwd.rhs is not quantized", "TRAIN"}));
  DotGeneralConfig noisy = FullyQuantized();
  std::get<IntSymmetric>(noisy.fwd.rhs.quantizer.numerics).noise = Noise{};
  EXPECT_THAT(quantized(noisy), FailsWith(absl::StatusCode::kFailedPrecondition, {"aqt_quantize", "key"}));
  DotGeneralConfig biased = FullyQuantized({.use_fwd_quant = false}).value();
  biased.fwd.rhs.quantizer.calibration = Constant{.bound = 1.0, .bias = 0.5};
  biased.fwd.rhs.dequant_mode = DequantMode::kThisInput;
  biased.fwd.dg_accumulator_dtype = std::nullopt;
  EXPECT_THAT(quantized(biased), FailsWith(absl::StatusCode::kUnimplemented, {"aqt_quantize", "bias"}));
}

}  // namespace
}  // namespace aqt
