// Every kind of operand can be prepared: a call then does not pack it, and gives the bits of the float operand.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/ragged_dot.h"

namespace aqt {
namespace {

using kernels::Target;

struct Kind {
  std::string name;
  DotGeneralConfig config;
  DType dtype = DType::kF32;
  bool floats_become_digits = false;  // of lhs, in every call
};

// Serving configurations of every operand kind: integers of all widths, 8-bit floats, weights only, floats, dequantized
// before or after the product, with accumulators that change how the operands are converted.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  const auto add = [&](const std::string& name, const DotGeneralConfig& config) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      kinds.push_back(
          {name + " of " + std::string(ToString(dtype)), config, dtype, /*floats_become_digits=*/name[0] == 'w'});
    }
  };
  for (const int bits : {2, 4, 8}) {
    add("int" + std::to_string(bits), DotGeneralMake(bits, bits));
    add("weights of " + std::to_string(bits) + " bits", DotGeneralMake(std::nullopt, bits));
  }
  add("floats", DefaultUnquantizedConfig());
  for (const Bits& fp8 : {Bits::E4M3(), Bits::E5M2()}) {
    add("fp8", DotGeneralMake(fp8, fp8));
    add("fp8 weights", DotGeneralMake(std::nullopt, fp8));
  }
  DotGeneralConfig fake = DotGeneralMake(8, 8);
  SetFwdDequantMode(fake, std::nullopt, DequantMode::kThisInput);
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  add("a dequantized weight", fake);
  DotGeneralConfig narrow = DotGeneralMake(std::nullopt, 8);
  narrow.fwd.dg_accumulator_dtype = DType::kBF16;
  add("weights summed into bf16", narrow);
  DotGeneralConfig tiled = DotGeneralMake(8, 8);
  tiled.tiling = *DotTilingFromEinsum("abk,kbc->abc", {{'k', 4}});
  add("tiles", tiled);
  return kinds;
}

// Calls `forward` with the prepared operand, and expects `want`, no pack on `side`, and the same without the values.
template <class Forward>
void ExpectNoPacks(const Forward& forward, const PreparedOperand& prepared, Side side, const Array& want) {
  EXPECT_GT(prepared.panel_bytes(), 0);
  for (const PreparedOperand& form : {prepared, prepared.WithoutValues()}) {
    for (const int threads : {1, 2}) {
      kernels::ThreadPool pool(threads);
      PackCounts packs;
      ArrayBuilder out(want.aval());
      ASSERT_EQ(forward(form, out.ref(), Runtime{.executor = &pool, .packs = &packs}), absl::OkStatus());
      EXPECT_TRUE(BitEqual(std::move(out).Build(), want)) << threads << " threads";
      EXPECT_EQ(side == Side::kLhs ? packs.lhs : packs.rhs, 0);
    }
  }
}

TEST(PreparedKinds, DenseOperandsOfEitherSide) {
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name);
    const Array lhs = RandomArray(kind.dtype, {5, 3, 20}, 1), rhs = RandomArray(kind.dtype, {20, 3, 37}, 2);
    for (const Target target : kernels::SupportedTargets()) {
      const absl::StatusOr<DotGeneralPlan> plan =
          DotGeneralPlan::Make(kind.config, lhs.aval(), rhs.aval(), kBatched, {.target = target});
      ASSERT_TRUE(plan.ok()) << plan.status();
      ArrayBuilder out(plan->out_aval());
      ASSERT_EQ(plan->Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
      const Array want = std::move(out).Build();
      ExpectNoPacks([&](const PreparedOperand& weight, const MutableArrayRef& result,
                        const Runtime& runtime) { return plan->Forward(lhs, weight, {}, result, nullptr, runtime); },
                    *plan->Prepare(Side::kRhs, rhs), Side::kRhs, want);
      if (kind.floats_become_digits) {
        EXPECT_EQ(plan->Prepare(Side::kLhs, lhs)->panel_bytes(), 0);
        continue;
      }
      ExpectNoPacks([&](const PreparedOperand& weight, const MutableArrayRef& result,
                        const Runtime& runtime) { return plan->Forward(weight, rhs, {}, result, nullptr, runtime); },
                    *plan->Prepare(Side::kLhs, lhs), Side::kLhs, want);
    }
  }
}

TEST(PreparedKinds, KernelsOfConvolutions) {
  for (const Kind& kind : Kinds()) {
    if (kind.config.tiling.has_value()) continue;
    SCOPED_TRACE(kind.name);
    const Array lhs = RandomArray(kind.dtype, {2, 9, 7, 6}, 1), rhs = RandomArray(kind.dtype, {3, 2, 3, 34}, 2);
    const ConvDims dims{.window_strides = {2, 1},
                        .padding = ConvPadding::kExplicit,
                        .explicit_padding = {{1, 2}, {0, -1}},
                        .lhs_dilation = {1, 2},
                        .rhs_dilation = {2, 1},
                        .feature_group_count = 2};
    for (const Target target : kernels::SupportedTargets()) {
      const absl::StatusOr<ConvGeneralPlan> plan =
          ConvGeneralPlan::Make(kind.config.fwd, lhs.aval(), rhs.aval(), dims, {.target = target});
      ASSERT_TRUE(plan.ok()) << plan.status();
      ArrayBuilder out(plan->out_aval());
      ASSERT_EQ(plan->Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
      ExpectNoPacks([&](const PreparedOperand& weight, const MutableArrayRef& result,
                        const Runtime& runtime) { return plan->Forward(lhs, weight, {}, result, nullptr, runtime); },
                    *plan->Prepare(Side::kRhs, rhs), Side::kRhs, std::move(out).Build());
      EXPECT_EQ(plan->Prepare(Side::kLhs, lhs)->panel_bytes(), 0);  // windows slide over it
    }
  }
}

TEST(PreparedKinds, MatricesOfGroups) {
  const int64_t sizes[] = {4, 0, 3, 1};
  for (const Kind& kind : Kinds()) {
    if (kind.config.tiling.has_value()) continue;
    SCOPED_TRACE(kind.name);
    const Array lhs = RandomArray(kind.dtype, {10, 20}, 1), rhs = RandomArray(kind.dtype, {4, 20, 33}, 2);
    for (const Target target : kernels::SupportedTargets()) {
      const absl::StatusOr<RaggedDotPlan> plan =
          RaggedDotPlan::Make(kind.config, lhs.aval(), rhs.aval(), {.target = target});
      ASSERT_TRUE(plan.ok()) << plan.status();
      ArrayBuilder out(plan->out_aval());
      ASSERT_EQ(plan->Forward(lhs, rhs, sizes, {}, out.ref()), absl::OkStatus());
      ExpectNoPacks(
          [&](const PreparedOperand& weight, const MutableArrayRef& result, const Runtime& runtime) {
            return plan->Forward(lhs, weight, sizes, {}, result, nullptr, runtime);
          },
          *plan->Prepare(Side::kRhs, rhs), Side::kRhs, std::move(out).Build());
    }
  }
}

TEST(PreparedKinds, BatchesOfOtherSizesShareThem) {
  const Array rhs = RandomArray(DType::kF32, {20, 7}, 2);
  for (const Kind& kind : Kinds()) {
    if (kind.config.tiling.has_value() || kind.dtype != DType::kF32) continue;
    SCOPED_TRACE(kind.name);
    const DotGeneralPlan one = *DotGeneralPlan::Make(kind.config, {DType::kF32, {1, 20}}, rhs.aval(), MatMulDims());
    const DotGeneralPlan many = *DotGeneralPlan::Make(kind.config, {DType::kF32, {64, 20}}, rhs.aval(), MatMulDims());
    const PreparedOperand weight = *one.Prepare(Side::kRhs, rhs);
    const Array lhs = RandomArray(DType::kF32, {64, 20}, 3);
    ArrayBuilder out(many.out_aval());
    ASSERT_EQ(many.Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
    ExpectNoPacks([&](const PreparedOperand& w, const MutableArrayRef& result,
                      const Runtime& runtime) { return many.Forward(lhs, w, {}, result, nullptr, runtime); },
                  weight, Side::kRhs, std::move(out).Build());
  }
}

// dot_operand.h states the bytes per element; rows are padded to whole panels of 32 or 64.
TEST(PreparedKinds, TheirSizesAreAsStated) {
  const Aval lhs{DType::kF32, {1, 64}};
  const Array rhs = RandomArray(DType::kF32, {64, 128}, 1);
  const auto bytes = [&](const DotGeneralConfig& config) {
    return DotGeneralPlan::Make(config, lhs, rhs.aval(), MatMulDims())->Prepare(Side::kRhs, rhs)->panel_bytes();
  };
  const int64_t n = rhs.num_elements();
  EXPECT_EQ(bytes(DotGeneralMake(std::nullopt, 8)), n);
  EXPECT_EQ(bytes(DotGeneralMake(std::nullopt, 4)), n / 2);
  EXPECT_EQ(bytes(DefaultUnquantizedConfig()), 4 * n);
  DotGeneralConfig fp8 = DotGeneralMake(std::nullopt, Bits::E4M3());
  EXPECT_EQ(bytes(fp8), 2 * n);
  SetFwdDequantMode(fp8, std::nullopt, DequantMode::kThisInput);
  EXPECT_EQ(bytes(fp8), 4 * n);
}

// An operand that is multiplied by the other side's scales differs from call to call.
TEST(PreparedKinds, OperandsThatOtherScalesChangeAreNotPacked) {
  DotGeneralConfig config = DotGeneralMake(8, std::nullopt);
  config.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  config.fwd.lhs.dequant_mode = DequantMode::kOtherInput;
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const DotGeneralPlan plan =
      *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims(), {.passes = PlanPasses::kForwardOnly});
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, rhs);
  EXPECT_EQ(weight.panel_bytes(), 0);
  EXPECT_TRUE(weight.WithoutValues().qtensor().IsFull());
  ArrayBuilder want(plan.out_aval()), got(plan.out_aval());
  ASSERT_EQ(plan.Forward(lhs, rhs, {}, want.ref()), absl::OkStatus());
  ASSERT_EQ(plan.Forward(lhs, weight, {}, got.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(got).Build(), std::move(want).Build()));
}

TEST(PreparedKinds, CallsThatNeedValuesSaySo) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const DotGeneralPlan plan = *DotGeneralPlan::Make(DotGeneralMake(8, 8), lhs.aval(), rhs.aval(), MatMulDims());
  const PreparedOperand packed = plan.Prepare(Side::kRhs, rhs)->WithoutValues();
  ArrayBuilder out(plan.out_aval());
  Recorder recorder;
  EXPECT_EQ(plan.Forward(lhs, packed, {}, out.ref(), nullptr, {.observer = &recorder}),
            absl::FailedPreconditionError(
                "DotGeneral: the tensor for fwd.rhs has no values (PreparedOperand::WithoutValues), but they are "
                "needed: an Observer or a user's product is set"));
  Residuals residuals;
  EXPECT_EQ(plan.Forward(lhs, packed, {}, out.ref(), &residuals),
            absl::FailedPreconditionError("DotGeneral: the tensor for fwd.rhs has no values "
                                          "(PreparedOperand::WithoutValues), which gradients need"));
  const DotGeneralPlan weights =
      *DotGeneralPlan::Make(DotGeneralMake(std::nullopt, 8), lhs.aval(), rhs.aval(), MatMulDims());
  EXPECT_EQ(weights.Forward(lhs, packed, {}, out.ref()),
            absl::FailedPreconditionError(
                "DotGeneral: the tensor for fwd.rhs has no values (PreparedOperand::WithoutValues), but they are "
                "needed: it is packed for a contraction along other axes, in other dtypes or for another instruction "
                "set"));
  const Array narrow = RandomArray(DType::kF32, {8, 4}, 3);
  const DotGeneralPlan other = *DotGeneralPlan::Make(DotGeneralMake(8, 8), lhs.aval(), narrow.aval(), MatMulDims());
  ArrayBuilder narrow_out(other.out_aval());
  EXPECT_EQ(other.Forward(lhs, packed, {}, narrow_out.ref()),
            absl::InvalidArgumentError(
                "DotGeneral: the tensor for fwd.rhs: QTensor: scale f32[1,5] does not broadcast to the values' shape "
                "[8,4]"));
}

// A plan does not recheck an operand that it prepared itself, except for its side.
TEST(PreparedKinds, OfTheOtherSideIsAnError) {
  const Array square = RandomArray(DType::kF32, {5, 5}, 1);
  const DotGeneralPlan plan = *DotGeneralPlan::Make(DotGeneralMake(8, 8), square.aval(), square.aval(), MatMulDims());
  const PreparedOperand lhs = *plan.Prepare(Side::kLhs, square), rhs = *plan.Prepare(Side::kRhs, square);
  ArrayBuilder out(plan.out_aval());
  EXPECT_EQ(plan.Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
  EXPECT_EQ(plan.Forward(square, lhs, {}, out.ref()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plan.Forward(rhs, square, {}, out.ref()).code(), absl::StatusCode::kInvalidArgument);
}

// The smallest scale of packed weights determines once, for all calls, whether products can be subnormal.
TEST(PreparedKinds, SmallScales) {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  config.tiling = *DotTilingFromEinsum("mk,kn->mn", {{'k', 4}});
  const Array lhs = RandomArray(DType::kF32, {3, 8}, 1), rhs = RandomArray(DType::kF32, {8, 70}, 2);
  const DotGeneralPlan plan =
      *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims(), {.passes = PlanPasses::kForwardOnly});
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, rhs);
  for (const float small : {1.0f, 0x1p-120f, 0x1p-126f, 0x1p-130f, 0.0f}) {
    QTensor qtensor = weight.qtensor();
    ArrayBuilder scale(qtensor.scale[0].aval());
    std::fill_n(static_cast<float*>(scale.data()), scale.ref().shape.num_elements(), 0x1p-3f);
    static_cast<float*>(scale.data())[77] = small;
    qtensor.scale = {std::move(scale).Build()};
    const PreparedOperand packed = *plan.Prepare(Side::kRhs, qtensor);
    Recorder recorder;  // takes the general path
    ArrayBuilder want(plan.out_aval()), got(plan.out_aval());
    ASSERT_EQ(plan.Forward(lhs, packed, {}, want.ref(), nullptr, {.observer = &recorder}), absl::OkStatus());
    ASSERT_EQ(plan.Forward(lhs, packed, {}, got.ref()), absl::OkStatus());
    EXPECT_TRUE(BitEqual(std::move(got).Build(), std::move(want).Build())) << small;
  }
}

// A prepared float operand is still a float operand: gradients flow.
TEST(PreparedKinds, GradientsOfFloatOperands) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  const DotGeneralPlan plan =
      *DotGeneralPlan::Make(DotGeneralMake(8, std::nullopt, {.bwd_bits = 8}), lhs.aval(), rhs.aval(), MatMulDims());
  const PlanResults want = RunPlan(plan, lhs, rhs, g);
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, rhs);
  ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
  Residuals residuals;
  ASSERT_EQ(plan.Forward(lhs, weight, {}, out.ref(), &residuals), absl::OkStatus());
  ASSERT_EQ(plan.Backward(g, residuals, {}, dlhs.ref(), drhs.ref()), absl::OkStatus());
  EXPECT_TRUE(SameResults({std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()}, want));
}

}  // namespace
}  // namespace aqt
