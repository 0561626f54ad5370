// Fp8 and Fp.

#include "aqt/quant/numerics/numerics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/numerics_testing.h"

namespace aqt {
namespace {

// Only a value that rounds to NaN is beyond the bound. In bf16 the gradient is multiplied, which turns a subnormal into
// zero. Recorded from aqtp 0.9.0.
TEST(Fp, ClippedGradient) {
  const std::vector<float> y{kNaN, 0.25f, 100}, g{2, 8.4e-40f, 3};
  const Fp keeps_nan{.format = {.nexp = 0, .nmant = 5}, .clip_gradient = true};
  const Fp radix4{.format = {.radix = 4}, .clip_gradient = true};
  for (const Fp& numerics : {keeps_nan, radix4}) {
    EXPECT_EQ(Backward(numerics, y, g), (std::vector<float>{0, 8.4e-40f, 3}));
    const Array y16 = Cast(Array::FromSpan<float>(y, {3}), DType::kBF16);
    const Array g16 = Cast(Array::FromSpan<float>(g, {3}), DType::kBF16);
    const absl::StatusOr<Array> gradient = NumericsBackward(numerics, y16, g16, Arithmetic::kXlaCompatible);
    ASSERT_TRUE(gradient.ok()) << gradient.status();
    const Array values = Cast(*gradient, DType::kF32);
    EXPECT_EQ(std::vector<float>(values.View<float>().begin(), values.View<float>().end()),
              (std::vector<float>{0, 0, 3}));
  }
  EXPECT_EQ(Backward(Fp{.format = {.nexp = 0, .nmant = 5}}, y, g), g);
  const Fp e2m1{.format = {.nexp = 2, .nmant = 1}, .clip_gradient = true};
  EXPECT_EQ(Backward(e2m1, y, g), g);
}

TEST(Fp8, AllCodesAreFixedPointsAndOverflowSaturates) {
  for (const DType dtype : {DType::kE4M3FN, DType::kE5M2}) {
    const bool e4m3 = dtype == DType::kE4M3FN;
    const Fp8 n = e4m3 ? Fp8{} : Fp8{.dtype = dtype, .exponent_bits = 5, .mantissa_bits = 2};
    EXPECT_EQ(QuantBound(n), e4m3 ? 448 : 57344);
    for (int code = 0; code < 256; ++code) {
      const float v =
          e4m3 ? ToFloat(Float8E4M3FN{static_cast<uint8_t>(code)}) : ToFloat(Float8E5M2{static_cast<uint8_t>(code)});
      const float got = Forward(n, {v})[0];
      if (std::isnan(v)) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_EQ(got, std::isinf(v) ? std::copysign(57344.0f, v) : v);
      }
    }
    EXPECT_EQ(Forward(n, {1e30f, -kInf}), (std::vector<float>{e4m3 ? 448.0f : 57344.0f, e4m3 ? -448.0f : -57344.0f}));
  }
  const Fp8 e5m2{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2};
  EXPECT_EQ(Forward(e5m2, {0.1234567f, 100, 0.01f, -2.9098532f, 1.3707844f}),
            (std::vector<float>{0.125f, 96, 10.0f / 1024, -3, 1.25f}));
  EXPECT_EQ(Forward(Fp8{}, {1.3707844f, 113, 114}), (std::vector<float>{1.375f, 112, 112}));
}

// Rows are stored several values at a time, unless one of them is NaN.
TEST(Fp8, RowsRoundLikeSingleValues) {
  for (const DType dtype : {DType::kE4M3FN, DType::kE5M2}) {
    const bool e4m3 = dtype == DType::kE4M3FN;
    const Fp8 n = e4m3 ? Fp8{} : Fp8{.dtype = dtype, .exponent_bits = 5, .mantissa_bits = 2};
    const float max = static_cast<float>(QuantBound(n));
    std::mt19937 random(7);
    std::vector<float> values;
    for (int i = 0; i < 20000; ++i) {
      // Every third value has few bits, so that there are ties.
      const uint32_t bits = static_cast<uint32_t>(random()) & (i % 3 == 0 ? 0xfff80000u : 0xffffffffu);
      const float v = __builtin_bit_cast(float, bits);
      if (!std::isnan(v) || i > 10000) values.push_back(v);
    }
    const std::vector<float> got = Forward(n, values);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << values[i];
        continue;
      }
      const float clamped = std::clamp(values[i], -max, max);
      const float want =
          e4m3 ? ToFloat(ConvertElement<Float8E4M3FN>(clamped)) : ToFloat(ConvertElement<Float8E5M2>(clamped));
      ASSERT_EQ(got[i], want) << values[i];
      ASSERT_EQ(std::signbit(got[i]), std::signbit(want)) << values[i];
    }
  }
}

TEST(Fp8, StochasticRoundingIsUnbiased) {
  Fp8 n;
  n.stochastic_rounding = true;
  const int64_t draws = 20000;
  for (const float v : {1.03f, 2.5f, 3.99f}) {
    double sum = 0, square = 0;
    for (const float q : Forward(n, std::vector<float>(draws, v), {.key = MakeKey(3)})) {
      sum += q;
      square += q * q;
    }
    const double mean = sum / draws, deviation = std::sqrt((square / draws - mean * mean) / draws);
    EXPECT_NEAR(mean, v, 5 * deviation) << v;
  }
}

// The formats of radix 2 that AQT names and rounds to: 6, 5 and 4 bits.
// clang-format off
constexpr FpFormat kFormats[] = {
    {.nexp = 5, .nmant = 0}, {.nexp = 4, .nmant = 1}, {.nexp = 3, .nmant = 2}, {.nexp = 2, .nmant = 3},
    {.nexp = 1, .nmant = 4}, {.nexp = 0, .nmant = 5}, {.nexp = 4, .nmant = 0}, {.nexp = 3, .nmant = 1},
    {.nexp = 2, .nmant = 2}, {.nexp = 1, .nmant = 3}, {.nexp = 0, .nmant = 4},
    {.nexp = 3, .nmant = 0, .has_subnormals = false}, {.nexp = 3, .nmant = 0},
    {.nexp = 2, .nmant = 1, .has_subnormals = false}, {.nexp = 2, .nmant = 1},
    {.nexp = 1, .nmant = 2, .has_subnormals = false}, {.nexp = 1, .nmant = 2},
    {.nexp = 0, .nmant = 3, .has_subnormals = false}, {.nexp = 0, .nmant = 3},
    {.nexp = 1, .nmant = 0, .has_subnormals = false}};
// clang-format on

// Largest values of the formats that AQT names.
TEST(Fp, Bounds) {
  struct Case {
    int nexp, nmant;
    bool subnormals;
    double bound;
  };
  const Case cases[] = {{5, 0, true, 0x1p30}, {4, 1, true, 24576},  {3, 2, true, 112},   {2, 3, true, 7.5},
                        {1, 4, true, 1.9375}, {0, 5, true, .96875}, {4, 0, true, 16384}, {3, 1, true, 96},
                        {2, 2, true, 7},      {1, 3, true, 1.875},  {0, 4, true, .9375}, {3, 0, false, 128},
                        {3, 0, true, 64},     {2, 1, false, 12},    {2, 1, true, 6},     {1, 2, false, 3.5},
                        {1, 2, true, 1.75},   {0, 3, false, 1.875}, {0, 3, true, .875},  {1, 0, false, 2}};
  for (const Case& c : cases) {
    const Fp n{.format = {.nexp = c.nexp, .nmant = c.nmant, .has_subnormals = c.subnormals}};
    EXPECT_EQ(QuantBound(n), c.bound) << c.nexp << c.nmant << c.subnormals;
    // Everything beyond saturates.
    EXPECT_EQ(Forward(n, {1e38f, -1e38f}),
              (std::vector<float>{static_cast<float>(c.bound), -static_cast<float>(c.bound)}));
  }
}

// Every bf16 number in every format, against the list of the format's values: it rounds to the nearest one; ties go to
// the larger value among normal numbers and to the even one below 1. With noise it rounds to one of its two neighbours.
TEST(Fp, EveryFormatRoundsToANeighbour) {
  std::vector<float> x;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float v = ToFloat(BFloat16{static_cast<uint16_t>(code)});
    if (!std::isnan(v)) x.push_back(v);
  }
  for (const FpFormat& format : kFormats) {
    SCOPED_TRACE(Describe(Fp{.format = format}));
    const double fraction = std::exp2(format.nmant);
    std::vector<double> grid;  // the values >= 0, ascending
    if (format.has_subnormals) {
      for (int i = 0; i < fraction; ++i) grid.push_back(i / fraction);
    }
    const int exponents = (1 << format.nexp) - (format.has_subnormals ? 1 : 0);
    for (int e = 0; e < exponents; ++e) {
      for (int i = 0; i < fraction; ++i) grid.push_back(std::ldexp(1 + i / fraction, e));
    }
    EXPECT_EQ(QuantBound(Fp{.format = format}), grid.back());
    const std::vector<float> nearest = Forward(Fp{.format = format}, x);
    const std::vector<float> noisy = Forward(Fp{.format = format, .stochastic_rounding = true}, x, {.key = MakeKey(7)});
    int64_t different = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = std::min<double>(std::fabs(x[i]), grid.back());
      const size_t above = std::lower_bound(grid.begin(), grid.end(), v) - grid.begin();
      const size_t below = grid[above] == v || above == 0 ? above : above - 1;
      const double down = v - grid[below], up = grid[above] - v;
      size_t want = down < up ? below : above;
      if (down == up && grid[above] <= 1 && format.has_subnormals) want = below % 2 == 0 ? below : above;
      ASSERT_EQ(nearest[i], std::copysign(static_cast<float>(grid[want]), x[i])) << x[i];
      const double got = std::fabs(noisy[i]);
      ASSERT_TRUE(got == grid[below] || got == grid[above]) << x[i] << " " << noisy[i];
      // Without a zero the sign is drawn below 1.
      const bool same_sign = got == 0 || std::signbit(noisy[i]) == std::signbit(x[i]);
      ASSERT_TRUE(same_sign || (grid[0] > 0 && v < 1)) << x[i];
      different += noisy[i] != nearest[i];
    }
    EXPECT_GT(different, 0);
  }
}

TEST(Fp, Ties) {
  // Ties go away from zero among normal numbers and to even among subnormal ones.
  const Fp e2m1{.format = {.nexp = 2, .nmant = 1}};
  EXPECT_EQ(Forward(e2m1, {1.25f, 2.5f, 5, 0.25f, 0.75f, -1.25f, 0.24f, 0}),
            (std::vector<float>{1.5f, 3, 6, 0, 1, -1.5f, 0, 0}));
  // Without subnormals there is no zero.
  const Fp e3m0{.format = {.nexp = 3, .nmant = 0, .has_subnormals = false}};
  EXPECT_EQ(Forward(e3m0, {0, -0.0f, 0.1f, -0.3f, 1.4f, 1.5f, 96}), (std::vector<float>{1, -1, 1, -1, 1, 2, 128}));
}

// The recorded boundaries of radix 4 on the grid of bf16.
TEST(Fp, Radix4) {
  const Fp n{.format = {.nexp = 3, .nmant = 0, .radix = 4}};
  EXPECT_EQ(QuantBound(n), 64);
  EXPECT_EQ(Forward(n, {.0097046f, .009765625f, .0390625f, .15625f, .625f, 2.5f, 10, 40, -40, 1e30f, 0}),
            (std::vector<float>{0, 0x1p-6f, 0x1p-4f, .25f, 1, 4, 16, 64, -64, 64, 0}));
  // Every bf16 number is between two of the boundaries 0.625 * 4^e, which round to the larger value.
  std::vector<float> x, want;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float v = ToFloat(BFloat16{static_cast<uint16_t>(code)});
    if (std::isnan(v)) continue;
    float value = 0;
    for (int e = -3; e <= 3; ++e) {
      if (std::fabs(v) >= std::ldexp(0.625f, 2 * e)) value = std::ldexp(1.0f, 2 * e);
    }
    x.push_back(v);
    want.push_back(std::copysign(value, v));
  }
  EXPECT_EQ(Forward(n, x), want);
}

// Recorded: a NaN stays NaN, and an infinity that rounds stochastically becomes NaN (inf - inf).
TEST(Fp, Radix4KeepsNaN) {
  Fp n{.format = {.nexp = 3, .nmant = 0, .radix = 4}};
  const std::vector<float> nearest = Forward(n, {kNaN, -kNaN, kInf, -kInf});
  EXPECT_TRUE(std::isnan(nearest[0]) && std::isnan(nearest[1]));
  EXPECT_EQ(nearest[2], 64);
  EXPECT_EQ(nearest[3], -64);
  n.stochastic_rounding = true;
  const std::vector<float> drawn = Forward(n, {kNaN, kInf, 0}, {.key = MakeKey(0)});
  EXPECT_TRUE(std::isnan(drawn[0]) && std::isnan(drawn[1]));
  EXPECT_EQ(drawn[2], 0);
}

TEST(Fp, StochasticRoundingIsUnbiased) {
  const int64_t draws = 20000;
  for (const FpFormat& format : {FpFormat{.nexp = 2, .nmant = 1}, FpFormat{.nexp = 3, .nmant = 0, .radix = 4}}) {
    const Fp n{.format = format, .stochastic_rounding = true};
    for (const float v : {0.375f, 1.25f, 5.0f}) {
      if (format.radix == 4 && v < 1) continue;
      double sum = 0, square = 0;
      for (const float q : Forward(n, std::vector<float>(draws, v), {.key = MakeKey(3)})) {
        sum += q;
        square += q * q;
      }
      const double mean = sum / draws, deviation = std::sqrt((square / draws - mean * mean) / draws);
      EXPECT_NEAR(mean, v, 5 * deviation) << v;
    }
  }
}

TEST(RoundToFormat, TakesF32AndBF16) {
  const FpFormat e2m1{.nexp = 2, .nmant = 1};
  const Array x = Array::Of<float>({1.3f, -9, 0.1f}, {3});
  const absl::StatusOr<Array> y = RoundToFormat(e2m1, x);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(y->View<float>()[0], 1.5f);
  EXPECT_EQ(y->View<float>()[1], -6);
  EXPECT_EQ(y->View<float>()[2], 0);
  EXPECT_EQ(RoundToFormat(e2m1, Cast(x, DType::kF16)).status().message(),
            "RoundToFormat: values have dtype f16, expected f32 or bf16");
}

}  // namespace
}  // namespace aqt
