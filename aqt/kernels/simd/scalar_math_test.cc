#include "aqt/kernels/simd/scalar_math.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The distance of `got` from `want` in units of the last place of the double nearest to `want`.
double UlpError(double got, long double want) {
  int exponent;
  std::frexp(static_cast<double>(want), &exponent);
  const long double ulp = std::ldexp(1.0L, std::max(exponent - 53, -1074));
  return static_cast<double>(std::fabs((static_cast<long double>(got) - want) / ulp));
}

TEST(ExpTest, IsWithinOneUlp) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (double range : {1e-9, 1e-3, 0.3466, 1.0, 10.0, 708.0}) {
    std::uniform_real_distribution<double> draw(-range, range);
    for (int i = 0; i < 30000; ++i) {
      const double x = draw(random);
      worst = std::max(worst, UlpError(Exp(x), expl(x)));
    }
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GE(worst, 0.4);  // checks that UlpError does measure errors
  double worst_subnormal = 0;
  std::uniform_real_distribution<double> draw(-745, -708.4);
  for (int i = 0; i < 10000; ++i) {
    const double x = draw(random);
    worst_subnormal = std::max(worst_subnormal, UlpError(Exp(x), expl(x)));
  }
  EXPECT_LE(worst_subnormal, 2.0);
}

TEST(ExpTest, Edges) {
  EXPECT_EQ(Exp(0.0), 1.0);
  EXPECT_EQ(Exp(-0.0), 1.0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(-kInfinity), 0.0);
  EXPECT_TRUE(std::isnan(Exp(std::nan(""))));
  EXPECT_EQ(Exp(709.79), kInfinity);
  EXPECT_TRUE(std::isfinite(Exp(709.782712893383)));
  EXPECT_EQ(Exp(-745.2), 0.0);
  EXPECT_EQ(Exp(-745.0), 0x1p-1074);
  EXPECT_EQ(Exp(0x1p-1074), 1.0);
}

TEST(LogTest, IsWithinOneUlp) {
  std::mt19937_64 random(2);
  double worst = 0;
  std::uniform_real_distribution<double> exponent(-1074, 1024), near_one(0.5, 2), very_near(1 - 1e-6, 1 + 1e-6);
  for (int i = 0; i < 50000; ++i) {
    for (double x : {std::exp2(exponent(random)), near_one(random), very_near(random)}) {
      if (x == 0 || x == 1) continue;
      worst = std::max(worst, UlpError(Log(x), logl(x)));
    }
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GE(worst, 0.4);
}

TEST(LogTest, Edges) {
  EXPECT_EQ(Log(1.0), 0.0);
  EXPECT_FALSE(std::signbit(Log(1.0)));
  EXPECT_EQ(Log(0.0), -kInfinity);
  EXPECT_EQ(Log(-0.0), -kInfinity);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Log(-1.0)));
  EXPECT_TRUE(std::isnan(Log(-kInfinity)));
  EXPECT_TRUE(std::isnan(Log(std::nan(""))));
  EXPECT_LE(UlpError(Log(0x1p-1074), logl(0x1p-1074L)), 1.0);
  EXPECT_LE(UlpError(Log(std::numeric_limits<double>::max()), logl(std::numeric_limits<double>::max())), 1.0);
}

// Every finite f32 whose exponential is neither 0 nor infinity is in [-104, 89]. The test strides through the codes.
TEST(ExpTest, RoundedToFloatIsWithinHalfAnUlpAndATrace) {
  double worst = 0;
  for (uint32_t code = 0; code < 0x42b20000u; code += 9973) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float x = __builtin_bit_cast(float, code | sign);
      const long double want = expl(x);
      int exponent;
      std::frexp(static_cast<float>(want), &exponent);
      const long double ulp = std::ldexp(1.0L, std::max(exponent - 24, -149));
      const float got = static_cast<float>(Exp(x));
      if (std::isinf(got)) continue;
      worst = std::max(worst, static_cast<double>(std::fabs((got - want) / ulp)));
    }
  }
  EXPECT_LE(worst, 0.5001);
  EXPECT_GE(worst, 0.49);
}

}  // namespace
}  // namespace aqt::kernels
