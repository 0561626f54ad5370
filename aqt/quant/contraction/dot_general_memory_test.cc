#include "aqt/quant/contraction/residuals.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

// Gradients are the same whether the clip mask is kept (use_fwd_quant) or recomputed from the float operand, and memory
// follows the header's formula.
TEST(Residuals, MemoryFormula) {
  const Aval lhs{DType::kF32, {16, 64}}, rhs{DType::kF32, {64, 32}};
  struct Case {
    bool fwd_quant, clip;
    int64_t bytes;
  };
  const int64_t n = 16 * 64 + 64 * 32, scales = (16 + 32) * 4;
  const Case cases[] = {
      {true, false, n + scales}, {true, true, 2 * n + scales}, {false, false, 4 * n}, {false, true, 4 * n + scales}};
  for (const Case& c : cases) {
    DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8, .use_fwd_quant = c.fwd_quant});
    if (c.clip) {
      ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.5).ok());
    }
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(plan.ok()) << plan.status();
    int64_t planned = 0;
    for (const ResidualSlot& slot : plan->residuals()) planned += slot.aval.num_bytes();
    EXPECT_EQ(planned, c.bytes);
    Residuals residuals, borrowing(Residuals::Operands::kBorrow);
    const Array a = RandomArray(DType::kF32, lhs.shape, 1), b = RandomArray(DType::kF32, rhs.shape, 2);
    ArrayBuilder out(plan->out_aval());
    ASSERT_TRUE(plan->Forward(a, b, {}, out.ref(), &residuals).ok());
    ASSERT_TRUE(plan->Forward(a, b, {}, out.ref(), &borrowing).ok());
    EXPECT_EQ(residuals.num_bytes(), c.bytes);
    EXPECT_EQ(borrowing.num_bytes(), c.fwd_quant ? c.bytes : c.bytes - 4 * n);
    // f32 training keeps 4n bytes.
    if (c.fwd_quant) {
      EXPECT_LT(residuals.num_bytes(), 4 * n);
    }
    EXPECT_LE(residuals.num_bytes(), 4 * n + scales);

    // Through arrays and back.
    const Array g = RandomArray(DType::kF32, plan->out_aval().shape, 3);
    ArrayBuilder first(lhs), second(lhs);
    ASSERT_TRUE(plan->Backward(g, residuals, {}, first.ref(), std::nullopt).ok());
    const std::vector<Array> arrays = std::move(residuals).Release();
    ASSERT_EQ(arrays.size(), plan->residuals().size());
    ASSERT_TRUE(plan->Backward(g, Residuals::FromArrays(arrays), {}, second.ref(), std::nullopt).ok());
    EXPECT_TRUE(BitEqual(std::move(first).Build(), std::move(second).Build()));
  }
}

TEST(DotGeneral, ClipMaskKeptOrComputedAgain) {
  const Array lhs = RandomArray(DType::kF32, {9, 33}, 1), rhs = RandomArray(DType::kF32, {33, 5}, 2);
  const Array g = RandomArray(DType::kF32, {9, 5}, 3);
  // Nothing is quantized backward, so use_fwd_quant changes values only by quantization; zeros come from the masks.
  std::vector<Array> zeros;
  for (const bool fwd_quant : {true, false}) {
    DotGeneralConfig config = DotGeneralMake(8, 8, {.use_fwd_quant = fwd_quant});
    ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.4).ok());
    const absl::StatusOr<DotGeneralGradients> r = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
    ASSERT_TRUE(r.ok()) << r.status();
    ArrayBuilder pattern(DType::kF32, lhs.shape());
    int64_t count = 0;
    for (int64_t i = 0; i < lhs.num_elements(); ++i) {
      count += pattern.Mutable<float>()[i] = r->dlhs.View<float>()[i] == 0;
    }
    EXPECT_GT(count, lhs.num_elements() / 4);
    zeros.push_back(std::move(pattern).Build());
  }
  EXPECT_TRUE(BitEqual(zeros[0], zeros[1]));
}

TEST(DotGeneral, NothingIsAllocatedAfterTheFirstCall) {
  struct Case {
    const char* name;
    DotGeneralConfig config;
    DType dtype;
  };
  DotGeneralConfig fake = WithoutNoise({.bwd_bits = std::nullopt});
  SetFwdDequantMode(fake, DequantMode::kThisInput, DequantMode::kThisInput);
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  DotGeneralConfig tiled = FullyQuantized();
  tiled.tiling = *DotTilingFromEinsum("mbk,kbn->bmn", {{'k', 8}, {'m', 3}});
  DotGeneralConfig state = WithoutNoise();
  state.fwd.lhs.quantizer.calibration = state.dlhs.lhs.quantizer.calibration = DelayedScaling{};
  state.fwd.rhs.quantizer.calibration = state.drhs.rhs.quantizer.calibration = WeightedStats{.lp_dev_coeff = 1};
  state.dlhs.rhs.quantizer.calibration = state.drhs.lhs.quantizer.calibration = MeanOfAbsMax{};
  const Case cases[] = {
      {"tiled", tiled, DType::kF32},
      {"state", state, DType::kF32},
      {"packed", WithoutNoise(), DType::kF32},
      {"noise", FullyQuantized(), DType::kF32},
      {"bf16", FullyQuantized(), DType::kBF16},
      {"fake", fake, DType::kF32},
      {"v4", ConfigV4(), DType::kF32},
      {"fp8", ConfigFwdFp8(), DType::kF32},
      {"weight only", DotGeneralMake(std::nullopt, 8), DType::kF16},
      {"local",
       *FullyQuantized({.dlhs_local_aqt = LocalAqt{.contraction_axis_shard_count = 7},
                        .drhs_local_aqt = LocalAqt{.contraction_axis_shard_size = 2, .tile_largest_shape = true}}),
       DType::kBF16},
  };
  for (const Case& c : cases) {
    const Array lhs = RandomArray(c.dtype, {6, 2, 40}, 1), rhs = RandomArray(c.dtype, {40, 2, 7}, 2);
    const Array g = RandomArray(c.dtype, {2, 6, 7}, 3);
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(c.config, lhs.aval(), rhs.aval(), kBatched);
    ASSERT_TRUE(plan.ok()) << c.name << plan.status();
    ArrayBuilder out(plan->out_aval()), dlhs(plan->lhs_aval()), drhs(plan->rhs_aval());
    Residuals residuals;
    const Context context{.key = MakeKey(1), .quant_mode = QuantMode::kCalibrate};
    std::vector<ArrayBuilder> statistics;  // updated in place
    std::vector<ArrayRef> old;
    std::vector<MutableArrayRef> updated;
    for (const absl::Span<const StateSlot> slots : {plan->forward_state(), plan->backward_state()}) {
      for (const StateSlot& slot : slots) {
        statistics.emplace_back(slot.initial.aval());
        ASSERT_TRUE(CopyArray(slot.initial, statistics.back().ref()).ok());
        old.push_back(statistics.back().ref());
        updated.push_back(statistics.back().ref());
      }
    }
    const size_t split = plan->forward_state().size();
    const StateArrays forward_state{absl::MakeConstSpan(old).subspan(0, split),
                                    absl::MakeConstSpan(updated).subspan(0, split)};
    const StateArrays backward_state{absl::MakeConstSpan(old).subspan(split),
                                     absl::MakeConstSpan(updated).subspan(split)};
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan->Forward(lhs, rhs, context, out.ref(), &residuals, {}, forward_state).ok() &&
                      plan->Backward(g, residuals, context, dlhs.ref(), drhs.ref(), {}, backward_state).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok) << c.name;
      if (call == 0) {
        EXPECT_GT(during, 0) << c.name;  // the counter works
      }
      if (call > 0) {
        EXPECT_EQ(during, 0) << c.name;
      }
    }
  }
}

}  // namespace
}  // namespace aqt
