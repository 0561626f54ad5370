#include "aqt/quant/numerics/arith.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "aqt/core/dtype.h"

namespace aqt::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Arith, SubnormalsOfF32AndBF16AreZero) {
  EXPECT_EQ(Mul<float>(0x1p-100f, 0x1p-30f), 0);
  EXPECT_TRUE(std::signbit(Mul<float>(-0x1p-100f, 0x1p-30f)));
  EXPECT_EQ(Mul<float>(0x1p-130f, 0x1p100f), 0);  // an operand
  EXPECT_EQ(Mul<float>(0x1p-100f, 0x1p-26f), 0x1p-126f);
  EXPECT_EQ(Add<float>(0x1p-126f, -0x1.8p-126f), 0);
  EXPECT_EQ(Div<float>(1, 0x1p-130f), kInf);
  EXPECT_EQ(Mul<BFloat16>(0x1p-130f, 0x1p100f), 0);
  EXPECT_EQ(Mul<Float16>(0x1p-24f, 0.5f), 0);  // rounded, not flushed
  EXPECT_EQ(Mul<Float16>(0x1p-24f, 1), 0x1p-24f);
}

TEST(Arith, EachOperationRoundsToItsDType) {
  EXPECT_EQ(Mul<BFloat16>(1.0078125f, 1.0078125f), 1.015625f);  // 1 + 2^-7, squared
  EXPECT_EQ(Add<Float16>(2048, 1), 2048);
  EXPECT_EQ(Div<Float16>(1, 3), 0.333251953125f);
}

TEST(InverseScale, InfinityBecomesOne) {
  EXPECT_EQ(InverseScale<float>(0), 1);
  EXPECT_EQ(InverseScale<float>(0x1p-140f), 1);
  EXPECT_EQ(InverseScale<float>(kInf), 0);
  EXPECT_EQ(InverseScale<float>(4), 0.25f);
}

TEST(Promote, Table) {
  EXPECT_EQ(Promote(DType::kBF16, DType::kS8), DType::kBF16);
  EXPECT_EQ(Promote(DType::kS4, DType::kF16), DType::kF16);
  EXPECT_EQ(Promote(DType::kBF16, DType::kF16), DType::kF32);
  EXPECT_EQ(Promote(DType::kF32, DType::kBF16), DType::kF32);
  EXPECT_EQ(Promote(DType::kS4, DType::kS8), DType::kS8);
  EXPECT_EQ(Promote(DType::kE4M3FN, DType::kF32), DType::kF32);
  EXPECT_EQ(Promote(DType::kE4M3FN, DType::kE5M2), DType::kBF16);
  EXPECT_EQ(Promote(DType::kE4M3FN, DType::kE4M3FN), DType::kE4M3FN);
}

// The exact powers of two that AQT on XLA doubles because the logarithm is inexact.
TEST(CeilToPo2, RecordedListOfDoubledPowers) {
  const std::set<int> doubled{-13, -15, -26,  -27,  -30,  -31,  -49,  -52,  -54,  -57,  -60, -62,
                              -93, -98, -103, -104, -108, -109, -114, -119, -120, -124, -125};
  for (int k = -126; k <= 126; ++k) {
    const float s = std::ldexp(1.0f, k);
    EXPECT_EQ(CeilToPo2(DType::kF32, s, false), doubled.count(k) ? 2 * s : s) << k;
  }
}

TEST(CeilToPo2, SmallestPowerThatIsNotBelow) {
  for (const float s : {0.3f, 0.7f, 1.5f, 3.0f, 100.0f, 1e-20f, 1e20f}) {
    for (const bool divide : {false, true}) {
      const float p = CeilToPo2(DType::kF32, s, divide);
      EXPECT_GE(p, s);
      EXPECT_LT(p, 2 * s);
      int exponent;
      EXPECT_EQ(std::frexp(p, &exponent), 0.5f);
    }
  }
  EXPECT_EQ(CeilToPo2(DType::kF32, 0, false), 0);
  EXPECT_EQ(CeilToPo2(DType::kF32, kInf, false), kInf);
  EXPECT_TRUE(std::isnan(CeilToPo2(DType::kF32, std::numeric_limits<float>::quiet_NaN(), false)));
}

// As in IEEE 754: 1 to any power is 1, even an infinite one. In f16 a host constant above 65504 is infinite.
TEST(Power, OfOneIsOne) {
  for (const double p : {0.0, 0.3, -2.0, 1e5, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(Power(DType::kF16, 1, p), 1) << p;
    EXPECT_EQ(Power(DType::kF32, 1, p), 1) << p;
  }
}

TEST(HostConstant, GoesThroughF32) {
  EXPECT_EQ(HostConstant(DType::kF32, 0.3), 0.3f);
  EXPECT_EQ(HostConstant(DType::kBF16, 0.3), ToFloat(RoundToBFloat16(0.3f)));
  EXPECT_EQ(HostConstant(DType::kBF16, 511), 512);
}

}  // namespace
}  // namespace aqt::internal
