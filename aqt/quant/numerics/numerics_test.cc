#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/config/semantics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics_testing.h"

namespace aqt {
namespace {

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
  // By default the mask selects; with IEEE arithmetic it is a factor and does not hide a NaN.
  const std::vector<float> clipped{500}, nan{kNaN};
  EXPECT_EQ(Backward(IntSymmetric{.clip_gradient = true}, clipped, nan)[0], 0);
  const absl::StatusOr<Array> product = NumericsBackward(
      IntSymmetric{.clip_gradient = true}, ArrayRef(clipped.data(), {1}), ArrayRef(nan.data(), {1}), Arithmetic::kIeee);
  EXPECT_TRUE(std::isnan(product->View<float>()[0]));
  // Selecting copies the gradient and so keeps a subnormal (recorded from aqtp 0.9.0).
  EXPECT_EQ(Backward(IntSymmetric{.clip_gradient = true}, {5}, {8.4e-40f})[0], 8.4e-40f);
}

// The formula, for every number of bits with every option and container, in and beyond the range, at ties and next to
// them.
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
  for (const NoiseKind kind : {NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform, NoiseKind::kFast}) {
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

// Results of AQT 0.9.0 for these values in each container.
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
  // Half-integers in an integer container are truncated.
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
