#include "aqt/quant/contraction/engine/dot_tiling.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"

namespace aqt {
namespace {

// The two rules, on AQT's own example: two contracting axes in crossed order.
TEST(LocalTiling, CutsTheFirstOrTheLongestContractingAxis) {
  const DotDims dims{.lhs_contracting = {1, 3}, .rhs_contracting = {1, 0}};
  const Shape lhs{2, 8, 3, 12}, rhs{12, 8, 5};
  const auto first = internal::MakeLocalTiling({.contraction_axis_shard_count = 4}, dims, lhs, rhs);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->lhs.shape, (Shape{2, 4, 2, 3, 12}));
  EXPECT_EQ((*first)->rhs.shape, (Shape{12, 4, 2, 5}));
  EXPECT_EQ((*first)->dims, (DotDims{{2, 4}, {2, 0}, {1}, {1}}));

  const auto longest =
      internal::MakeLocalTiling({.contraction_axis_shard_size = 4, .tile_largest_shape = true}, dims, lhs, rhs);
  ASSERT_TRUE(longest.ok()) << longest.status();
  EXPECT_EQ((*longest)->lhs.shape, (Shape{2, 8, 3, 3, 4}));
  EXPECT_EQ((*longest)->rhs.shape, (Shape{3, 4, 8, 5}));
  EXPECT_EQ((*longest)->dims, (DotDims{{1, 4}, {2, 1}, {3}, {0}}));
}

TEST(LocalTiling, OfEqualAxesTheFirstOfLhsAndItsPartner) {
  const DotDims dims{.lhs_contracting = {2, 0}, .rhs_contracting = {0, 1}, .lhs_batch = {1}, .rhs_batch = {2}};
  const auto split = internal::MakeLocalTiling({.contraction_axis_shard_size = 2, .tile_largest_shape = true}, dims,
                                               {6, 3, 6}, {6, 6, 3});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ((*split)->lhs.shape, (Shape{3, 2, 3, 6}));
  EXPECT_EQ((*split)->rhs.shape, (Shape{6, 3, 2, 3}));
  EXPECT_EQ((*split)->dims, (DotDims{{3, 1}, {0, 2}, {0, 2}, {1, 3}}));
}

TEST(LocalTiling, NothingIsCutWithoutContractingAxes) {
  const auto split = internal::MakeLocalTiling({.contraction_axis_shard_count = 5}, {}, {3}, {4});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_FALSE(split->has_value());
}

// One number is a thousand times the others: in one part it absorbs 1270 and 10, in two parts they get their own scale.
TEST(LocalAqtTest, SmallPartsKeepTheirPrecision) {
  const Array lhs = Array::Of<float>({1270, 10, 1.27e6f, 1e4f}, {4, 1}), rhs = Array::Of<float>({1}, {1, 1});
  const Array ones = Array::Of<float>({1, 1, 1, 1}, {4, 1});
  for (const auto& [count, want] : {std::pair<int64_t, float>{1, 1280000}, {2, 1281280}}) {
    DotGeneralConfig config = *FullyQuantized({.use_fwd_quant = false,
                                               .use_stochastic_rounding = false,
                                               .drhs_local_aqt = LocalAqt{.contraction_axis_shard_count = count}});
    for (TensorConfig* tensor : {&config.drhs.lhs, &config.drhs.rhs}) {
      std::get<IntSymmetric>(tensor->quantizer.numerics).preserve_max_val = true;
    }
    const absl::StatusOr<DotGeneralGradients> r =
        QuantizedDotGeneralWithGradients(config, lhs, rhs, ones, MatMulDims());
    ASSERT_TRUE(r.ok()) << r.status();
    EXPECT_EQ(r->drhs.View<float>()[0], want) << count;
  }
}

// Parts 1, 2^-9, 2^-9 and 2^-9 in bf16 with 8 bits. Added in bf16, each 2^-9 would be lost (ties to even); added in f32
// they give 1.005859375, which rounds to 1.0078125.
TEST(LocalAqtTest, PartsAreSummedInF32AndRoundedOnce) {
  const Array lhs = Cast(Array::Of<float>({1, 1, 1, 1}, {4, 1}), DType::kBF16);
  const Array rhs = Cast(Array::Of<float>({1}, {1, 1}), DType::kBF16);
  const Array g = Cast(Array::Of<float>({1, 0x1p-9f, 0x1p-9f, 0x1p-9f}, {4, 1}), DType::kBF16);
  DotGeneralConfig config = DefaultUnquantizedConfig();
  config.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 4};
  const absl::StatusOr<DotGeneralGradients> r = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(ToFloat(r->drhs.View<BFloat16>()[0]), 1.0078125f);
}

TEST(LocalAqtTest, ThreadsAndTargetsGiveTheSameBits) {
  const Array lhs = RandomArray(DType::kF32, {96, 128}, 1), rhs = RandomArray(DType::kF32, {128, 160}, 2);
  const Array g = RandomArray(DType::kF32, {96, 160}, 3);
  const DotGeneralConfig config =
      *FullyQuantized({.dlhs_local_aqt = LocalAqt{.contraction_axis_shard_count = 10},
                       .drhs_local_aqt = LocalAqt{.contraction_axis_shard_size = 16, .tile_largest_shape = true}});
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Context context{.key = MakeKey(1)};
  const PlanResults want = RunPlan(*plan, lhs, rhs, g, context);
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const DotGeneralPlan on_target = OnTarget(*plan, target);
    for (const int threads : {1, 2, 7}) {
      kernels::ThreadPool pool(threads);
      EXPECT_TRUE(SameResults(RunPlan(on_target, lhs, rhs, g, context, {.executor = &pool}), want))
          << threads << " threads, " << target;
    }
  }
}

}  // namespace
}  // namespace aqt
