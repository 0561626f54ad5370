#include "aqt/quant/config/config.h"

#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"

namespace aqt {
namespace {

TEST(Config, DefaultsAreUnquantized) {
  const DotGeneralConfig config;
  for (const DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    for (const TensorConfig* tensor : {&raw->lhs, &raw->rhs}) {
      EXPECT_EQ(tensor->quantizer.numerics, Numerics(NoNumerics{}));
      EXPECT_FALSE(tensor->quantizer.calibration.has_value());
      EXPECT_TRUE(tensor->quantizer.scale_stop_grad);
      EXPECT_EQ(tensor->dequant_mode, DequantMode::kOutput);
      EXPECT_EQ(tensor->calibration_mode, CalibrationMode::kContractingAxis);
      EXPECT_FALSE(tensor->use_fwd_quant);
    }
    EXPECT_FALSE(raw->dg_accumulator_dtype.has_value());
  }
}

TEST(Config, EqualityIsFieldByField) {
  DotGeneralConfig a, b;
  EXPECT_EQ(a, b);
  a.fwd.lhs.quantizer.numerics = IntSymmetric{.noise = Noise{.noise_sharing_axes = {0}}};
  EXPECT_NE(a, b);
  b.fwd.lhs.quantizer.numerics = IntSymmetric{.noise = Noise{.noise_sharing_axes = {1}}};
  EXPECT_NE(a, b);
  std::get<IntSymmetric>(b.fwd.lhs.quantizer.numerics).noise->noise_sharing_axes = {0};
  EXPECT_EQ(a, b);
  a.drhs.rhs.quantizer.calibration = Constant{.bound = ConstantArray{Array::Of<float>({1}, {1})}};
  b.drhs.rhs.quantizer.calibration = Constant{.bound = ConstantArray{Array::Of<float>({2}, {1})}};
  EXPECT_NE(a, b);
  b.drhs.rhs.quantizer.calibration = Constant{.bound = ConstantArray{Array::Of<float>({1}, {1})}};
  EXPECT_EQ(a, b);
  EXPECT_NE((Context{.key = MakeKey(1)}), Context{});
}

TEST(Config, TextOfEnums) {
  EXPECT_EQ(ToString(QuantMode::kServe), "QUANT_MODE_SERVE");
  EXPECT_EQ(ToString(DequantMode::kOtherInput), "DEQUANT_MODE_OTHER_INPUT");
  EXPECT_EQ(ToString(CalibrationMode::kRemainingAxis), "CALIBRATION_MODE_REMAINING_AXIS");
  EXPECT_EQ(ToString(NoiseKind::kRandomCenteredUniform), "NOISE_KIND_RANDOM_CENTERED_UNIFORM");
  std::ostringstream os;
  os << QuantMode::kTrain << " " << DequantMode::kOutput << " " << CalibrationMode::kContractingAxis << " "
     << NoiseKind::kJaxUniform;
  EXPECT_EQ(os.str(), "QUANT_MODE_TRAIN DEQUANT_MODE_OUTPUT CALIBRATION_MODE_CONTRACTING_AXIS NOISE_KIND_JAX_UNIFORM");
}

TEST(Config, Describe) {
  EXPECT_EQ(Describe(NoNumerics{}), "float");
  EXPECT_EQ(Describe(IntSymmetric{}), "int8:s8");
  EXPECT_EQ(Describe(IntSymmetric{.bits = 12, .preserve_max_val = true, .noise = Noise{}, .dtype = std::nullopt}),
            "int12:none+preserve_max_val+jax_uniform");
  EXPECT_EQ(Describe(IntSymmetric{.bits = 1, .preserve_zero = false, .dtype = std::nullopt}),
            "int1:none+half_integers");
  EXPECT_EQ(Describe(Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2}), "fp8_e5m2:e5m2");
  EXPECT_EQ(Describe(Fp{}), "fp_e2m1_min0_radix2");
  EXPECT_EQ(Describe(Noise{.kind = NoiseKind::kRandomCenteredUniform, .noise_sharing_axes = {0, -1}}),
            "random_centered_uniform[0,-1]");
}

}  // namespace
}  // namespace aqt
