#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/config/semantics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"

namespace aqt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Forward(const Numerics& numerics, const std::vector<float>& y, const Context& context = {}) {
  const absl::StatusOr<Array> q =
      NumericsForward(numerics, ArrayRef(y.data(), {static_cast<int64_t>(y.size())}), context);
  EXPECT_TRUE(q.ok()) << q.status();
  const Array f32 = Cast(*q, DType::kF32);
  return {f32.View<float>().begin(), f32.View<float>().end()};
}

std::vector<float> Backward(const Numerics& numerics, const std::vector<float>& y, const std::vector<float>& g) {
  const int64_t n = static_cast<int64_t>(y.size());
  const absl::StatusOr<Array> r = NumericsBackward(numerics, ArrayRef(y.data(), {n}), ArrayRef(g.data(), {n}));
  EXPECT_TRUE(r.ok()) << r.status();
  return {r->View<float>().begin(), r->View<float>().end()};
}

// The table of bounds in AQT: bits, preserve_zero, preserve_max_val -> quant_bound, clip_bound.
TEST(IntSymmetric, Bounds) {
  struct Case {
    int bits;
    bool preserve_zero, preserve_max_val;
    double quant_bound, clip_bound;
  };
  const Case cases[] = {
      {1, true, false, 0.5, 0},      {2, true, false, 1.5, 1},     {3, true, false, 3.5, 3},
      {4, true, false, 7.5, 7},      {5, true, false, 15.5, 15},   {6, true, false, 31.5, 31},
      {7, true, false, 63.5, 63},    {8, true, false, 127.5, 127}, {12, true, false, 2047.5, 2047},
      {1, false, false, 1, 0.5},     {2, false, false, 2, 1.5},    {4, false, false, 8, 7.5},
      {8, false, false, 128, 127.5}, {1, true, true, 0, 0},        {2, true, true, 1, 1},
      {4, true, true, 7, 7},         {8, true, true, 127, 127},    {1, false, true, 0.5, 0.5},
      {2, false, true, 1.5, 1.5},    {4, false, true, 7.5, 7.5},   {8, false, true, 127.5, 127.5},
  };
  for (const Case& c : cases) {
    const IntSymmetric n{.bits = c.bits,
                         .preserve_zero = c.preserve_zero,
                         .preserve_max_val = c.preserve_max_val,
                         .dtype = std::nullopt};
    EXPECT_EQ(QuantBound(n), c.quant_bound) << c.bits << c.preserve_zero << c.preserve_max_val;
    EXPECT_EQ(ClipBound(n), c.clip_bound) << c.bits << c.preserve_zero << c.preserve_max_val;
  }
  EXPECT_EQ(ClipBound({.bits = 8, .round = false}), 127.5);
}

TEST(IntSymmetric, RoundsHalfToEvenAndClipsFirst) {
  EXPECT_EQ(
      Forward(IntSymmetric{}, {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, 126.51f, 127.5f, 300, -300, kNaN, kInf, -kInf}),
      (std::vector<float>{0, 2, 2, 0, -2, 126, 127, 127, 127, -127, 0, 127, -127}));
}

TEST(IntSymmetric, BinaryAndHalfIntegers) {
  const IntSymmetric binary{.bits = 1, .preserve_zero = false, .dtype = std::nullopt};
  EXPECT_EQ(Forward(binary, {-3, -0.1f, 0, 0.1f, 3}), (std::vector<float>{-0.5f, -0.5f, 0.5f, 0.5f, 0.5f}));
  const IntSymmetric two{.bits = 2, .preserve_zero = false, .dtype = std::nullopt};
  EXPECT_EQ(Forward(two, {-9, -1, -0.5f, 0.999f, 1, 9}), (std::vector<float>{-1.5f, -0.5f, -0.5f, 0.5f, 1.5f, 1.5f}));
}

TEST(IntSymmetric, SwitchesAreIndependent) {
  // Not clipped: the container saturates, and NaN becomes 0.
  EXPECT_EQ(Forward(IntSymmetric{.clip = false}, {127.5f, 200, -127.5f, -128.5f, -200, kNaN, kInf}),
            (std::vector<float>{127, 127, -128, -128, -128, 0, 127}));
  // Not rounded: clipped at the edge.
  const IntSymmetric real{.round = false, .dtype = std::nullopt};
  EXPECT_EQ(Forward(real, {0.3f, 127.4f, 500}), (std::vector<float>{0.3f, 127.4f, 127.5f}));
  // Neither: the identity, subnormal numbers included.
  const IntSymmetric none{.clip = false, .round = false, .dtype = std::nullopt};
  EXPECT_EQ(Forward(none, {0x1p-140f, 1e30f}), (std::vector<float>{0x1p-140f, 1e30f}));
  // Clipping treats a subnormal as zero.
  EXPECT_EQ(Forward(real, {0x1p-140f}), std::vector<float>{0});
  // 12 bits in float; NaN stays.
  const IntSymmetric wide{.bits = 12, .dtype = std::nullopt};
  const std::vector<float> y = Forward(wide, {5000, -5000, 2.5f, kNaN});
  EXPECT_EQ(y[0], 2047);
  EXPECT_EQ(y[1], -2047);
  EXPECT_EQ(y[2], 2);
  EXPECT_TRUE(std::isnan(y[3]));
}

// In bf16 the clip bound of 10 bits rounds from 511 to 512, that of 12 bits from 2047 to 2048.
TEST(IntSymmetric, ClipBoundTakesTheDTypeOfTheValues) {
  for (const auto& [bits, bound] : {std::pair{10, 512.0f}, std::pair{12, 2048.0f}, std::pair{8, 127.0f}}) {
    const IntSymmetric n{.bits = bits, .dtype = std::nullopt};
    const Array y = Cast(Array::Of<float>({1e6f}, {1}), DType::kBF16);
    const absl::StatusOr<Array> q = NumericsForward(n, y, {});
    ASSERT_TRUE(q.ok());
    EXPECT_EQ(q->dtype(), DType::kBF16);
    EXPECT_EQ(ToFloat(q->View<BFloat16>()[0]), bound);
  }
}

TEST(IntSymmetric, GradientPassesOrIsMasked) {
  const std::vector<float> y{-128, -127, 0, 127, 127.001f, kNaN}, g{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(Backward(IntSymmetric{}, y, g), g);
  EXPECT_EQ(Backward(IntSymmetric{.clip_gradient = true}, y, g), (std::vector<float>{0, 2, 3, 4, 0, 0}));
  // By default the mask chooses; with IEEE arithmetic it is a factor and does not hide a NaN.
  const std::vector<float> clipped{500}, nan{kNaN};
  EXPECT_EQ(Backward(IntSymmetric{.clip_gradient = true}, clipped, nan)[0], 0);
  const absl::StatusOr<Array> product = NumericsBackward(
      IntSymmetric{.clip_gradient = true}, ArrayRef(clipped.data(), {1}), ArrayRef(nan.data(), {1}), Arithmetic::kIeee);
  EXPECT_TRUE(std::isnan(product->View<float>()[0]));
  // It copies the gradient, and so keeps a subnormal one (recorded from aqtp 0.9.0).
  EXPECT_EQ(Backward(IntSymmetric{.clip_gradient = true}, {5}, {8.4e-40f})[0], 8.4e-40f);
}

// Only a rounded value that is NaN is beyond the bound. In bf16 the gradient is multiplied, which turns a subnormal
// into zero. Recorded from aqtp 0.9.0.
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

// The formula, for every number of bits with every switch and container, in and beyond the range, at the ties and at
// their neighbours.
TEST(IntSymmetric, EveryWidthWithEverySwitch) {
  for (int bits = 1; bits <= 22; ++bits) {
    for (int switches = 0; switches < 32; ++switches) {
      const auto on = [&](int bit) { return (switches >> bit & 1) != 0; };
      IntSymmetric n{.bits = bits,
                     .preserve_zero = on(0),
                     .preserve_max_val = on(1),
                     .clip = on(2),
                     .clip_gradient = on(3),
                     .round = on(4),
                     .dtype = std::nullopt};
      const double edge = std::exp2(bits - 1) - (n.preserve_zero ? 0.5 : 0), center = edge - 0.5;
      const float clip_bound = static_cast<float>(n.round ? center : edge);
      EXPECT_EQ(QuantBound(n), n.preserve_max_val ? center : edge) << bits << " " << switches;
      EXPECT_EQ(ClipBound(n), clip_bound) << bits << " " << switches;

      std::vector<float> y{0, kInf, -kInf};
      for (int i = 0; i < 400; ++i) {
        const float tie = 0.5f * static_cast<float>(std::floor(std::exp2(i % 100 * 0.2)) + i / 100 % 2);
        for (const float v : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInf)}) y.push_back(i < 200 ? v : -v);
      }
      const float beyond = std::max(std::nextafter(clip_bound, kInf), 0x1p-126f);  // a subnormal would be treated as 0
      for (const float v : {clip_bound, beyond, static_cast<float>(edge)}) {
        y.push_back(v);
        y.push_back(-v);
      }
      std::vector<float> real(y.size()), mask(y.size());
      for (size_t i = 0; i < y.size(); ++i) {
        float v = y[i];
        if (n.clip) v = std::min(std::max(v, -clip_bound), clip_bound);
        if (n.round) v = n.preserve_zero ? std::nearbyint(v) : std::floor(v) + 0.5f;
        real[i] = v;
        mask[i] = !n.clip_gradient || std::fabs(y[i]) <= clip_bound ? 1.0f : 0.0f;
      }
      EXPECT_EQ(Forward(n, y), real) << bits << " " << switches;
      EXPECT_EQ(Backward(n, y, std::vector<float>(y.size(), 1)), mask) << bits << " " << switches;
      // The integer containers: values beyond their range saturate, fractions are truncated.
      for (const auto& [container, width] : {std::pair{DType::kS2, 2}, {DType::kS4, 4}, {DType::kS8, 8}}) {
        n.dtype = container;
        if (!Validate(Numerics(n)).ok()) {
          EXPECT_TRUE(!n.preserve_zero || bits > width) << bits << " " << switches << ToString(container);
          continue;
        }
        std::vector<float> want = real;
        const float top = static_cast<float>((1 << (width - 1)) - 1);
        for (float& v : want) v = std::min(std::max(std::trunc(v), -top - 1), top);
        EXPECT_EQ(Forward(n, y), want) << bits << " " << switches << ToString(container);
      }
    }
  }
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

// Every bf16 number in every format, against the list of the format's values: the nearest one; of two equally near ones
// the larger among the normal numbers, the even one below 1. With noise, one of the two neighbours.
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
  // Away from zero among the normal numbers, to even among the subnormal ones.
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
  // Every bf16 number lies between two of the boundaries 0.625 * 4^e, which belong to the larger value.
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

// Recorded: a NaN stays one, and so does an infinity that rounds stochastically (inf - inf).
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

// Values recorded from AQT with PRNGKey(0), partitionable layout.
TEST(MakeNoise, RecordedValues) {
  const absl::StatusOr<Array> centered = MakeNoise({.kind = NoiseKind::kRandomCenteredUniform}, {4}, MakeKey(0));
  ASSERT_TRUE(centered.ok());
  const float want_centered[] = {-0.1888504f, -0.2868271f, -0.44469452f, 0.15706635f};
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(centered->View<float>()[i], want_centered[i]);
  const absl::StatusOr<Array> uniform = MakeNoise({.kind = NoiseKind::kJaxUniform}, {3}, MakeKey(0));
  ASSERT_TRUE(uniform.ok());
  const float want_uniform[] = {0.447667f, 0.47857988f, -0.16770852f};
  for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(uniform->View<float>()[i], want_uniform[i]);
}

TEST(MakeNoise, IsCenteredAndBounded) {
  for (const NoiseKind kind : {NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform}) {
    const absl::StatusOr<Array> noise = MakeNoise({.kind = kind}, {100000}, MakeKey(9));
    ASSERT_TRUE(noise.ok());
    double sum = 0;
    for (const float v : noise->View<float>()) {
      EXPECT_LE(std::fabs(v), 0.5f);
      sum += v;
    }
    EXPECT_LT(std::fabs(sum / 100000), 0.005);  // 5 standard deviations of the mean
  }
}

TEST(MakeNoise, SharingAxes) {
  const absl::StatusOr<Array> noise = MakeNoise({.noise_sharing_axes = {0}}, {2, 3, 4}, MakeKey(0));
  ASSERT_TRUE(noise.ok());
  EXPECT_EQ(noise->shape(), (Shape{1, 3, 4}));
  // Every row of the values sees the same draw.
  const IntSymmetric n{.noise = Noise{.noise_sharing_axes = {-2}}, .dtype = std::nullopt};
  const Array y = Cast(Array::FromSpan<float>(std::vector<float>(50 * 8, 0.5f), {50, 8}), DType::kF32);
  const absl::StatusOr<Array> q = NumericsForward(n, y, {.key = MakeKey(1)});
  ASSERT_TRUE(q.ok());
  bool both = false;
  for (int i = 0; i < 50 * 8; ++i) {
    EXPECT_EQ(q->View<float>()[i], q->View<float>()[i % 8]);
    both = both || q->View<float>()[i] != q->View<float>()[0];
  }
  EXPECT_TRUE(both);
}

TEST(Validate, NamesWhatIsWrong) {
  struct Case {
    Numerics numerics;
    absl::StatusCode code;
    std::string message;
  };
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  const Case cases[] = {
      {IntSymmetric{.bits = 23, .dtype = std::nullopt}, invalid,
       "IntSymmetric: bits = 23, but 1 to 22 can be represented"},
      {IntSymmetric{.bits = 0}, invalid, "IntSymmetric: bits = 0, but 1 to 22 can be represented"},
      {IntSymmetric{.dtype = DType::kE4M3FN}, invalid,
       "IntSymmetric: container e4m3fn, expected s2, s4, s8, s32, f32, bf16 or f16, or leave it unset"},
      {Fp8{.dtype = DType::kE5M2}, invalid,
       "Fp8: exponent_bits = 4, mantissa_bits = 3, dtype e5m2; expected 4, 3, e4m3fn or 5, 2, e5m2, or bf16 with "
       "either"},
      {Fp{.format = {.radix = 3}}, invalid, "Fp: radix 3, expected 2 or 4"},
      {Fp{.format = {.has_naninf = true}}, absl::StatusCode::kUnimplemented,
       "Fp: AQT describes formats with minexp, has_two_nan or has_naninf, but rounds to none; for e4m3fn and e5m2 use "
       "Fp8"},
      {Fp{.format = {.nmant = 7}}, invalid, "Fp: nexp = 2, nmant = 7; expected 0 to 7 and 0 to 6"},
      {Fp{.format = {.nexp = 0, .nmant = 0}}, invalid, "Fp: a format without exponent and mantissa bits has no values"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Validate(c.numerics).code(), c.code);
    EXPECT_EQ(std::string(Validate(c.numerics).message()), c.message);
  }
  EXPECT_TRUE(Validate(Numerics(NoNumerics{})).ok());
  for (const int bits : {9, 16, 22}) {
    EXPECT_TRUE(Validate(Numerics(IntSymmetric{.bits = bits, .dtype = std::nullopt})).ok());
  }
}

// What AQT 0.9.0 gives for these values in each container.
TEST(IntSymmetric, Containers) {
  const std::vector<float> y = {-3000, -300, -129.5f, -8.5f, -2, -0.75f, 0, 0.25f, 1.5f, 7.5f, 127.5f, 200, 3000};
  const auto q = [&](int bits, bool preserve_zero, DType container) {
    const IntSymmetric n{.bits = bits, .preserve_zero = preserve_zero, .dtype = container};
    const absl::StatusOr<Array> out =
        NumericsForward(n, ArrayRef(y.data(), {static_cast<int64_t>(y.size())}), Context());
    EXPECT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->dtype(), container);
    const Array f32 = Cast(*out, DType::kF32);
    return std::vector<float>(f32.View<float>().begin(), f32.View<float>().end());
  };
  using Floats = std::vector<float>;
  const Floats twelve = {-2047, -300, -130, -8, -2, -1, 0, 0, 2, 8, 128, 200, 2047};
  EXPECT_EQ(q(12, true, DType::kS32), twelve);
  EXPECT_EQ(q(12, true, DType::kF32), twelve);
  EXPECT_EQ(q(12, true, DType::kF16), twelve);
  EXPECT_EQ(q(12, true, DType::kBF16), (Floats{-2048, -300, -130, -8, -2, -1, 0, 0, 2, 8, 128, 200, 2048}));
  // More bits than the container has: it saturates.
  EXPECT_EQ(q(12, true, DType::kS8), (Floats{-128, -128, -128, -8, -2, -1, 0, 0, 2, 8, 127, 127, 127}));
  EXPECT_EQ(q(8, true, DType::kS4), (Floats{-8, -8, -8, -8, -2, -1, 0, 0, 2, 7, 7, 7, 7}));
  EXPECT_EQ(q(8, true, DType::kS2), (Floats{-2, -2, -2, -2, -2, -1, 0, 0, 1, 1, 1, 1, 1}));
  // Half-integers in an integer container: the halves are cut off.
  EXPECT_EQ(q(8, false, DType::kF32),
            (Floats{-127.5f, -127.5f, -127.5f, -8.5f, -1.5f, -0.5f, 0.5f, 0.5f, 1.5f, 7.5f, 127.5f, 127.5f, 127.5f}));
  EXPECT_EQ(q(8, false, DType::kS8), (Floats{-127, -127, -127, -8, -1, 0, 0, 0, 1, 7, 127, 127, 127}));
}

TEST(NumericsBackward, RefusesAnotherShape) {
  const absl::Status status =
      NumericsBackward(IntSymmetric{}, Array::Of<float>({1, 2}, {2}), Array::Of<float>({1}, {1})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "NumericsBackward: the values have shape [2], the gradient [1]");
}

TEST(NumericsForward, RefusesWhatItCannotDo) {
  const Array f32 = Array::Of<float>({1}, {1});
  EXPECT_EQ(NumericsForward(IntSymmetric{}, Array::Of<int32_t>({1}, {1}), {}).status().message(),
            "NumericsForward: values have dtype s32, expected f32, bf16 or f16");
  const absl::Status no_key = NumericsForward(IntSymmetric{.noise = Noise{}}, f32, {}).status();
  EXPECT_EQ(no_key.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(no_key.message(), "NumericsForward: int8:s8+jax_uniform draws random numbers: set Context::key");
  const absl::Status f16 =
      NumericsForward(Fp8{.stochastic_rounding = true}, Cast(f32, DType::kF16), {.key = MakeKey(0)}).status();
  EXPECT_EQ(f16.message(), "Fp8: stochastic rounding works on the bits of f32 and bf16, but the scaled values are f16");
  EXPECT_EQ(NumericsForward(IntSymmetric{.noise = Noise{.noise_sharing_axes = {1}}}, f32, {.key = MakeKey(0)})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aqt
