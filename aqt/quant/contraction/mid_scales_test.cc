// DotGeneralRawConfig::lhs_mid_alpha and rhs_mid_alpha, checked by hand.

#include "aqt/quant/contraction/dot_general.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general_test_util.h"

namespace aqt {
namespace {

// AQT's example: two batches whose operands vary along K in opposite ways; binary values, powers of two,
// preserve_max_val. Mid scales with alpha 0.5 balance the rows exactly.
TEST(DotGeneral, MidScales) {
  const Array a = Array::Of<float>({1, 2, 4, 1, 4, 16}, {2, 3}), b = Array::Of<float>({4, 2, 1, 16, 4, 1}, {2, 3});
  const DotDims dims{.lhs_contracting = {1}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  DotGeneralConfig config;
  config.fwd.lhs.quantizer = {.numerics = NumericsFromBits(1, /*preserve_max_val=*/true),
                              .calibration = AbsMax{.po2_scale = true}};
  config.fwd.rhs = config.fwd.lhs;
  const auto run = [&](const Compat& compat) {
    const absl::StatusOr<Array> out = QuantizedDotGeneral(config, a, b, dims, {}, {.semantics = {.compat = compat}});
    EXPECT_TRUE(out.ok()) << out.status();
    return std::vector<float>(out->View<float>().begin(), out->View<float>().end());
  };
  EXPECT_EQ(run({}), (std::vector<float>{48, 768}));
  ASSERT_TRUE(SetUseMidQuant(config, 0.5, std::nullopt, std::nullopt).ok());
  EXPECT_EQ(run({}), (std::vector<float>{12, 48}));  // the true product
  EXPECT_EQ(run(Compat::Original()), (std::vector<float>{12, 48}));
}

// One side stays a float: it is rescaled, too, and the mid scales cancel. AQT rescales only that side.
TEST(DotGeneral, MidScalesWithOneSideQuantized) {
  const Array lhs = RandomArray(DType::kF32, {8, 64}, 1), rhs = RandomArray(DType::kF32, {64, 8}, 2);
  const Array exact = *QuantizedDotGeneral(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  DotGeneralConfig config = DotGeneralMake(std::nullopt, 8, {.use_fwd_quant = false});
  config.fwd.rhs_mid_alpha = 0.5;
  const Array out = *QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
  // 64 products, each off by at most |lhs| * s / 2, where s / 2 is 1/255 of an absmax of about 3.
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(out.View<float>()[i], exact.View<float>()[i], 1);
}

// The backward passes take the forward qvalues with their scales and mid scales: gradients near those of the floats.
TEST(DotGeneral, MidScalesWithForwardQuantization) {
  const Array lhs = RandomArray(DType::kF32, {8, 16}, 1), rhs = RandomArray(DType::kF32, {16, 8}, 2);
  const Array g = RandomArray(DType::kF32, {8, 8}, 3);
  DotGeneralConfig config = DotGeneralMake(8, 8, {.use_fwd_quant = true});
  config.fwd.lhs_mid_alpha = 0.7;
  config.fwd.rhs_mid_alpha = 0.3;
  const DotGeneralGradients exact =
      *QuantizedDotGeneralWithGradients(DefaultUnquantizedConfig(), lhs, rhs, g, MatMulDims());
  const absl::StatusOr<DotGeneralGradients> got = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
  ASSERT_TRUE(got.ok()) << got.status();
  const auto error = [](const Array& a, const Array& b) {
    double error = 0, signal = 0;
    for (size_t i = 0; i < a.View<float>().size(); ++i) {
      error += std::pow(a.View<float>()[i] - b.View<float>()[i], 2);
      signal += std::pow(b.View<float>()[i], 2);
    }
    return std::sqrt(error / signal);
  };
  // A qvalue is within 1/255 of the largest of its group, which is about three times a typical element.
  EXPECT_LT(error(got->dlhs, exact.dlhs), 0.02);
  EXPECT_LT(error(got->drhs, exact.drhs), 0.02);
}

// On random data the original, which does not quantize the operands that it calibrated for, is worse.
TEST(DotGeneral, MidScalesHelp) {
  const int64_t m = 8, k = 64, n = 8;
  Array lhs = RandomArray(DType::kF32, {m, k}, 1);
  const Array rhs = RandomArray(DType::kF32, {k, n}, 2);
  std::vector<float> outliers(lhs.View<float>().begin(), lhs.View<float>().end());
  for (int64_t i = 0; i < m; ++i) outliers[i * k + 3] *= 100;  // one channel with outliers
  lhs = Array::FromSpan<float>(outliers, {m, k});
  const Array exact = *QuantizedDotGeneral(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  DotGeneralConfig config = DotGeneralMake(8, 8, {.use_fwd_quant = false});
  const auto error = [&](const Compat& compat) {
    const Array out = *QuantizedDotGeneral(config, lhs, rhs, MatMulDims(), {}, {.semantics = {.compat = compat}});
    double sum = 0;
    for (int64_t i = 0; i < m * n; ++i) sum += std::pow(out.View<float>()[i] - exact.View<float>()[i], 2);
    return std::sqrt(sum / (m * n));
  };
  const double plain = error({});
  ASSERT_TRUE(SetUseMidQuant(config, 0.5, std::nullopt, std::nullopt).ok());
  EXPECT_LT(error({}), plain / 2);
  EXPECT_GT(error({.mid_scales_on_original_operands = true}), error({}));
}

}  // namespace
}  // namespace aqt
