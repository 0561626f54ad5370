// DotGeneralRawConfig::hadamard. dot_general_property_test.cc compares it with the reference,
// tests/e2e/hadamard_test.cc with NumPy.

#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
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
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"

namespace aqt {
namespace {

DotGeneralConfig Int8(int64_t block, const DotGeneralMakeOptions& options = {.use_fwd_quant = false}) {
  DotGeneralConfig config = DotGeneralMake(8, 8, options);
  if (block != 0) config.fwd.hadamard = Hadamard{.block = block};
  return config;
}

// Rows with a few channels that are `factor` times as large.
Array WithOutliers(const Shape& shape, uint64_t seed, float factor) {
  const Array x = RandomArray(DType::kF32, shape, seed);
  std::vector<float> values(x.View<float>().begin(), x.View<float>().end());
  const int64_t k = shape[shape.rank() - 1];
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    if (i % k == 3 || i % k == k - 2) values[i] *= factor;
  }
  return Array::FromSpan<float>(values, shape);
}

double RelativeError(const Array& got, const Array& want) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    error += std::pow(got.View<float>()[i] - want.View<float>()[i], 2);
    size += std::pow(want.View<float>()[i], 2);
  }
  return std::sqrt(error / size);
}

// A channel 50 times as large as the others costs them 5.6 of 8 bits. Rotated, it is spread over 64 elements: at most 8
// times as large as they are, before it meets its neighbours.
TEST(Hadamard, KeepsTheOthersBesideOutliers) {
  const Array lhs = WithOutliers({16, 384}, 1, 50);
  // The outlier channels have small weights: otherwise they make up the product, and nothing else matters.
  Array rhs = RandomArray(DType::kF32, {384, 24}, 2);
  std::vector<float> weights(rhs.View<float>().begin(), rhs.View<float>().end());
  for (int64_t k : {3, 382}) {
    for (int64_t n = 0; n < 24; ++n) weights[k * 24 + n] *= 0.02f;
  }
  rhs = Array::FromSpan<float>(weights, {384, 24});
  const Array exact = *QuantizedDotGeneral({}, lhs, rhs, MatMulDims());
  const double plain = RelativeError(*QuantizedDotGeneral(Int8(0), lhs, rhs, MatMulDims()), exact);
  const double rotated = RelativeError(*QuantizedDotGeneral(Int8(64), lhs, rhs, MatMulDims()), exact);
  EXPECT_LT(rotated, plain / 3);
}

// Nothing but rounding changes a product: with 22 bits each qvalue is within 2^-22 of the absmax.
TEST(Hadamard, KeepsTheProduct) {
  for (const int64_t k : {64, 100, 312, 7, 1}) {
    for (const int64_t block : {2, 32, 64, 4096}) {
      const Array lhs = RandomArray(DType::kF32, {5, k}, 1), rhs = RandomArray(DType::kF32, {k, 6}, 2);
      DotGeneralConfig config = DotGeneralMake(22, 22, {.use_fwd_quant = false});
      config.fwd.hadamard = Hadamard{.block = block};
      const absl::StatusOr<Array> out = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
      ASSERT_TRUE(out.ok()) << out.status();
      // Per product: the rounding of 12 steps of f32, and of two qvalues; absmax is at most sqrt(block) <= sqrt(k).
      const double bound = static_cast<double>(k) * 16 * 0x1p-22 * std::sqrt(static_cast<double>(k));
      const Array exact = *QuantizedDotGeneral({}, lhs, rhs, MatMulDims());
      for (int64_t i = 0; i < 30; ++i) {
        EXPECT_NEAR(out->View<float>()[i], exact.View<float>()[i], bound) << k << " by " << block;
      }
    }
  }
}

// The saved operands are the float ones, so float gradients have the bits of those without a rotation.
TEST(Hadamard, FloatGradientsDoNotChange) {
  const Array lhs = RandomArray(DType::kF32, {8, 70}, 1), rhs = RandomArray(DType::kF32, {70, 9}, 2),
              g = RandomArray(DType::kF32, {8, 9}, 3);
  const DotGeneralGradients plain = *QuantizedDotGeneralWithGradients(Int8(0), lhs, rhs, g, MatMulDims()),
                            rotated = *QuantizedDotGeneralWithGradients(Int8(64), lhs, rhs, g, MatMulDims());
  EXPECT_TRUE(BitEqual(plain.dlhs, rotated.dlhs));
  EXPECT_TRUE(BitEqual(plain.drhs, rotated.drhs));
  EXPECT_FALSE(BitEqual(plain.out, rotated.out));
}

// From the forward qvalues, and with a clip mask: gradients near those of floats.
TEST(Hadamard, GradientsAreRotatedBack) {
  const Array lhs = WithOutliers({8, 70}, 1, 20), rhs = RandomArray(DType::kF32, {70, 9}, 2),
              g = RandomArray(DType::kF32, {8, 9}, 3);
  const DotGeneralGradients exact = *QuantizedDotGeneralWithGradients({}, lhs, rhs, g, MatMulDims());
  DotGeneralConfig clips = Int8(64);
  for (TensorConfig* tensor : {&clips.fwd.lhs, &clips.fwd.rhs}) {
    std::get<IntSymmetric>(tensor->quantizer.numerics).clip_gradient = true;
    tensor->quantizer.calibration = AbsMax{.clipping_scale = 1.01};  // nothing is clipped
  }
  for (const DotGeneralConfig& config : {Int8(64, {.use_fwd_quant = true}), Int8(64, {.bwd_bits = 8}), clips}) {
    const absl::StatusOr<DotGeneralGradients> got = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
    ASSERT_TRUE(got.ok()) << got.status();
    // A qvalue of 8 bits is within 1/255 of the largest of its group, which is about three times a typical element.
    EXPECT_LT(RelativeError(got->dlhs, exact.dlhs), 0.03);
    EXPECT_LT(RelativeError(got->drhs, exact.drhs), 0.03);
  }
}

// A clipped element of the rotated operand: its gradient is zero, and rotated back it is no element's.
TEST(Hadamard, ClipMasksAreThoseOfTheRotatedOperand) {
  // (1, 1, 1, 1) is rotated to (2, 0, 0, 0); a bound of 1 clips the first.
  const Array lhs = Array::Of<float>({1, 1, 1, 1}, {1, 4}), rhs = Array::Of<float>({1, 0, 0, 0}, {4, 1}),
              g = Array::Of<float>({8}, {1, 1});
  DotGeneralConfig config = Int8(4);
  config.fwd.lhs.quantizer.calibration = Constant{.bound = 1.0};
  std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient = true;
  const absl::StatusOr<DotGeneralGradients> got = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
  ASSERT_TRUE(got.ok()) << got.status();
  // g x rhs^T = (8, 0, 0, 0), rotated (4, 4, 4, 4), masked (0, 4, 4, 4), rotated back.
  EXPECT_TRUE(SameValues(got->dlhs, Array::Of<float>({6, -2, -2, -2}, {1, 4})));
}

TEST(Hadamard, PreparedWeightsAreRotatedOnce) {
  const Array lhs = RandomArray(DType::kF32, {6, 3, 72}, 1), rhs = RandomArray(DType::kF32, {72, 3, 9}, 2);
  DotGeneralConfig weight_only = DotGeneralMake(std::nullopt, 8), activation_only = DotGeneralMake(8, std::nullopt),
                   fp8 = DotGeneralMake(Bits::E4M3(), Bits::E4M3());
  for (DotGeneralConfig config : {DotGeneralMake(8, 8), DotGeneralMake(4, 4), weight_only, activation_only, fp8}) {
    config.fwd.hadamard = Hadamard{.block = 64};
    const DotGeneralPlan plan = *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), kBatched);
    ArrayBuilder want(plan.out_aval()), got(plan.out_aval());
    ASSERT_TRUE(plan.Forward(lhs, rhs, {}, want.ref()).ok());
    const absl::StatusOr<PreparedOperand> weights = plan.Prepare(Side::kRhs, rhs);
    ASSERT_TRUE(weights.ok()) << weights.status();
    ASSERT_EQ(plan.Forward(lhs, *weights, {}, got.ref()), absl::OkStatus());
    EXPECT_TRUE(BitEqual(std::move(got).Build(), std::move(want).Build()));
    // A plan with another rotation refuses it, and so does the other way around.
    for (const int64_t block : {0, 32}) {
      DotGeneralConfig other_config = config;
      other_config.fwd.hadamard.reset();
      if (block != 0) other_config.fwd.hadamard = Hadamard{.block = block};
      const DotGeneralPlan other = *DotGeneralPlan::Make(other_config, lhs.aval(), rhs.aval(), kBatched);
      ArrayBuilder out(plan.out_aval());
      const std::string theirs = block == 0 ? "not rotated" : "rotated by hadamard { block: 32 }",
                        ours = "rotated by hadamard { block: 64 }";
      EXPECT_EQ(other.Forward(lhs, *weights, {}, out.ref()).message(), "DotGeneral: the tensor for fwd.rhs is " + ours +
                                                                           ", but the plan is for one " + theirs +
                                                                           "; prepare it with this plan");
      const absl::StatusOr<PreparedOperand> others = other.Prepare(Side::kRhs, rhs);
      ASSERT_TRUE(others.ok()) << others.status();
      EXPECT_EQ(plan.Forward(lhs, *others, {}, out.ref()).message(), "DotGeneral: the tensor for fwd.rhs is " + theirs +
                                                                         ", but the plan is for one " + ours +
                                                                         "; prepare it with this plan");
    }
  }
}

TEST(Hadamard, AFloatOperandThatIsRotatedAheadHasNoGradient) {
  const Array lhs = RandomArray(DType::kF32, {2, 8}, 1), rhs = RandomArray(DType::kF32, {8, 3}, 2);
  DotGeneralConfig config = DotGeneralMake(8, std::nullopt);
  config.fwd.hadamard = Hadamard{};
  const DotGeneralPlan plan = *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
  const PreparedOperand weights = *plan.Prepare(Side::kRhs, rhs);
  ArrayBuilder out(plan.out_aval());
  Residuals residuals;
  EXPECT_EQ(plan.Forward(lhs, weights, {}, out.ref(), &residuals).message(),
            "DotGeneral: the tensor for fwd.rhs is rotated ahead of time (hadamard), but gradients need the float "
            "operand; pass that");
}

// Contracting axes count as one, row-major.
TEST(Hadamard, SeveralContractingAxesCountAsOne) {
  const Array lhs = RandomArray(DType::kF32, {5, 6, 11}, 1), rhs = RandomArray(DType::kF32, {6, 11, 4}, 2);
  const Array flat_lhs = Array::FromSpan<float>(lhs.View<float>(), {5, 66}),
              flat_rhs = Array::FromSpan<float>(rhs.View<float>(), {66, 4});
  const DotDims two{.lhs_contracting = {1, 2}, .rhs_contracting = {0, 1}};
  EXPECT_TRUE(BitEqual(*QuantizedDotGeneral(Int8(64), lhs, rhs, two),
                       *QuantizedDotGeneral(Int8(64), flat_lhs, flat_rhs, MatMulDims())));
  // An einsum, also one that exchanges its operands.
  const absl::StatusOr<Array> einsum = QuantizedEinsum("abc,bcd->ad", Int8(64), lhs, rhs);
  ASSERT_TRUE(einsum.ok()) << einsum.status();
  EXPECT_TRUE(BitEqual(*einsum, *QuantizedDotGeneral(Int8(64), lhs, rhs, two)));
  const absl::StatusOr<Array> exchanged = QuantizedEinsum("abc,bcd->da", Int8(64), lhs, rhs);
  ASSERT_TRUE(exchanged.ok()) << exchanged.status();
  for (int64_t a = 0; a < 5; ++a) {
    for (int64_t d = 0; d < 4; ++d) {
      // The scales are multiplied in the other order.
      EXPECT_NEAR(exchanged->View<float>()[d * 5 + a], einsum->View<float>()[a * 4 + d], 1e-5);
    }
  }
}

// Each tile is rotated alone.
TEST(Hadamard, TilesAreRotatedAlone) {
  const Array lhs = RandomArray(DType::kF32, {4, 128}, 1), rhs = RandomArray(DType::kF32, {128, 5}, 2);
  DotGeneralConfig tiled = Int8(128);
  tiled.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', 64}});
  DotGeneralConfig same = tiled;
  same.fwd.hadamard = Hadamard{.block = 64};  // 128 does not fit a tile
  const absl::StatusOr<Array> got = QuantizedDotGeneral(tiled, lhs, rhs, MatMulDims());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(*got, *QuantizedDotGeneral(same, lhs, rhs, MatMulDims())));
}

TEST(Hadamard, RefusesWhatItCannotDo) {
  const Aval lhs{DType::kF32, {4, 8}}, rhs{DType::kF32, {8, 5}};
  const auto message = [&](const DotGeneralConfig& config) {
    return std::string(DotGeneralPlan::Make(config, lhs, rhs, MatMulDims()).status().message());
  };
  for (const int64_t block : {-64, 0, 1, 3, 48, 8192}) {
    DotGeneralConfig config = Int8(64);
    config.fwd.hadamard->block = block;
    EXPECT_EQ(message(config),
              "fwd: hadamard: block = " + std::to_string(block) + ", expected a power of two from 2 to 4096");
  }
  DotGeneralConfig mid = Int8(64);
  mid.fwd.lhs_mid_alpha = 0.5;
  EXPECT_EQ(message(mid),
            "fwd: hadamard: does not go together with mid alphas, which also balance the operands; leave one of them "
            "out");
  DotGeneralConfig in_float = Int8(64);
  in_float.dlhs.hadamard = Hadamard{};  // dlhs quantizes nothing
  EXPECT_EQ(message(in_float),
            "dlhs: hadamard: neither operand is quantized, so a rotation would change nothing; leave hadamard out");
  DotGeneralRawConfig conv = ConvGeneralDilatedMake(1, 8, 8);
  conv.hadamard = Hadamard{};
  EXPECT_EQ(ConvGeneralPlan::Make(conv, {DType::kF32, {1, 4, 2}}, {DType::kF32, {3, 2, 2}}, {}).status().message(),
            "conv_general: hadamard does not apply to a convolution; leave it out");
  EXPECT_EQ(RaggedDotPlan::Make(Int8(64), {DType::kF32, {4, 8}}, {DType::kF32, {2, 8, 3}}).status().message(),
            "ragged_dot: fwd: hadamard is not supported with groups; leave it out");
}

TEST(Hadamard, EmptyOperands) {
  for (const auto& [m, k, n] : {std::tuple(0, 8, 3), {2, 0, 3}, {2, 8, 0}}) {
    const Array lhs = Array::Zeros(DType::kF32, {m, k}), rhs = Array::Zeros(DType::kF32, {k, n}),
                g = Array::Zeros(DType::kF32, {m, n});
    for (const DotGeneralMakeOptions& options : {DotGeneralMakeOptions{.bwd_bits = 8}, {.use_fwd_quant = false}}) {
      const absl::StatusOr<DotGeneralGradients> got =
          QuantizedDotGeneralWithGradients(Int8(64, options), lhs, rhs, g, MatMulDims());
      ASSERT_TRUE(got.ok()) << got.status();
      for (const float x : got->out.View<float>()) EXPECT_EQ(x, 0);
    }
  }
}

}  // namespace
}  // namespace aqt
