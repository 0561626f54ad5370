// Random equations. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing case.

#include "aqt/quant/contraction/einsum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/einsum_equation.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

TEST(EinsumDType, Table) {
  using enum DType;
  EXPECT_EQ(*EinsumDType(kBF16, kBF16), kBF16);
  EXPECT_EQ(*EinsumDType(kBF16, kF32), kF32);
  EXPECT_EQ(*EinsumDType(kBF16, kF16), kF32);
  EXPECT_EQ(*EinsumDType(kS8, kS8), kF32);
  EXPECT_EQ(*EinsumDType(kS8, kBF16), kBF16);
  EXPECT_EQ(*EinsumDType(kS4, kBF16), kF32);
  EXPECT_EQ(*EinsumDType(kS4, kS8), kF32);
  EXPECT_EQ(*EinsumDType(kE5M2, kE4M3FN), kBF16);
  EXPECT_EQ(*EinsumDType(kE4M3FN, kS8), kBF16);
  EXPECT_EQ(*EinsumDType(kE4M3FN, kF16), kF32);
  EXPECT_EQ(
      EinsumDType(kE4M3FN, kE4M3FN).status(),
      absl::InvalidArgumentError("einsum: both operands are e4m3fn, which is not converted; cast one of them to f32, "
                                 "bf16 or f16"));
  EXPECT_EQ(EinsumDType(kS4, kS4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      EinsumDType(kF32, kF64).status(),
      absl::InvalidArgumentError("einsum: an operand is f64, expected f32, bf16, f16, an 8-bit float or an integer"));
}

TEST(EinsumPlan, ErrorsNameTheLetter) {
  const auto error = [](absl::string_view equation, const Shape& lhs, const Shape& rhs) {
    const absl::Status status =
        EinsumPlan::Make(equation, DefaultUnquantizedConfig(), {DType::kF32, lhs}, {DType::kF32, rhs}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(
      error("ab,bc->ac", {2, 3}, {4, 5}),
      "einsum \"ab,bc->ac\": 'b' is 3 in lhs f32[2,3], but 4 in the other operand, f32[4,5]; expected equal, or 1");
  EXPECT_EQ(error("aa,a->a", {2, 3}, {2}),
            "einsum \"aa,a->a\": 'a' is 2 and 3 in lhs f32[2,3]; a repeated letter needs equal extents");
  DotGeneralConfig config = FullyQuantized();
  config.fwd.lhs.quantizer.calibration = std::nullopt;
  const Aval lhs{DType::kF32, {2, 3}}, rhs{DType::kF32, {5, 2}};
  const absl::Status status = EinsumPlan::Make("bc,ab->ac", config, lhs, rhs).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("einsum \"bc,ab->ac\" (as rhs x lhs: sides and passes are exchanged): fwd.rhs"),
            absl::string_view::npos)
      << status;
}

TEST(EinsumPlan, CallsNameWhatDoesNotFit) {
  const Aval lhs{DType::kS8, {2, 3}}, rhs{DType::kF32, {3, 4}};
  const EinsumPlan plan = *EinsumPlan::Make("ab,bc->ac", DefaultUnquantizedConfig(), lhs, rhs);
  const Array a = Array::Zeros(DType::kS8, {2, 3}), b = Array::Zeros(DType::kF32, {3, 4});
  ArrayBuilder out(plan.out_aval()), dlhs(lhs);
  Residuals residuals;
  ASSERT_EQ(plan.Forward(a, b, {}, out.ref(), &residuals), absl::OkStatus());
  EXPECT_EQ(plan.Forward(b, b, {}, out.ref()),
            absl::InvalidArgumentError("einsum: lhs is f32[3,4], but the plan is for s8[2,3]"));
  EXPECT_EQ(plan.Forward(a, b, {}, dlhs.ref()),
            absl::InvalidArgumentError("einsum: out is s8[2,3], but the plan is for f32[2,4]"));
  EXPECT_EQ(plan.Backward(out.ref(), residuals, {}, dlhs.ref(), std::nullopt),
            absl::InvalidArgumentError("einsum: lhs is s8[2,3]: integers have no gradient; do not request one"));
  EXPECT_EQ(plan.Backward(a, residuals, {}, std::nullopt, std::nullopt),
            absl::InvalidArgumentError("einsum: g is s8[2,3], but the plan is for f32[2,4]"));
  const EinsumPlan sum =
      *EinsumPlan::Make("ab,bc->c", DotGeneralMake(8, 8), {DType::kF32, {2, 3}}, {DType::kF32, {3, 4}});
  EXPECT_EQ(
      sum.Prepare(Side::kLhs, QTensor{}).status(),
      absl::InvalidArgumentError("einsum: the equation takes a diagonal, a sum or a broadcast of lhs f32[2,3], which "
                                 "a quantized tensor cannot replace; prepare the float operand"));
}

TEST(EinsumPlan, SwapsAsJaxDoes) {
  struct Case {
    const char* equation;
    bool swapped;
  };
  for (const Case& c : {Case{"ab,bc->ac", false}, Case{"bc,ab->ac", true}, Case{"bnts,bsnh->btnh", true},
                        Case{"bqhd,bkhd->bhqk", false}, Case{"a,b->ab", false}, Case{"a,b->ba", true}}) {
    const EinsumEquation e = *ParseEinsum(
        c.equation, static_cast<int64_t>(absl::string_view(c.equation).find(',')),
        static_cast<int64_t>(absl::string_view(c.equation).find('-') - absl::string_view(c.equation).find(',') - 1));
    const auto aval = [](const std::string& names) {
      Shape shape;
      for (size_t i = 0; i < names.size(); ++i) shape.push_back(2);
      return Aval{DType::kF32, shape};
    };
    EXPECT_EQ(EinsumPlan::Make(c.equation, DefaultUnquantizedConfig(), aval(e.lhs), aval(e.rhs))->swapped(), c.swapped)
        << c.equation;
  }
}

// "lhs" of the configuration is the first operand, including mid alphas, which the original does not exchange.
TEST(EinsumPlan, ConfigurationFollowsTheOperands) {
  DotGeneralConfig config = DotGeneralMake(8, 4);
  config.fwd.lhs_mid_alpha = 0.25;
  config.dlhs = DotGeneralRawMake(7, 6);
  config.drhs = DotGeneralRawMake(5, 3);
  const Aval lhs{DType::kF32, {2, 3}}, rhs{DType::kF32, {5, 2}};
  config.tiling = *DotTilingFromEinsum("bc,ab->ac", {{'b', 1}, {'c', 3}});
  const EinsumPlan plan = *EinsumPlan::Make("bc,ab->ac", config, lhs, rhs);
  ASSERT_TRUE(plan.swapped());
  EXPECT_EQ(plan.dot_general().config(), SwapOperands(config));
  EXPECT_EQ(plan.dot_general().config().fwd.rhs_mid_alpha, 0.25);
  const EinsumPlan original =
      *EinsumPlan::Make("bc,ab->ac", config, lhs, rhs, {.semantics = {.compat = {.einsum_keeps_mid_alphas = true}}});
  EXPECT_EQ(original.dot_general().config().fwd.lhs_mid_alpha, 0.25);
  EXPECT_EQ(SwapOperands(SwapOperands(config)), config);
}

// ---- random equations

// Sums are taken before quantization: "ab,bc->c" is "b,bc->c" of the sums.
TEST(EinsumPlan, QuantizesAfterSumsAndDiagonals) {
  const DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  const Array rhs = RandomArray(DType::kF32, {4, 5}, 2), g = RandomArray(DType::kF32, {5}, 3);
  const Array lhs = Array::Of<float>({1, 2, 3, 4, 0.5f, -2, 8, 1}, {2, 4});  // the sums are exact
  const Array sums = Array::Of<float>({1.5f, 0, 11, 5}, {4});
  const DotGeneralGradients got = *QuantizedEinsumWithGradients("ab,bc->c", config, lhs, rhs, g);
  const DotGeneralGradients want = *QuantizedEinsumWithGradients("b,bc->c", config, sums, rhs, g);
  EXPECT_TRUE(BitEqual(got.out, want.out));
  EXPECT_TRUE(BitEqual(got.drhs, want.drhs));
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(got.dlhs.View<float>()[i], want.dlhs.View<float>()[i % 4]);

  const Array square = RandomArray(DType::kF32, {4, 4}, 4);
  ArrayRef diagonal(DType::kF32, {4}, {5}, square.data());
  const DotGeneralGradients of_square = *QuantizedEinsumWithGradients("bb,bc->c", config, square, rhs, g);
  const DotGeneralGradients of_diagonal = *QuantizedEinsumWithGradients("b,bc->c", config, diagonal, rhs, g);
  EXPECT_TRUE(BitEqual(of_square.out, of_diagonal.out));
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(of_square.dlhs.View<float>()[i], i % 5 == 0 ? of_diagonal.dlhs.View<float>()[i / 5] : 0.0f);
  }
}

// The product is in the common dtype, each gradient in the dtype of its operand.
// 1 + 2^-8 + 2^-8 in bf16: each addition rounds to 1, the sum to 1 + 2^-7. The letter is in lhs, then in rhs.
TEST(EinsumPlan, SumsALetterOfOneOperandOnceOrInItsDType) {
  const Array x = Cast(Array::Of<float>({1, 0x1p-8f, 0x1p-8f}, {1, 1, 3}), DType::kBF16);
  const Array one = Cast(Array::Of<float>({1}, {1, 1}), DType::kBF16);
  for (const bool original : {false, true}) {
    const PlanOptions options{.semantics = {.compat = {.einsum_sums_in_dtype = original}}};
    const float want = original ? 1 : 1.0078125f;
    const Array lhs = *QuantizedEinsum("abz,bc->ac", DefaultUnquantizedConfig(), x, one, {}, options);
    const Array rhs = *QuantizedEinsum("bc,abz->ac", DefaultUnquantizedConfig(), one, x, {}, options);
    EXPECT_EQ(Cast(lhs, DType::kF32).View<float>()[0], want);
    EXPECT_EQ(Cast(rhs, DType::kF32).View<float>()[0], want);
  }
  EXPECT_TRUE(Compat::Original().einsum_sums_in_dtype);
}

// Letters that occur once are summed first, then the diagonal: 1 + (2^-8 + 2^-8). Summed in row-major order it would be
// 1.
TEST(EinsumPlan, SumsInDTypeTakeDiagonalsLast) {
  const Array x = Cast(Array::Of<float>({1, 0, 9, 9, 9, 9, 0x1p-8f, 0x1p-8f}, {2, 2, 2}), DType::kBF16);
  const Array one = Cast(Array::Of<float>({1}, {1}), DType::kBF16);
  const PlanOptions options{.semantics = {.compat = Compat::Original()}};
  const Array sum = *QuantizedEinsum("ddz,c->c", DefaultUnquantizedConfig(), x, one, {}, options);
  EXPECT_EQ(Cast(sum, DType::kF32).View<float>()[0], 1.0078125f);
}

TEST(EinsumPlan, ConvertsOperandsOfDifferentDTypes) {
  const DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  const Array lhs = RandomArray(DType::kBF16, {3, 4}, 1), rhs = RandomArray(DType::kF32, {4, 5}, 2);
  const Array g = RandomArray(DType::kF32, {3, 5}, 3);
  const DotGeneralGradients got = *QuantizedEinsumWithGradients("ab,bc->ac", config, lhs, rhs, g);
  const DotGeneralGradients want = *QuantizedEinsumWithGradients("ab,bc->ac", config, Cast(lhs, DType::kF32), rhs, g);
  EXPECT_TRUE(BitEqual(got.out, want.out));
  EXPECT_TRUE(BitEqual(got.dlhs, Cast(want.dlhs, DType::kBF16)));
  EXPECT_TRUE(BitEqual(got.drhs, want.drhs));
  const Array codes = Array::Of<int8_t>({1, -2, 3, 127}, {2, 2});
  const Array product = *QuantizedEinsum("ab,bc->ac", DefaultUnquantizedConfig(), codes, codes);
  EXPECT_TRUE(BitEqual(product, Array::Of<float>({-5, -256, 384, 16123}, {2, 2})));
}

// A weight's stored tensor keeps the layout of the weight on either side of the product.
TEST(EinsumPlan, TakesStoredTensorsInTheLayoutOfTheOperand) {
  const DotGeneralConfig config = DotGeneralMake(8, 4);
  const Array lhs = RandomArray(DType::kF32, {5, 6}, 1), rhs = RandomArray(DType::kF32, {4, 5}, 2);
  const EinsumPlan plan = *EinsumPlan::Make("bc,ab->ac", config, lhs.aval(), rhs.aval());
  const QTensor stored = *Quantize(config.fwd.lhs.quantizer, lhs, {0});
  EXPECT_EQ(stored.scale[0].shape(), (Shape{1, 6}));
  const PreparedOperand prepared = *plan.Prepare(Side::kLhs, stored);
  QTensor scales_only = stored;
  scales_only.qvalue = std::nullopt;
  const PreparedOperand range = *plan.Prepare(Side::kLhs, scales_only);
  const Array want = *QuantizedEinsum("bc,ab->ac", config, lhs, rhs);
  ArrayBuilder out(plan.out_aval()), calibrated(plan.out_aval());
  ASSERT_EQ(plan.Forward(prepared, rhs, {}, out.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(out).Build(), want));
  ASSERT_EQ(plan.Forward(DotOperand(lhs, range), rhs, {}, calibrated.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(calibrated).Build(), want));
}

TEST(EinsumPlan, NothingIsAllocatedAfterTheFirstCall) {
  // Plain; swapped and transposed; with a diagonal, a sum and a broadcast axis.
  const struct {
    const char* equation;
    Shape lhs, rhs, out;
  } cases[] = {{"ab,bc->ac", {4, 6}, {6, 5}, {4, 5}},
               {"bnts,bsnh->btnh", {2, 3, 4, 5}, {2, 5, 3, 6}, {2, 4, 3, 6}},
               {"aabx,bc->ac", {4, 4, 6, 3}, {1, 5}, {4, 5}}};
  for (const auto& c : cases) {
    const Array lhs = RandomArray(DType::kF32, c.lhs, 1), rhs = RandomArray(DType::kBF16, c.rhs, 2);
    const Array g = RandomArray(DType::kF32, c.out, 3);
    const EinsumPlan plan = *EinsumPlan::Make(c.equation, DotGeneralMake(8, 8), lhs.aval(), rhs.aval());
    ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
    Residuals residuals;
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan.Forward(lhs, rhs, {}, out.ref(), &residuals).ok() &&
                      plan.Backward(g, residuals, {}, dlhs.ref(), drhs.ref()).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok) << c.equation;
      EXPECT_EQ(during > 0, call == 0) << c.equation << " " << during;
    }
  }
}

}  // namespace
}  // namespace aqt
