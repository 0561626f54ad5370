#include "aqt/quant/builders.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config.h"

namespace aqt {
namespace {

IntSymmetric Int(int bits, std::optional<DType> dtype, std::optional<Noise> noise = std::nullopt) {
  return {.bits = bits, .preserve_zero = bits != 1, .noise = noise, .dtype = dtype};
}

Tensor Quantized(Numerics numerics, bool use_fwd_quant = false) {
  return {.quantizer = {.numerics = std::move(numerics), .calibration = AbsMax{}}, .use_fwd_quant = use_fwd_quant};
}

DotGeneralRaw Raw(Tensor lhs, Tensor rhs, std::optional<DType> accumulator) {
  return {.lhs = std::move(lhs), .rhs = std::move(rhs), .dg_accumulator_dtype = accumulator};
}

TEST(NumericsFromBits, Containers) {
  EXPECT_EQ(NumericsFromBits(std::nullopt), Numerics(NoNumerics{}));
  EXPECT_EQ(NumericsFromBits(1), Numerics(Int(1, std::nullopt)));
  for (const int bits : {2, 3, 5, 6, 7, 8}) EXPECT_EQ(NumericsFromBits(bits), Numerics(Int(bits, DType::kS8)));
  EXPECT_EQ(NumericsFromBits(4), Numerics(Int(4, DType::kS4)));
  EXPECT_EQ(NumericsFromBits(9), Numerics(Int(9, std::nullopt)));
  EXPECT_EQ(NumericsFromBits(Bits::E4M3()), Numerics(Fp8{}));
  EXPECT_EQ(NumericsFromBits(Bits::E5M2()),
            Numerics(Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2}));
}

TEST(QuantizerMake, Defaults) {
  EXPECT_EQ(QuantizerMake(8), (Quantizer{.numerics = Int(8, DType::kS8), .calibration = AbsMax{}}));
  EXPECT_EQ(QuantizerMake(std::nullopt), Quantizer{});
  EXPECT_TRUE(std::get<IntSymmetric>(QuantizerMake(4, /*preserve_max_val=*/true).numerics).preserve_max_val);
}

TEST(DotGeneralRawMake, Accumulator) {
  EXPECT_EQ(DotGeneralRawMake(8, 4).dg_accumulator_dtype, DType::kS32);
  EXPECT_EQ(DotGeneralRawMake(8, 1).dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(DotGeneralRawMake(8, 9).dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(DotGeneralRawMake(8, std::nullopt).dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(DotGeneralRawMake(Bits::E4M3(), Bits::E5M2()).dg_accumulator_dtype, DType::kF32);
  EXPECT_EQ(DotGeneralRawMake(Bits::E4M3(), 8).dg_accumulator_dtype, std::nullopt);  // only when both are
}

TEST(FullyQuantized, Defaults) {
  const Noise noise{};
  const Numerics plain = Int(8, DType::kS8), noisy = Int(8, DType::kS8, noise);
  const DotGeneralRaw backward = Raw(Quantized(noisy), Quantized(noisy, true), DType::kS32);
  const DotGeneral want{.fwd = Raw(Quantized(plain), Quantized(plain), DType::kS32), .dlhs = backward, .drhs = backward};
  EXPECT_EQ(FullyQuantized(), want);
}

TEST(FullyQuantized, Options) {
  const absl::StatusOr<DotGeneral> gradient_only = FullyQuantized(
      {.use_stochastic_rounding = std::nullopt, .vjp_lhs_stochastic_rounding = true, .vjp_rhs_stochastic_rounding = false});
  ASSERT_TRUE(gradient_only.ok());
  EXPECT_TRUE(std::get<IntSymmetric>(gradient_only->dlhs.lhs.quantizer.numerics).noise.has_value());
  EXPECT_FALSE(std::get<IntSymmetric>(gradient_only->dlhs.rhs.quantizer.numerics).noise.has_value());
  const absl::StatusOr<DotGeneral> bound = FullyQuantized({.fwd_bits = 4, .use_dummy_static_bound = true});
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(*bound->drhs.rhs.quantizer.calibration, Calibration(Constant{.bound = 1.0}));
  EXPECT_EQ(std::get<IntSymmetric>(bound->fwd.rhs.quantizer.numerics).dtype, DType::kS4);
  EXPECT_EQ(std::get<IntSymmetric>(bound->drhs.rhs.quantizer.numerics).bits, 8);
}

TEST(FullyQuantized, ContradictingFlags) {
  struct Case {
    FullyQuantizedOptions options;
    std::string message;
  };
  const Case cases[] = {
      {{.vjp_lhs_stochastic_rounding = true},
       "FullyQuantized: set both of vjp_lhs_stochastic_rounding and vjp_rhs_stochastic_rounding, or none"},
      {{.vjp_lhs_stochastic_rounding = true, .vjp_rhs_stochastic_rounding = false},
       "FullyQuantized: use_stochastic_rounding must be null when the vjp_*_stochastic_rounding flags are set"},
      {{.use_stochastic_rounding = std::nullopt, .vjp_lhs_stochastic_rounding = true, .vjp_rhs_stochastic_rounding = true},
       "FullyQuantized: vjp_lhs_stochastic_rounding and vjp_rhs_stochastic_rounding must not both be true; "
       "use_stochastic_rounding puts noise on both sides"},
  };
  for (const Case& c : cases) {
    const absl::Status status = FullyQuantized(c.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), c.message);
  }
}

TEST(ConfigV3, Defaults) {
  const Numerics plain = Int(8, DType::kS8);
  const DotGeneral want{.fwd = Raw(Quantized(plain), Quantized(plain), DType::kS32),
                        .dlhs = Raw(Quantized(Int(8, DType::kS8, Noise{})), Quantized(plain), DType::kS32),
                        .drhs = {}};
  EXPECT_EQ(ConfigV3(), want);
  // Accumulators are as given, whatever the bits.
  EXPECT_EQ(ConfigV3({.fwd_bits = 12}).fwd.dg_accumulator_dtype, DType::kS32);
}

TEST(ConfigV4, Defaults) {
  const DotGeneral config = ConfigV4();
  EXPECT_EQ(config.fwd, ConfigV3().fwd);
  EXPECT_EQ(config.dlhs, ConfigV3().dlhs);
  EXPECT_EQ(config.drhs.lhs.quantizer.numerics, Numerics(NoNumerics{}));
  EXPECT_EQ(config.drhs.dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(ConfigV4({.fwd_bits = 12}).fwd.dg_accumulator_dtype, std::nullopt);
  const DotGeneral chosen = ConfigV4({.drhs_bits = 8,
                                      .rng_type = NoiseKind::kRandomCenteredUniform,
                                      .fwd_accumulator_dtype = std::make_optional(std::optional<DType>(DType::kF32)),
                                      .drhs_use_fwd_quant = true});
  EXPECT_EQ(chosen.fwd.dg_accumulator_dtype, DType::kF32);
  EXPECT_EQ(std::get<IntSymmetric>(chosen.drhs.lhs.quantizer.numerics).noise->kind, NoiseKind::kRandomCenteredUniform);
  EXPECT_TRUE(chosen.drhs.rhs.use_fwd_quant);
  EXPECT_FALSE(chosen.dlhs.rhs.use_fwd_quant);
}

TEST(ConfigFwdFp8, Defaults) {
  const DotGeneral config = ConfigFwdFp8();
  EXPECT_EQ(config.fwd, Raw(Quantized(Fp8{}), Quantized(Fp8{}), DType::kF32));
  EXPECT_EQ(config.dlhs.lhs.quantizer.numerics, Numerics(NoNumerics{}));
}

TEST(DotGeneralMake, FwdQuantWhereThereIsOne) {
  const DotGeneral weight_only = DotGeneralMake(std::nullopt, 8);
  EXPECT_TRUE(weight_only.dlhs.rhs.use_fwd_quant);
  EXPECT_FALSE(weight_only.drhs.rhs.use_fwd_quant);
  EXPECT_FALSE(DotGeneralMake(8, 8, {.use_fwd_quant = false}).dlhs.rhs.use_fwd_quant);
}

// ---- setters: exactly the fields that they name

TEST(Setters, ModesAndAccumulators) {
  DotGeneral want = FullyQuantized(), config = want;
  SetFwdDequantMode(config, DequantMode::kThisInput, std::nullopt);
  want.fwd.lhs.dequant_mode = DequantMode::kThisInput;
  EXPECT_EQ(config, want);
  SetFwdCalibrationMode(config, std::nullopt, CalibrationMode::kRemainingAxis);
  want.fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
  EXPECT_EQ(config, want);
  SetAccumulatorDType(config, DType::kF32, std::nullopt, DType::kS32);
  want.fwd.dg_accumulator_dtype = DType::kF32;
  want.dlhs.dg_accumulator_dtype = std::nullopt;
  EXPECT_EQ(config, want);
  const LocalAqt local{.contraction_axis_shard_count = 2};
  SetLocalAqt(config, local, std::nullopt);
  want.dlhs.local_aqt = local;
  EXPECT_EQ(config, want);
  SetScaleDType(config, DType::kBF16);
  for (DotGeneralRaw* raw : {&want.fwd, &want.dlhs, &want.drhs}) {
    raw->lhs.quantizer.scale_dtype = raw->rhs.quantizer.scale_dtype = DType::kBF16;
  }
  EXPECT_EQ(config, want);
}

TEST(SetNumerics, Accumulator) {
  DotGeneralRaw raw;
  SetNumerics(raw, Int(8, DType::kS8), Int(4, DType::kS4));
  EXPECT_EQ(raw.dg_accumulator_dtype, DType::kS32);
  SetNumerics(raw, Fp8{}, NoNumerics{});
  EXPECT_EQ(raw.dg_accumulator_dtype, DType::kF32);  // either side, unlike DotGeneralRawMake
  SetNumerics(raw, Int(8, DType::kS8), Int(2, DType::kS2));
  EXPECT_EQ(raw.dg_accumulator_dtype, std::nullopt);
}

TEST(SetStochasticRounding, BackwardOnly) {
  DotGeneral want = ConfigV4({.fwd_bits = 8, .dlhs_bits = Bits::E5M2()}), config = want;
  SetStochasticRounding(config, false, true, NoiseKind::kRandomCenteredUniform, {0});
  std::get<Fp8>(want.dlhs.rhs.quantizer.numerics).stochastic_rounding = true;
  std::get<Fp8>(want.dlhs.lhs.quantizer.numerics).stochastic_rounding = false;
  EXPECT_EQ(config, want);
  DotGeneral ints = FullyQuantized();
  SetStochasticRounding(ints, true, false, NoiseKind::kRandomCenteredUniform, {0});
  const Noise noise{NoiseKind::kRandomCenteredUniform, {0}};
  EXPECT_EQ(std::get<IntSymmetric>(ints.drhs.lhs.quantizer.numerics).noise, noise);
  EXPECT_EQ(std::get<IntSymmetric>(ints.drhs.rhs.quantizer.numerics).noise, std::nullopt);
}

TEST(SetConstantCalibration, AllSix) {
  DotGeneral config = FullyQuantized();
  SetConstantCalibration(config, 3.0, 0.5);
  const Calibration want = Constant{.bound = 3.0, .bias = 0.5};
  for (const DotGeneralRaw* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    EXPECT_EQ(raw->lhs.quantizer.calibration, want);
    EXPECT_EQ(raw->rhs.quantizer.calibration, want);
  }
}

TEST(SetUseFwdQuant, RefusesMidScales) {
  DotGeneral config = ConfigV4();
  ASSERT_TRUE(SetUseFwdQuant(config, true, std::nullopt).ok());
  EXPECT_TRUE(config.dlhs.rhs.use_fwd_quant);
  EXPECT_FALSE(config.drhs.rhs.use_fwd_quant);
  config.fwd.lhs_mid_alpha = 0.5;
  EXPECT_EQ(SetUseFwdQuant(config, std::nullopt, true).message(),
            "SetUseFwdQuant: mid scales are configured; the forward quantization cannot be used again with them");
  EXPECT_TRUE(SetUseFwdQuant(config, false, false).ok());
}

TEST(SetUseMidQuant, BothSidesAndNotWithFwdQuant) {
  DotGeneral want = ConfigV4(), config = want;
  ASSERT_TRUE(SetUseMidQuant(config, 0.5, std::nullopt, 0.25).ok());
  want.fwd.lhs_mid_alpha = want.fwd.rhs_mid_alpha = 0.5;
  want.drhs.lhs_mid_alpha = want.drhs.rhs_mid_alpha = 0.25;
  EXPECT_EQ(config, want);
  DotGeneral reuse = FullyQuantized();
  EXPECT_EQ(SetUseMidQuant(reuse, 0.5, std::nullopt, std::nullopt).message(),
            "SetUseMidQuant: use_fwd_quant is configured; with mid scales the forward quantization cannot be used again");
  EXPECT_EQ(reuse, FullyQuantized());
}

TEST(SetAutoCalibScale, RhsOfAllThree) {
  DotGeneral want = FullyQuantized(), config = want;
  SetAutoCalibScale(config, {1.0, 0.5});
  const Calibration search = SnrSearch{.candidates = {1.0, 0.5}};
  want.fwd.rhs.quantizer.calibration = want.dlhs.rhs.quantizer.calibration = want.drhs.rhs.quantizer.calibration = search;
  EXPECT_EQ(config, want);
}

TEST(SetIntNumericsPreserveZero, ResetsTheContainer) {
  DotGeneral config = ConfigV4({.fwd_bits = 4});
  SetIntNumericsPreserveZero(config, false);
  EXPECT_EQ(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).dtype, std::nullopt);
  EXPECT_FALSE(std::get<IntSymmetric>(config.dlhs.rhs.quantizer.numerics).preserve_zero);
  SetIntNumericsPreserveZero(config, true);
  EXPECT_EQ(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).dtype, DType::kS4);
  EXPECT_EQ(std::get<IntSymmetric>(config.dlhs.lhs.quantizer.numerics).dtype, DType::kS8);
}

TEST(SetAbsmaxCalibScale, ClipsGradientsBelowOne) {
  DotGeneral config = ConfigV4();
  ASSERT_TRUE(SetAbsmaxCalibScale(config, 1.5).ok());
  EXPECT_FALSE(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient);
  ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.5).ok());
  EXPECT_TRUE(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient);
  EXPECT_EQ(std::get<AbsMax>(*config.dlhs.rhs.quantizer.calibration).clipping_scale, 0.5);
  SetConstantCalibration(config);
  const DotGeneral before = config;
  EXPECT_EQ(SetAbsmaxCalibScale(config, 0.5).message(),
            "SetAbsmaxCalibScale: a calibration other than AbsMax is configured; set its own bound instead");
  EXPECT_EQ(config, before);
}

TEST(SetBits, EndsFwdQuantWhereTheForwardOperandIsQuantized) {
  DotGeneral config = FullyQuantized();
  SetBits(config, std::nullopt, 4, 8, 8, 8, 8);
  EXPECT_FALSE(config.dlhs.rhs.use_fwd_quant);
  EXPECT_TRUE(config.drhs.rhs.use_fwd_quant);  // left alone: fwd.lhs is not quantized now
  EXPECT_EQ(config.fwd.dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(config.drhs.dg_accumulator_dtype, DType::kS32);
}

TEST(SetFwdCalibration, BothForwardSides) {
  DotGeneral want = FullyQuantized(), config = want;
  SetFwdCalibration(config, AbsMax{.po2_scale = true});
  want.fwd.lhs.quantizer.calibration = want.fwd.rhs.quantizer.calibration = AbsMax{.po2_scale = true};
  EXPECT_EQ(config, want);
}

}  // namespace
}  // namespace aqt
