// Plans for shapes that no array can have: each is rejected before anything is computed from an overflowed sum or
// product. Also run it with --config=ubsan, where every unchecked overflow is an error.

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/qtensor_ops.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr char kLarge[] = "more elements than fit into memory";
constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t k62 = int64_t{1} << 62, k40 = int64_t{1} << 40, k32 = int64_t{1} << 32, k20 = int64_t{1} << 20;

absl::Status Dot(const Shape& lhs, const Shape& rhs, const DotGeneralConfig& config = DotGeneralMake(8, 8)) {
  return DotGeneralPlan::Make(config, {DType::kF32, lhs}, {DType::kF32, rhs}, MatMulDims()).status();
}

TEST(ShapeOverflowTest, DotGeneralConfig) {
  EXPECT_THAT(Dot({k40, k40}, {k40, 1}), FailsWith(kInvalid, {"fwd", kLarge}));
  EXPECT_THAT(Dot({k32, k32}, {k32, 1}), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(Dot({1, k62}, {k62, 1}), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(Dot({k40, 1}, {1, k40}), FailsWith(kInvalid, {kLarge}));  // only the result
  EXPECT_THAT(Dot({0, k62}, {k62, 1}), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(Dot({-1, 2}, {2, 1}), FailsWith(kInvalid, {"negative extent"}));
  EXPECT_THAT(Dot({1, -2}, {-2, 1}), FailsWith(kInvalid, {"negative extent"}));
  EXPECT_THAT(Dot({k20, k20}, {k20, k20}, DefaultUnquantizedConfig()), IsOk());
}

// 2^40 rows without elements: nothing is packed or reserved for them.
TEST(ShapeOverflowTest, OperandsWithoutElements) {
  const Array lhs = Array::Zeros(DType::kF32, {0, 0}), rhs = Array::Zeros(DType::kF32, {0, k40});
  for (const DotGeneralConfig& config : {DefaultUnquantizedConfig(), DotGeneralMake(8, std::nullopt)}) {
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
    ASSERT_THAT(plan, IsOk());
    EXPECT_LT(plan->scratch_bytes(), 1 << 20);
    ArrayBuilder out(plan->out_aval());
    EXPECT_THAT(plan->Forward(lhs, rhs, {}, out.ref()), IsOk());
    const absl::StatusOr<PreparedOperand> prepared = plan->Prepare(Side::kRhs, rhs);
    ASSERT_THAT(prepared, IsOk());
    EXPECT_EQ(prepared->panel_bytes(), 0);
    EXPECT_THAT(plan->Forward(lhs, *prepared, {}, out.ref()), IsOk());
  }
}

// Tiles and shards are also axes of the other operand and of the product.
TEST(ShapeOverflowTest, TilesAndShards) {
  DotGeneralConfig tiled = DefaultUnquantizedConfig();
  tiled.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = 1, .tile_size = 1}}},
                           .rhs = {.contraction_axes = {{.axis = 0, .tile_size = 1}}}};
  EXPECT_THAT(Dot({k20, k20}, {k20, k20}, tiled), FailsWith(kInvalid, {"fwd", kLarge}));
  tiled.tiling = DotTiling{.lhs = {.remaining_axes = {{.axis = 0, .tile_size = 1}}}};
  EXPECT_THAT(Dot({k40, 1}, {1, k40}, tiled), FailsWith(kInvalid, {"tiling", kLarge}));
  DotGeneralConfig local = DefaultUnquantizedConfig();
  local.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_count = k20};
  EXPECT_THAT(Dot({k20, k20}, {k20, k20}, local), FailsWith(kInvalid, {"dlhs", kLarge}));
  for (const int64_t count : {k62, kMax}) {
    local.dlhs.local_aqt->contraction_axis_shard_count = count;
    EXPECT_THAT(Dot({2, 4}, {4, 2}, local), FailsWith(kInvalid, {"dlhs"}));
  }
  EXPECT_THAT(TilingState::Make({k40, k40}, {{.axis = 0, .tile_count = k40}}), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(TilingState::Make({4}, {{.axis = kMin, .tile_count = 2}}), FailsWith(kInvalid, {"out of range"}));
  EXPECT_THAT(TilingState::Make({4}, {{.axis = 0, .tile_count = kMax}}), FailsWith(kInvalid, {"cannot be cut"}));
  // An empty axis has as many tiles as requested.
  EXPECT_THAT(Dot({0, 1}, {1, 1}, {.tiling = DotTiling{.lhs = {.remaining_axes = {{.axis = 0, .tile_count = k62}}}}}),
              FailsWith(kInvalid, {kLarge}));
}

TEST(ShapeOverflowTest, EinsumAndRagged) {
  const auto einsum = [](const char* equation, const Shape& lhs, const Shape& rhs) {
    return EinsumPlan::Make(equation, DotGeneralMake(8, 8), {DType::kF32, lhs}, {DType::kF32, rhs}).status();
  };
  EXPECT_THAT(einsum("i,j->ij", {k40}, {k40}), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(einsum("ii,i->i", {k40, k40}, {k40}), FailsWith(kInvalid, {"einsum: lhs", kLarge}));
  EXPECT_THAT(einsum("i,jj->ij", {2}, {k32, k32}), FailsWith(kInvalid, {"einsum: rhs", kLarge}));
  EXPECT_THAT(einsum("bi,bj->bij", {1, k20}, {k40, 1}), FailsWith(kInvalid, {kLarge}));
  const auto ragged = [](const Shape& lhs, const Shape& rhs) {
    return RaggedDotPlan::Make(DefaultUnquantizedConfig(), {DType::kF32, lhs}, {DType::kF32, rhs}).status();
  };
  EXPECT_THAT(ragged({k40, 1}, {1, 1, k40}), FailsWith(kInvalid, {"ragged_dot", kLarge}));
  EXPECT_THAT(ragged({2, k40}, {k40, k40, 1}), FailsWith(kInvalid, {"ragged_dot", kLarge}));
  EXPECT_THAT(ragged({-2, 1}, {1, 1, 1}), FailsWith(kInvalid, {"negative extent"}));
  const absl::StatusOr<RaggedDotPlan> plan =
      RaggedDotPlan::Make(DefaultUnquantizedConfig(), {DType::kF32, {4, 1}}, {DType::kF32, {2, 1, 1}});
  ASSERT_THAT(plan, IsOk());
  const std::vector<float> x = {1, 2, 3, 4}, w = {1, 10};
  const ArrayRef lhs(x.data(), {4, 1}), rhs(w.data(), {2, 1, 1});
  std::vector<float> y(4);
  const MutableArrayRef out(y.data(), {4, 1});
  EXPECT_THAT(plan->Forward(lhs, rhs, {kMin, kMax}, {}, out), FailsWith(kInvalid, {"group_sizes"}));
  // 2^63 - 1 + 2^63 - 1 + ... would wrap to a small sum; groups are cut off at the end of lhs.
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{kMax, kMax}, {k62, k62}}) {
    EXPECT_THAT(plan->Forward(lhs, rhs, sizes, {}, out), IsOk());
    EXPECT_THAT(y, ::testing::ElementsAre(1, 2, 3, 4));
  }
  EXPECT_THAT(plan->Forward(lhs, rhs, {2, kMax}, {}, out), IsOk());
  EXPECT_THAT(y, ::testing::ElementsAre(1, 2, 30, 40));
}

TEST(ShapeOverflowTest, Convolutions) {
  const auto conv = [](const Shape& lhs, const Shape& rhs, const ConvDims& dims) {
    return ConvGeneralPlan::Make(ConvGeneralDilatedMake(1, 8, 8), {DType::kF32, lhs}, {DType::kF32, rhs}, dims)
        .status();
  };
  const Shape lhs = {1, 4, 2}, rhs = {3, 2, 2};
  for (const int64_t n : {k62, kMax, k62 - 1}) {
    EXPECT_THAT(conv(lhs, rhs, {.window_strides = {n}}), FailsWith(kInvalid, {"window_strides", "1 .. 2^40"}));
    EXPECT_THAT(conv(lhs, rhs, {.rhs_dilation = {n}}), FailsWith(kInvalid, {"rhs_dilation", "1 .. 2^40"}));
    for (const std::pair<int64_t, int64_t>& padding :
         {std::pair(n, int64_t{0}), std::pair(int64_t{0}, n), std::pair(n, n), std::pair(-n, -n), std::pair(n, -n)}) {
      const ConvDims dims{.padding = ConvPadding::kExplicit, .explicit_padding = {padding}};
      EXPECT_THAT(conv(lhs, rhs, dims), FailsWith(kInvalid, {"padding", "-2^40 .. 2^40"}));
    }
    EXPECT_THAT(conv(lhs, rhs, {.padding = ConvPadding::kExplicit, .explicit_padding = {{0, 0}}, .lhs_dilation = {n}}),
                FailsWith(kInvalid, {"lhs_dilation", "1 .. 2^40"}));
    EXPECT_THAT(conv({1, n, 2}, rhs, {}), FailsWith(kInvalid, {"lhs", kLarge}));
    EXPECT_THAT(conv({n, 4, 2}, rhs, {}), FailsWith(kInvalid, {"lhs", kLarge}));
    EXPECT_THAT(conv(lhs, {n, 2, 2}, {}), FailsWith(kInvalid, {"rhs", kLarge}));
    EXPECT_THAT(conv(lhs, {3, 2, n}, {}), FailsWith(kInvalid, {"rhs", kLarge}));
    EXPECT_THAT(conv(lhs, rhs, {.feature_group_count = n}), FailsWith(kInvalid, {"feature_group_count"}));
  }
  // Each number is legal, but their combination is not.
  const ConvDims wide{.padding = ConvPadding::kExplicit, .explicit_padding = {{k40, k40}}};
  EXPECT_THAT(conv({k20, 4, 2}, rhs, wide), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(conv({k40, 4, 2}, {3, 2, k20}, {}), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(conv({1, -4, 2}, rhs, {}), FailsWith(kInvalid, {"lhs", "negative extent"}));
  EXPECT_THAT(conv(lhs, {-3, 2, 2}, {}), FailsWith(kInvalid, {"rhs", "negative extent"}));
  EXPECT_THAT(conv({1, 4, -2}, {3, -2, 2}, {}), FailsWith(kInvalid, {"negative extent"}));
  // Strides and dilations at the limit: one output, or none.
  EXPECT_THAT(conv(lhs, rhs, {.window_strides = {k40}}), IsOk());
  EXPECT_THAT(conv(lhs, {1, 2, 2}, {.rhs_dilation = {k40}}), IsOk());
  EXPECT_THAT(conv(lhs, rhs, {.window_strides = {k40}, .padding = ConvPadding::kSame}), IsOk());
}

TEST(ShapeOverflowTest, QuantizedTensors) {
  EXPECT_THAT(ZeroQTensor({k40, k40}, DType::kS8), FailsWith(kInvalid, {"ZeroQTensor", kLarge}));
  EXPECT_THAT(ZeroQTensor({k32, k32}, DType::kS4), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(ZeroQTensorWithScale({k62}, {0}, DType::kS8), FailsWith(kInvalid, {kLarge}));
  EXPECT_THAT(ZeroQTensorWithScale({2}, {kMin}, DType::kS8), FailsWith(kInvalid, {"out of range"}));
  const QTensor x = *ZeroQTensorWithScale({4, 2}, {1}, DType::kS8);
  for (const int64_t n : {k62, kMax}) {
    EXPECT_THAT(DynamicSlice(x, {n, 0}, {n, 2}), FailsWith(kInvalid, {"does not lie inside"}));
    EXPECT_THAT(DynamicSlice(x, {1, 0}, {n, 2}), FailsWith(kInvalid, {"does not lie inside"}));
    EXPECT_THAT(DynamicSlice(x, {-n, 0}, {n, 2}), FailsWith(kInvalid, {"does not lie inside"}));
    EXPECT_THAT(At(x, n), FailsWith(kInvalid, {"out of range"}));
  }
  // values * bits
  const Array words = Array::Zeros(DType::kS32, {0, int64_t{1} << 59});
  for (const int64_t values : {k62, kMax, kMin}) {
    EXPECT_THAT(compressed_tensors::UnpackInts(words, 8, values), FailsWith(kInvalid, {"words cannot hold"}));
  }
}

}  // namespace
}  // namespace aqt
