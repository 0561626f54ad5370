#include "aqt/quant/contraction/dot_operand.h"

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {
namespace {

TEST(Prepare, GivesTheSameBitsAsTheFloatOperand) {
  const Array lhs = RandomArray(DType::kF32, {6, 3, 20}, 1), rhs = RandomArray(DType::kF32, {20, 3, 9}, 2);
  DotGeneralConfig weight_only = DotGeneralMake(std::nullopt, 8), fake = WithoutNoise();
  SetFwdDequantMode(fake, std::nullopt, DequantMode::kThisInput);
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  for (const DotGeneralConfig& config : {WithoutNoise(), WithoutNoise({.fwd_bits = 4}), weight_only, fake}) {
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), kBatched);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ArrayBuilder want(plan->out_aval()), got(plan->out_aval());
    ASSERT_TRUE(plan->Forward(lhs, rhs, {}, want.ref()).ok());
    const Array expected = std::move(want).Build();
    const absl::StatusOr<PreparedOperand> weights = plan->Prepare(Side::kRhs, rhs);
    ASSERT_TRUE(weights.ok()) << weights.status();
    for (const kernels::Target target : kernels::SupportedTargets()) {  // including targets it was not packed for
      if (config.fwd.dg_accumulator_dtype != DType::kS32 && target != kernels::BestTarget()) continue;
      ASSERT_TRUE(OnTarget(*plan, target).Forward(lhs, *weights, {}, got.ref()).ok());
      EXPECT_TRUE(SameValues(Array::CopyOf(got.ref()), expected)) << target;
    }
    // Only the scales: the weights are quantized with them.
    QTensor scales = weights->qtensor();
    scales.qvalue.reset();
    const absl::StatusOr<PreparedOperand> range = plan->Prepare(Side::kRhs, scales);
    ASSERT_TRUE(range.ok()) << range.status();
    ASSERT_TRUE(plan->Forward(lhs, DotOperand(rhs, *range), {}, got.ref()).ok());
    EXPECT_TRUE(SameValues(Array::CopyOf(got.ref()), expected));
  }
}

// A masked tensor equals one with zeros at the masked positions, dequantized before the product or after it.
TEST(Prepare, TakesASparsityMask) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  DotGeneralConfig fake = WithoutNoise();
  fake.fwd.rhs.dequant_mode = DequantMode::kThisInput;
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  for (const DotGeneralConfig& config : {WithoutNoise(), fake}) {
    const DotGeneralPlan plan = *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
    const QTensor dense = plan.Prepare(Side::kRhs, rhs)->qtensor();
    // Two of four along the contracting axis; whole columns.
    std::vector<int8_t> two_of_four(40), columns = {1, 1, 0, 1, 0};
    for (int i = 0; i < 40; ++i) two_of_four[i] = (i / 5 + i % 5) % 4 < 2 ? 1 : 0;
    for (const Array& mask : {Array::FromSpan<int8_t>(two_of_four, {8, 5}), Array::FromSpan<int8_t>(columns, {1, 5}),
                              Cast(Array::FromSpan<int8_t>(two_of_four, {8, 5}), DType::kBF16)}) {
      QTensor sparse = dense, zeroed = dense;
      sparse.sparsity_mask = mask;
      ArrayBuilder q(dense.qvalue->aval());
      const Array keep = Cast(mask, DType::kF32);
      for (int i = 0; i < 40; ++i) {
        const float k = keep.View<float>()[keep.num_elements() == 5 ? i % 5 : i];
        q.Mutable<int8_t>()[i] = static_cast<int8_t>(dense.qvalue->View<int8_t>()[i] * static_cast<int>(k));
      }
      zeroed.qvalue = std::move(q).Build();
      ArrayBuilder got(plan.out_aval()), want(plan.out_aval());
      const absl::StatusOr<PreparedOperand> prepared = plan.Prepare(Side::kRhs, sparse);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_TRUE(plan.Forward(lhs, *prepared, {}, got.ref()).ok());
      ASSERT_TRUE(plan.Forward(lhs, *plan.Prepare(Side::kRhs, zeroed), {}, want.ref()).ok());
      EXPECT_TRUE(SameValues(std::move(got).Build(), std::move(want).Build()));
      EXPECT_TRUE(SameValues(*prepared->qtensor().Dequantize(), *sparse.Dequantize()));
    }
  }
}

TEST(Prepare, IsSharedByPlansOfOtherBatchesAndCheckedByAll) {
  const Array rhs = RandomArray(DType::kF32, {16, 16}, 2), lhs = RandomArray(DType::kF32, {5, 16}, 1);
  const auto plan = [&](const DotDims& dims, int64_t rows) {
    return *DotGeneralPlan::Make(WithoutNoise(), {DType::kF32, {rows, 16}}, rhs.aval(), dims);
  };
  const DotGeneralPlan three = plan(MatMulDims(), 3), five = plan(MatMulDims(), 5);
  const PreparedOperand prepared = *three.Prepare(Side::kRhs, rhs);
  ArrayBuilder want(five.out_aval()), got(five.out_aval());
  ASSERT_TRUE(five.Forward(lhs, rhs, {}, want.ref()).ok());
  ASSERT_TRUE(five.Forward(lhs, prepared, {}, got.ref()).ok());
  EXPECT_TRUE(BitEqual(std::move(got).Build(), std::move(want).Build()));
  // The same shape, but contracted along the other axis: the scale does not fit.
  const DotGeneralPlan transposed = plan({.lhs_contracting = {1}, .rhs_contracting = {1}}, 5);
  ArrayBuilder out(transposed.out_aval());
  EXPECT_EQ(
      transposed.Forward(lhs, prepared, {}, out.ref()).message(),
      "DotGeneral: the tensor for fwd.rhs: scale of rhs has shape [1,16]: it varies along the contracting axis 1");
  // A single scale fits both plans, and the panels of one are not used for the other.
  QTensor single;
  std::vector<int8_t> q(256);
  for (int i = 0; i < 256; ++i) q[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  single.qvalue = Array::FromSpan<int8_t>(q, {16, 16});
  single.scale.push_back(Array::Of<float>({0.5f}, {1, 1}));
  const PreparedOperand of_five = *five.Prepare(Side::kRhs, single),
                        of_transposed = *transposed.Prepare(Side::kRhs, single);
  ArrayBuilder direct(transposed.out_aval()), shared(transposed.out_aval());
  ASSERT_TRUE(transposed.Forward(lhs, of_transposed, {}, direct.ref()).ok());
  ASSERT_TRUE(transposed.Forward(lhs, of_five, {}, shared.ref()).ok());
  EXPECT_TRUE(BitEqual(std::move(shared).Build(), std::move(direct).Build()));
}

TEST(Prepare, RefusesTensorsThatDoNotFit) {
  const Aval lhs{DType::kF32, {4, 8}}, rhs{DType::kF32, {8, 5}};
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(WithoutNoise(), lhs, rhs, MatMulDims());
  ASSERT_TRUE(plan.ok());
  const Array weights = RandomArray(DType::kF32, {8, 5}, 2);
  const QTensor good = plan->Prepare(Side::kRhs, weights)->qtensor();
  struct Case {
    const char* message;
    QTensor tensor;
  };
  QTensor no_scale = good, wrong_dtype = good, per_row = good, biased = good;
  no_scale.scale.clear();
  wrong_dtype.qvalue = Cast(*good.qvalue, DType::kS4);
  per_row.scale[0] = Array::FromSpan<float>(std::vector<float>(8, 1), {8, 1});
  biased.bias.push_back(good.scale[0]);
  const Case cases[] = {
      {"DotGeneral: the tensor for fwd.rhs has no scale", no_scale},
      {"DotGeneral: the tensor for fwd.rhs has the qvalue s4[8,5], expected s8[8,5]", wrong_dtype},
      {"DotGeneral: the tensor for fwd.rhs: scale of rhs has shape [8,1]: it varies along the contracting axis 0",
       per_row},
      {"DotGeneral: the tensor for fwd.rhs has a bias, which needs DEQUANT_MODE_THIS_INPUT", biased},
  };
  for (const Case& c : cases) {
    const absl::Status status = plan->Prepare(Side::kRhs, c.tensor).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), c.message);
  }
  QTensor masked = good;
  masked.sparsity_mask = Array::Of<float>({1, 0, 1, 0.5f, 1}, {1, 5});
  EXPECT_EQ(plan->Prepare(Side::kRhs, masked).status(),
            absl::InvalidArgumentError("DotGeneral: the tensor for fwd.rhs has 0.5 in its sparsity mask (element 3), "
                                       "expected only 0 and 1"));
  masked.sparsity_mask = Array::Zeros(DType::kS8, {5, 8});
  EXPECT_EQ(plan->Prepare(Side::kRhs, masked).status().code(), absl::StatusCode::kInvalidArgument);
  masked.qvalue.reset();
  EXPECT_EQ(plan->Prepare(Side::kRhs, masked).status(),
            absl::UnimplementedError(
                "DotGeneral: the tensor for fwd.rhs has a sparsity mask but no qvalue; give it a qvalue"));
  const absl::StatusOr<DotGeneralPlan> plain = DotGeneralPlan::Make(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->Prepare(Side::kRhs, good).status(),
            absl::InvalidArgumentError("DotGeneral: the tensor for fwd.rhs: this side is not quantized"));
}

// Every form of a prepared operand, against the float operand that it replaces.
TEST(Prepare, Gradients) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), weights = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  for (const bool use_fwd_quant : {false, true}) {
    for (const bool clip_gradient : {false, true}) {
      for (const bool tiled : {false, true}) {
        DotGeneralConfig config = WithoutNoise({.use_fwd_quant = use_fwd_quant});
        for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs}) {
          tensor->quantizer.calibration = AbsMax{.clipping_scale = 0.5};
          std::get<IntSymmetric>(tensor->quantizer.numerics).clip_gradient = clip_gradient;
        }
        if (tiled) config.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', 4}, {'a', 2}});
        DotGeneralConfig dummy = config;
        dummy.fwd.allow_dummy_gradient_into_qtensor = true;
        const absl::StatusOr<DotGeneralPlan> plan =
            DotGeneralPlan::Make(config, lhs.aval(), weights.aval(), MatMulDims());
        const absl::StatusOr<DotGeneralPlan> allowed =
            DotGeneralPlan::Make(dummy, lhs.aval(), weights.aval(), MatMulDims());
        ASSERT_TRUE(plan.ok() && allowed.ok());
        const PlanResults want = RunPlan(*plan, lhs, weights, g);
        const absl::StatusOr<PreparedOperand> full = plan->Prepare(Side::kRhs, weights);
        ASSERT_TRUE(full.ok()) << full.status();
        QTensor scales_only = full->qtensor();
        scales_only.qvalue.reset();
        const absl::StatusOr<PreparedOperand> scales = plan->Prepare(Side::kRhs, scales_only);
        ASSERT_TRUE(scales.ok()) << scales.status();

        const auto run = [&](const DotGeneralPlan& p, const DotOperand& rhs) {
          ArrayBuilder out(p.out_aval()), dlhs(p.lhs_aval()), drhs(p.rhs_aval());
          Residuals residuals;
          EXPECT_EQ(p.Forward(lhs, rhs, {}, out.ref(), &residuals), absl::OkStatus());
          EXPECT_EQ(p.Backward(g, residuals, {}, dlhs.ref(), drhs.ref()), absl::OkStatus());
          return PlanResults{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
        };
        EXPECT_TRUE(SameResults(run(*plan, {weights, *scales}), want)) << use_fwd_quant << clip_gradient << tiled;
        EXPECT_TRUE(SameResults(run(*allowed, {weights, *full}), want)) << use_fwd_quant << clip_gradient << tiled;
        ArrayBuilder out(plan->out_aval());
        Residuals residuals;
        EXPECT_EQ(
            plan->Forward(lhs, *full, {}, out.ref(), &residuals).message(),
            "DotGeneral: fwd.rhs is given as a tensor with a qvalue, into which no gradient flows; pass the float "
            "operand, or no Residuals, or set fwd.allow_dummy_gradient_into_qtensor to pass its gradient on as if it "
            "had been quantized here");
        if (use_fwd_quant && !clip_gradient) {
          EXPECT_TRUE(SameResults(run(*allowed, *full), want)) << tiled;
        } else {
          EXPECT_EQ(allowed->Forward(lhs, *full, {}, out.ref(), &residuals).message(),
                    "DotGeneral: fwd.rhs is given as a tensor with a qvalue, but the gradients need its float operand, "
                    "too: pass both, or set use_fwd_quant in dlhs.rhs");
        }
        if (use_fwd_quant && !tiled) {
          scales_only.scale = {Array::Of<float>({0.1f}, {1, 1})};
          const absl::StatusOr<PreparedOperand> single = plan->Prepare(Side::kRhs, scales_only);
          ASSERT_TRUE(single.ok()) << single.status();
          EXPECT_EQ(
              plan->Forward(lhs, {weights, *single}, {}, out.ref(), &residuals).message(),
              "DotGeneral: fwd.rhs is given as a tensor, but its gradient needs one scale f32[1,5] and no bias; it has "
              "the scales f32[1,1] and 0 biases");
        }
      }
    }
  }
}

}  // namespace
}  // namespace aqt
