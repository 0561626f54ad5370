// Plans without backward passes: PlanPasses::kForwardOnly.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"

namespace aqt {
namespace {

const PlanOptions kForwardOnly{.passes = PlanPasses::kForwardOnly};

// 8 bits everywhere, with noise, state and a flag in the backward passes, and a local_aqt that fits no shape.
DotGeneralConfig IllegalBackward() {
  DotGeneralConfig config = FullyQuantized();
  config.dlhs.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.dlhs.lhs.use_fwd_quant = true;
  config.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 3};
  return config;
}

// The forward pass of IllegalBackward with backward passes that fit.
DotGeneralConfig LegalBackward() {
  DotGeneralConfig config = IllegalBackward();
  config.dlhs = config.drhs = DefaultUnquantizedConfig().dlhs;
  return config;
}

void ExpectNoBackward(const absl::Status& status, const std::string& what, const std::string& plan = "DotGeneral") {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      std::string(status.message()),
      plan + ": " + what + ", but the plan is made with PlanPasses::kForwardOnly; make it with kForwardAndBackward");
}

TEST(ForwardOnly, DotGeneralTakesAnIllegalBackwardConfiguration) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  EXPECT_FALSE(DotGeneralPlan::Make(IllegalBackward(), lhs.aval(), rhs.aval(), MatMulDims()).ok());
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(IllegalBackward(), lhs.aval(), rhs.aval(), MatMulDims(), kForwardOnly);
  ASSERT_EQ(plan.status(), absl::OkStatus());
  EXPECT_EQ(plan->options(), kForwardOnly);
  EXPECT_TRUE(plan->residuals().empty());
  EXPECT_TRUE(plan->backward_state().empty());
  EXPECT_FALSE(plan->BackwardNeedsKey());

  const absl::StatusOr<DotGeneralPlan> both =
      DotGeneralPlan::Make(LegalBackward(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_EQ(both.status(), absl::OkStatus());
  EXPECT_EQ(both->options().passes, PlanPasses::kForwardAndBackward);
  ArrayBuilder out(plan->out_aval()), expected(plan->out_aval()), dlhs(lhs.aval());
  ASSERT_EQ(plan->Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
  ASSERT_EQ(both->Forward(lhs, rhs, {}, expected.ref()), absl::OkStatus());
  Residuals residuals;
  ExpectNoBackward(plan->Forward(lhs, rhs, {}, out.ref(), &residuals), "Forward is given Residuals");
  ExpectNoBackward(plan->Backward(g, residuals, {}, dlhs.ref(), std::nullopt), "Backward is called");
  EXPECT_TRUE(BitEqual(std::move(out).Build(), std::move(expected).Build()));
}

// Errors in the forward pass are still reported.
TEST(ForwardOnly, ChecksTheForwardConfiguration) {
  DotGeneralConfig config = IllegalBackward();
  config.fwd.rhs.use_fwd_quant = true;
  EXPECT_EQ(DotGeneralPlan::Make(config, {DType::kF32, {4, 8}}, {DType::kF32, {8, 5}}, MatMulDims(), kForwardOnly)
                .status()
                .message(),
            "fwd.rhs: use_fwd_quant applies only to dlhs.rhs and drhs.rhs");
}

TEST(ForwardOnly, Einsum) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {5, 8}, 2);
  for (const char* const equation : {"ab,cb->ac", "ab,cb->ca"}) {  // the second exchanges the operands
    EXPECT_FALSE(EinsumPlan::Make(equation, IllegalBackward(), lhs.aval(), rhs.aval()).ok());
    const absl::StatusOr<EinsumPlan> plan =
        EinsumPlan::Make(equation, IllegalBackward(), lhs.aval(), rhs.aval(), kForwardOnly);
    const absl::StatusOr<EinsumPlan> both = EinsumPlan::Make(equation, LegalBackward(), lhs.aval(), rhs.aval());
    ASSERT_TRUE(plan.ok() && both.ok()) << plan.status() << both.status();
    ArrayBuilder out(plan->out_aval()), expected(plan->out_aval()), dlhs(lhs.aval());
    ASSERT_EQ(plan->Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
    ASSERT_EQ(both->Forward(lhs, rhs, {}, expected.ref()), absl::OkStatus());
    const Array result = std::move(out).Build();
    ExpectNoBackward(plan->Backward(result, Residuals(), {}, dlhs.ref(), std::nullopt), "Backward is called");
    EXPECT_TRUE(BitEqual(result, std::move(expected).Build()));
    EXPECT_TRUE(BitEqual(result, *QuantizedEinsum(equation, IllegalBackward(), lhs, rhs)));
  }
}

TEST(ForwardOnly, RaggedDot) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {2, 8, 5}, 2);
  const int64_t sizes[] = {3, 1};
  EXPECT_FALSE(RaggedDotPlan::Make(IllegalBackward(), lhs.aval(), rhs.aval()).ok());
  const absl::StatusOr<RaggedDotPlan> plan =
      RaggedDotPlan::Make(IllegalBackward(), lhs.aval(), rhs.aval(), kForwardOnly);
  const absl::StatusOr<RaggedDotPlan> both = RaggedDotPlan::Make(LegalBackward(), lhs.aval(), rhs.aval());
  ASSERT_TRUE(plan.ok() && both.ok()) << plan.status() << both.status();
  ArrayBuilder out(plan->out_aval()), expected(plan->out_aval()), dlhs(lhs.aval());
  ASSERT_EQ(plan->Forward(lhs, rhs, sizes, {}, out.ref()), absl::OkStatus());
  ASSERT_EQ(both->Forward(lhs, rhs, sizes, {}, expected.ref()), absl::OkStatus());
  const Array result = std::move(out).Build();
  ExpectNoBackward(plan->Backward(result, Residuals(), sizes, {}, dlhs.ref(), std::nullopt), "Backward is called",
                   "ragged_dot");
  EXPECT_TRUE(BitEqual(result, std::move(expected).Build()));
  EXPECT_TRUE(BitEqual(result, *QuantizedRaggedDot(IllegalBackward(), lhs, rhs, sizes)));
}

TEST(ForwardOnly, ConvGeneral) {
  const Array lhs = RandomArray(DType::kF32, {2, 7, 3}, 1), rhs = RandomArray(DType::kF32, {3, 3, 4}, 2);
  DotGeneralRawConfig config = ConvGeneralDilatedMake(1, 8, 8);
  std::get<IntSymmetric>(config.lhs.quantizer.numerics).clip_gradient = true;
  const absl::StatusOr<ConvGeneralPlan> both = ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  const absl::StatusOr<ConvGeneralPlan> plan = ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {}, kForwardOnly);
  ASSERT_TRUE(plan.ok() && both.ok()) << plan.status() << both.status();
  EXPECT_EQ(plan->options(), kForwardOnly);
  EXPECT_FALSE(both->residuals().empty());
  EXPECT_TRUE(plan->residuals().empty());
  ArrayBuilder out(plan->out_aval()), dlhs(lhs.aval());
  Residuals residuals;
  ExpectNoBackward(plan->Forward(lhs, rhs, {}, out.ref(), &residuals), "Forward is given Residuals", "conv_general");
  ASSERT_EQ(plan->Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
  const Array result = std::move(out).Build();
  ExpectNoBackward(plan->Backward(result, residuals, dlhs.ref(), std::nullopt), "Backward is called", "conv_general");
  ArrayBuilder expected(plan->out_aval());
  ASSERT_EQ(both->Forward(lhs, rhs, {}, expected.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(result, std::move(expected).Build()));
}

// A one-shot contraction without gradients needs no backward pass.
TEST(ForwardOnly, OneShot) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const absl::StatusOr<Array> out = QuantizedDotGeneral(IllegalBackward(), lhs, rhs, MatMulDims());
  ASSERT_EQ(out.status(), absl::OkStatus());
  EXPECT_TRUE(BitEqual(*out, *QuantizedDotGeneral(LegalBackward(), lhs, rhs, MatMulDims())));
}

}  // namespace
}  // namespace aqt
