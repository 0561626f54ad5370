#include "aqt/quant/tensor/quantizer.h"

#include <cmath>
#include <cstdint>
#include <limits>
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
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer_testing.h"

namespace aqt {
namespace {

// AQT's public example: ten points from -10 to 10, preserve_max_val, no container.
TEST(Quantize, PublicExample) {
  std::vector<float> points(10);
  for (int i = 0; i < 10; ++i) points[i] = static_cast<float>(-10 + 20.0 * i / 9);
  const ArrayRef x(points.data(), {10});
  struct Case {
    int bits;
    float scale;
    std::vector<float> q;
  };
  const Case cases[] = {{2, 10.0f, {-1, -1, -1, 0, 0, 0, 0, 1, 1, 1}},
                        {3, 3.3333333f, {-3, -2, -2, -1, 0, 0, 1, 2, 2, 3}},
                        {4, 1.4285715f, {-7, -5, -4, -2, -1, 1, 2, 4, 5, 7}},
                        {8, 0.07874016f, {-127, -99, -71, -42, -14, 14, 42, 71, 99, 127}}};
  for (const Case& c : cases) {
    const Quantizer quantizer{
        .numerics =
            IntSymmetric{.bits = c.bits, .preserve_max_val = true, .clip_gradient = true, .dtype = std::nullopt},
        .calibration = AbsMax{}};
    const absl::StatusOr<QTensor> qt = Quantize(quantizer, x, {-1});
    ASSERT_TRUE(qt.ok()) << qt.status();
    ASSERT_EQ(qt->scale.size(), 1u);
    EXPECT_EQ(qt->scale[0].shape(), (Shape{1}));
    EXPECT_EQ(qt->scale[0].View<float>()[0], c.scale);
    EXPECT_EQ(qt->qvalue->dtype(), DType::kF32);
    EXPECT_EQ(Floats(*qt->qvalue), c.q);
    const absl::StatusOr<Array> dequantized = qt->Dequantize();
    ASSERT_TRUE(dequantized.ok());
    for (int i = 0; i < 10; ++i) EXPECT_EQ(dequantized->View<float>()[i], c.q[i] * c.scale);
  }
}

TEST(Quantize, XlaMultipliesManyScalesAndDividesOne) {
  // Found by search: the two differ in the last bit.
  const float bound = 1.1f;
  const std::vector<float> rows{bound, bound};
  const float quotient = bound / 127.5f, product = bound * (1.0f / 127.5f);
  ASSERT_NE(quotient, product);
  const ArrayRef two(rows.data(), {2, 1}), one(rows.data(), {1, 2});
  const Quantizer quantizer = AbsMaxInt(8);
  EXPECT_EQ(Quantize(quantizer, two, {1})->scale[0].View<float>()[0], product);
  EXPECT_EQ(Quantize(quantizer, one, {1})->scale[0].View<float>()[0], quotient);
  EXPECT_EQ(Quantize(quantizer, two, {1}, {}, {.arithmetic = Arithmetic::kIeee})->scale[0].View<float>()[0], quotient);
}

TEST(Quantize, ZerosSubnormalsNaNAndInf) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x{0, 0, 0x1p-140f, -0x1p-130f, nan, 1, inf, 1, 0x1p-126f, 0};
  const absl::StatusOr<QTensor> qt = Quantize(AbsMaxInt(8), ArrayRef(x.data(), {5, 2}), {1});
  ASSERT_TRUE(qt.ok());
  const std::vector<float> scale = Floats(qt->scale[0]);
  EXPECT_EQ(scale[0], 1.0f * (1.0f / 127.5f));  // all zero: bound 1
  EXPECT_EQ(scale[1], scale[0]);                // subnormals are zeros
  EXPECT_TRUE(std::isnan(scale[2]));
  EXPECT_EQ(scale[3], inf);
  EXPECT_EQ(scale[4], 0);  // a scale that would be subnormal
  EXPECT_EQ(Floats(*qt->qvalue), std::vector<float>(10, 0));
}

TEST(Quantize, SharedAxes) {
  const Array x = Array::FromSpan<float>(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2});
  Quantizer quantizer = AbsMaxInt(8);
  EXPECT_EQ(Quantize(quantizer, x, {0, 2})->scale[0].shape(), (Shape{1, 2, 1}));
  EXPECT_EQ(Quantize(quantizer, x, {})->scale[0].shape(), (Shape{2, 2, 2}));  // one scale per element
  quantizer.calib_shared_axes.axes = {-1};
  EXPECT_EQ(Quantize(quantizer, x, {0})->scale[0].shape(), (Shape{2, 2, 1}));
  quantizer.calib_shared_axes = {.per_tensor = true};
  EXPECT_EQ(Quantize(quantizer, x, {0})->scale[0].shape(), (Shape{1, 1, 1}));
  const absl::Status status = Quantize(AbsMaxInt(8), x, {3}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("f32[2,2,2]"), absl::string_view::npos) << status;
}

TEST(Quantize, ClippingScaleAndPowersOfTwo) {
  const Array x = Array::Of<float>({4, -2, 1, 0.5f}, {2, 2});
  Quantizer quantizer = AbsMaxInt(8);
  const std::vector<float> plain = Floats(Quantize(quantizer, x, {1})->scale[0]);
  quantizer.calibration = AbsMax{.clipping_scale = 0.5};
  const std::vector<float> half = Floats(Quantize(quantizer, x, {1})->scale[0]);
  quantizer.calibration = AbsMax{.clipping_scale = 0.0};  // means not set
  EXPECT_EQ(Floats(Quantize(quantizer, x, {1})->scale[0]), plain);
  quantizer.calibration = AbsMax{.po2_scale = true};
  const std::vector<float> po2 = Floats(Quantize(quantizer, x, {1})->scale[0]);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(half[i], plain[i] / 2);
    EXPECT_EQ(po2[i], std::exp2(std::ceil(std::log2(plain[i]))));
  }
}

TEST(Quantize, AbsMeanLeavesZerosOutOfTheCount) {
  const Array x = Array::Of<float>({1, -3, 0, 0, 0, 0, 0, 0}, {2, 4});
  Quantizer quantizer = AbsMaxInt(8);
  quantizer.calibration = AbsMean{.p = 1, .clipping_scale = 2};
  const float inv = 1.0f / 127.5f;
  EXPECT_EQ(Floats(Quantize(quantizer, x, {1})->scale[0]), (std::vector<float>{4 * inv, 1 * inv}));  // all zero: 1
  quantizer.calibration = AbsMean{.p = 2, .clipping_scale = 1};
  EXPECT_NEAR(Quantize(quantizer, x, {1})->scale[0].View<float>()[0], std::sqrt(5.0f) * inv, 1e-8f);
}

// The bound that Percentile finds for one group, from its scale in f32 numerics with quant_bound 127.5.
float PercentileBound(const std::vector<float>& x, double percentile) {
  Quantizer quantizer = AbsMaxInt(8);
  quantizer.calibration = Percentile{.percentile = percentile};
  const ArrayRef row(x.data(), {1, static_cast<int64_t>(x.size())});
  const absl::StatusOr<QTensor> qt = Quantize(quantizer, row, {1});
  EXPECT_TRUE(qt.ok()) << qt.status();
  // Distinct small integers have distinct scales.
  return std::round(Floats(qt->scale[0])[0] * 127.5f);
}

// Rank ceil(percentile / 100 * n) in ascending order, with the percentile taken as its decimals state.
TEST(Percentile, TakesTheNearestRank) {
  std::vector<float> x(1000);
  for (int i = 0; i < 1000; ++i) x[i] = static_cast<float>((i * 37 % 1000 + 1) * (i % 2 == 0 ? 1 : -1));  // 1 .. 1000
  EXPECT_GT(99.9 / 100 * 1000, 999);  // a ceiling would be 1000
  const std::pair<double, float> cases[] = {{99.9, 999}, {100, 1000}, {99.95, 1000}, {0.1, 1},  {0.10001, 2},
                                            {0.3, 3},    {50, 500},   {50.01, 501},  {57, 570}, {1e-9, 1}};
  for (const auto& [percentile, bound] : cases) EXPECT_EQ(PercentileBound(x, percentile), bound) << percentile;
  EXPECT_EQ(PercentileBound({3, 1, 2}, 33.333333), 1);
  EXPECT_EQ(PercentileBound({3, 1, 2}, 33.333334), 2);
  EXPECT_EQ(PercentileBound({7}, 1), 7);
  EXPECT_EQ(PercentileBound({2, -5, 2, 2}, 75), 2);        // equal magnitudes
  EXPECT_EQ(PercentileBound({0, 0, 0, 9}, 75), 1);         // 0 becomes 1
  EXPECT_EQ(PercentileBound({1e-40f, 1e-40f, 9}, 60), 1);  // subnormals are 0
}

// For each dtype and choice of axes, with special values, dense and transposed; the groups agree with AbsMax of the
// values not above the bound.
TEST(Percentile, HundredIsAbsMaxBitForBit) {
  const float specials[] = {0, -0.0f, 1e-40f, 6e-8f, 65504, INFINITY, -NAN};
  const RandomBits bits(MakeKey(7), 1000);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<float> values(2 * 3 * 5);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t word = bits.Bits32(trial * 20 + static_cast<int64_t>(i) % 20);
      values[i] = word % 6 == 0 && trial % 2 == 0 ? specials[word / 6 % (trial % 4 == 0 ? 7 : 5)]
                                                  : (UniformF32(word * 2654435761u + i) - 0.5f) * 8;
    }
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Array x = Cast(ArrayRef(values.data(), {2, 3, 5}), dtype);
      const ArrayRef transposed(dtype, {5, 2, 3}, Strides{1, 15, 5}, x.data());
      for (const Axes& axes : {Axes{}, Axes{0}, Axes{1}, Axes{2}, Axes{0, 2}, Axes{0, 1, 2}}) {
        for (const ArrayRef& view : {x.ref(), transposed}) {
          Quantizer quantizer = AbsMaxInt(8);
          quantizer.calibration = AbsMax{.clipping_scale = 0.7};
          const QTensor want = *Calibrate(quantizer, view, axes);
          quantizer.calibration = Percentile{.percentile = 100, .clipping_scale = 0.7};
          const absl::StatusOr<QTensor> got = Calibrate(quantizer, view, axes);
          ASSERT_TRUE(got.ok()) << got.status();
          ASSERT_TRUE(BitEqual(got->scale[0], want.scale[0])) << trial << ToString(dtype) << axes.size();
        }
      }
    }
  }
  const Array empty = Array::Zeros(DType::kF32, {2, 0});
  const Quantizer quantizer{.numerics = IntSymmetric{}, .calibration = Percentile{}};
  EXPECT_TRUE(BitEqual(Calibrate(quantizer, empty, {1})->scale[0], Calibrate(AbsMaxInt(8), empty, {1})->scale[0]));
  EXPECT_EQ(Calibrate(quantizer, empty, {0})->scale[0].shape(), (Shape{1, 0}));
}

// An outlier determines AbsMax but not the percentile.
TEST(Percentile, ClipsAnOutlier) {
  std::vector<float> x(1024, 0.5f);
  x[77] = -100;
  Quantizer quantizer = AbsMaxInt(8);
  quantizer.calibration = Percentile{};
  const QTensor qt = *Quantize(quantizer, ArrayRef(x.data(), {1, 1024}), {1});
  EXPECT_EQ(Floats(qt.scale[0])[0], 0.5f / 127.5f);
  EXPECT_EQ(Floats(*qt.qvalue)[77], -127);
  EXPECT_EQ(Floats(*qt.qvalue)[0], 127);
}

TEST(Quantize, NegativeClippingScalesAndExponents) {
  const Array x = Array::Of<float>({4, -2, 1, 0.5f}, {2, 2});
  Quantizer quantizer = AbsMaxInt(8);
  quantizer.calibration = AbsMax{.clipping_scale = 0.5};
  const QTensor plus = *Quantize(quantizer, x, {1});
  quantizer.calibration = AbsMax{.clipping_scale = -0.5};
  const QTensor minus = *Quantize(quantizer, x, {1});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Floats(minus.scale[0])[i], -Floats(plus.scale[0])[i]);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Floats(*minus.qvalue)[i], -Floats(*plus.qvalue)[i]);
  EXPECT_EQ(Floats(*minus.Dequantize()), Floats(*plus.Dequantize()));
  // The harmonic mean: 2 / (1/4 + 1/2).
  quantizer.calibration = AbsMean{.p = -1};
  EXPECT_NEAR(Floats(Quantize(quantizer, x, {1})->scale[0])[0], 8.0f / 3 / 127.5f, 1e-8f);
}

// Recorded from AQT 0.9.0 on CPU.
TEST(Constant, DividesAnArrayInItsOwnDType) {
  const auto scale = [](DType x, const Array& bound, std::optional<DType> scale_dtype) {
    Quantizer quantizer = AbsMaxInt(8, std::nullopt);
    quantizer.scale_dtype = scale_dtype;
    quantizer.calibration = Constant{.bound = ConstantArray{bound}};
    const absl::StatusOr<QTensor> qt = Quantize(quantizer, Cast(Array::Of<float>({1, 2, 3, 4}, {2, 2}), x), {1});
    EXPECT_TRUE(qt.ok()) << qt.status();
    return Floats(qt->scale[0]);
  };
  using Row = std::vector<float>;
  const Array two = Array::Of<float>({5, 6.1f}, {2, 1}), one = Array::Of<float>({5.7f}, {1, 1});
  EXPECT_EQ(scale(DType::kBF16, two, std::nullopt), (Row{0x1.42p-5f, 0x1.88p-5f}));
  EXPECT_EQ(scale(DType::kBF16, two, DType::kF32), (Row{0x1.414142p-5f, 0x1.87ee56p-5f}));
  EXPECT_EQ(scale(DType::kBF16, one, DType::kF32), (Row{0x1.6e3b08p-5f}));
  EXPECT_EQ(scale(DType::kBF16, Array::Scalar(5.7f), DType::kF32), (Row{0x1.6e3b08p-5f, 0x1.6e3b08p-5f}));
  EXPECT_EQ(scale(DType::kF32, Cast(two, DType::kBF16), std::nullopt), (Row{0x1.42p-5f, 0x1.88p-5f}));
  EXPECT_EQ(scale(DType::kF32, Cast(two, DType::kF16), std::nullopt), (Row{0x1.414p-5f, 0x1.88p-5f}));
}

TEST(Constant, ArraysKeepTheirShape) {
  const Array x = Cast(Array::Of<float>({1, 2, 3, 4}, {2, 2}), DType::kBF16);
  Quantizer quantizer = AbsMaxInt(8, std::nullopt);
  quantizer.scale_dtype = DType::kF32;
  // 0.3 as bf16 would be 0.30078125.
  quantizer.calibration = Constant{.bound = ConstantArray{Array::Of<float>({5, 6}, {1, 2})},
                                   .bias = ConstantArray{Array::Of<float>({0.3f, 0.1f}, {1, 2})}};
  const QTensor qt = *Quantize(quantizer, x, {1});
  EXPECT_EQ(qt.scale[0].shape(), (Shape{1, 2}));
  EXPECT_EQ(qt.bias[0].aval(), (Aval{DType::kF32, {1, 2}}));
  EXPECT_EQ(Floats(qt.bias[0]), (std::vector<float>{0.3f, 0.1f}));
  EXPECT_EQ(qt.qvalue->dtype(), DType::kF32);
  // Numbers and arrays of rank 0: in the dtype of x, over its whole shape.
  for (const ConstantValue& number : {ConstantValue(0.3), ConstantValue(ConstantArray{Array::Scalar(0.3f)})}) {
    quantizer.calibration = Constant{.bound = number, .bias = number};
    const QTensor full = *Quantize(quantizer, x, {1});
    EXPECT_EQ(full.scale[0].aval(), (Aval{DType::kF32, {2, 1}}));
    EXPECT_EQ(full.bias[0].aval(), (Aval{DType::kBF16, {2, 2}}));
    EXPECT_EQ(Floats(full.bias[0]), std::vector<float>(4, 0.30078125f));
  }
}

TEST(Quantize, ScaleDTypeWidensTheScaledValue) {
  const Array x = Cast(Array::Of<float>({1.5f, -0.75f}, {1, 2}), DType::kBF16);
  Quantizer quantizer = AbsMaxInt(12, std::nullopt);
  quantizer.scale_dtype = DType::kF32;
  const absl::StatusOr<QTensor> qt = Quantize(quantizer, x, {1});
  ASSERT_TRUE(qt.ok());
  EXPECT_EQ(qt->scale[0].dtype(), DType::kF32);
  EXPECT_EQ(qt->qvalue->dtype(), DType::kF32);
  EXPECT_EQ(qt->dequant_dtype, DType::kBF16);
  EXPECT_EQ(qt->Dequantize()->dtype(), DType::kBF16);
  quantizer.scale_dtype = DType::kS8;
  EXPECT_EQ(Quantize(quantizer, x, {1}).status().message(),
            "Quantizer: scale_dtype s8, expected f32, bf16, f16 or none");
}

// Sub-channel quantization: [4,4,4], axis 2 in tiles of 2, shared over axes 0 and 2.
TEST(Quantize, Tiled) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = static_cast<float>((i * 37) % 64 - 31);
  const ArrayRef x(values.data(), {4, 4, 4});
  const std::vector<AxisTiling> tilings{{.axis = 2, .tile_size = 2}};
  const absl::StatusOr<TilingState> tiling = TilingState::Make(x.shape, tilings);
  ASSERT_TRUE(tiling.ok());
  const absl::StatusOr<QTensor> qt = Quantize(AbsMaxInt(8), x, {0, 2}, {}, {}, &*tiling);
  ASSERT_TRUE(qt.ok()) << qt.status();
  EXPECT_EQ(qt->qvalue->shape(), (Shape{4, 4, 2, 2}));
  EXPECT_EQ(qt->scale[0].shape(), (Shape{1, 4, 2, 1}));
  const absl::StatusOr<Array> dequantized = qt->Dequantize();
  ASSERT_TRUE(dequantized.ok());
  ASSERT_EQ(dequantized->shape(), x.shape);
  for (int i = 0; i < 64; ++i) {
    const float step = qt->scale[0].View<float>()[i / 4 % 4 * 2 + i % 4 / 2];
    EXPECT_LE(std::fabs(dequantized->View<float>()[i] - values[i]), step * 0.5001f) << i;
  }
}

// The error is at most half a step for any shape, dtype and number of bits, except at the clipped end: the largest
// value is scaled to quant_bound and clipped half a step below.
TEST(Quantize, RoundTripIsWithinHalfAStep) {
  const RandomBits bits(MakeKey(5), 6 * 35);
  for (const int n_bits : {2, 3, 4, 5, 8}) {
    std::vector<float> values(6 * 35);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (UniformF32(bits.Bits32(i)) - 0.5f) * 1000;
    const ArrayRef x(values.data(), {6, 35});
    const absl::StatusOr<QTensor> qt = Quantize(AbsMaxInt(n_bits), x, {1});
    ASSERT_TRUE(qt.ok());
    const absl::StatusOr<Array> back = qt->Dequantize();
    for (int64_t i = 0; i < back->num_elements(); ++i) {
      const float step = qt->scale[0].View<float>()[i / 35];
      EXPECT_LE(std::fabs(back->View<float>()[i] - values[i]), step * 0.50001f);
    }
    // Scaling by a power of two gives the same qvalues.
    std::vector<float> scaled = values;
    for (float& v : scaled) v *= 0x1p20f;
    const absl::StatusOr<QTensor> large = Quantize(AbsMaxInt(n_bits), ArrayRef(scaled.data(), {6, 35}), {1});
    EXPECT_TRUE(BitEqual(*large->qvalue, *qt->qvalue));
  }
}

TEST(CalculateQvalue, RefusesWhatHasOne) {
  const Array x = Array::Of<float>({1, 2}, {2});
  const absl::Status status = CalculateQvalue(AbsMaxInt(8), x, *Quantize(AbsMaxInt(8), x, {0})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "CalculateQvalue: the tensor already has a qvalue");
}

TEST(Quantize, ConstantArraysThatDoNotFit) {
  const Array x = Array::Of<float>({1, 2, 3, 4}, {2, 2});
  Quantizer quantizer = AbsMaxInt(8);
  quantizer.calibration = Constant{.bound = ConstantArray{Array::Of<float>({1, 2, 3}, {1, 3})}};
  absl::Status status = Quantize(quantizer, x, {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "Constant: bound is f32[1,3], expected f32, bf16 or f16 that broadcasts to [2,2]");
  quantizer.calibration = Constant{.bias = ConstantArray{Array::Of<int8_t>({1}, {1, 1})}};
  status = Quantize(quantizer, x, {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "Constant: bias is s8[1,1], expected f32, bf16 or f16 that broadcasts to [2,2]");
}

TEST(Validate, Calibrations) {
  struct Case {
    Quantizer quantizer;
    std::string message;
  };
  const Case cases[] = {
      {{.numerics = IntSymmetric{}}, "Quantizer: int8:s8 needs a calibration, such as AbsMax"},
      {{.numerics = IntSymmetric{}, .calibration = Constant{.bound = 1e300}},
       "Constant: bound = 1e+300, expected a number > 0 that f32 holds"},
      {{.numerics = IntSymmetric{}, .calibration = AbsMax{.clipping_scale = HUGE_VAL}},
       "AbsMax: clipping_scale = inf, expected a number that f32 holds"},
      {{.numerics = IntSymmetric{}, .calibration = Constant{.bound = -1.0}},
       "Constant: bound = -1, expected a number > 0 that f32 holds"},
      {{.numerics = IntSymmetric{}, .calibration = AbsMax{.clipping_scale = std::nan("")}},
       "AbsMax: clipping_scale = nan, expected a number that f32 holds"},
      {{.numerics = IntSymmetric{}, .calibration = Percentile{.percentile = 0}},
       "Percentile: percentile = 0, expected a number above 0 and at most 100, in percent; such as 99.9, or 100 for "
       "the "
       "largest magnitude"},
      {{.numerics = IntSymmetric{}, .calibration = Percentile{.percentile = std::nan("")}},
       "Percentile: percentile = nan, expected a number above 0 and at most 100, in percent; such as 99.9, or 100 for "
       "the largest magnitude"},
      {{.numerics = IntSymmetric{}, .calibration = Percentile{.percentile = 100.001}},
       "Percentile: percentile = 100.001, expected a number above 0 and at most 100, in percent; such as 99.9, or 100 "
       "for the largest magnitude"},
      {{.numerics = IntSymmetric{}, .calibration = Percentile{.clipping_scale = std::nan("")}},
       "Percentile: clipping_scale = nan, expected a number that f32 holds"},
      {{.numerics = IntSymmetric{}, .calibration = AbsMean{.p = 0}},
       "AbsMean: p = 0, clipping_scale = 1, expected a finite p other than 0 and a number that f32 holds"},
      {{.numerics = IntSymmetric{}, .calibration = SnrSearch{.candidates = {std::nan("")}}},
       "SnrSearch: candidate nan, expected a number"},
      {{.calib_shared_axes = {.per_tensor = true, .axes = {0}}},
       "calib_shared_axes: per_tensor and axes exclude each other"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Validate(c.quantizer).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(Validate(c.quantizer).message()), c.message);
  }
  EXPECT_TRUE(Validate(Quantizer{}).ok());
}

TEST(QuantizeGradient, MaskOfAHalvedAbsMax) {
  const Array x = Array::Of<float>({1, 0.4f, -0.6f, 0.5f}, {1, 4});
  Quantizer quantizer{.numerics = IntSymmetric{.clip_gradient = true}, .calibration = AbsMax{.clipping_scale = 0.5}};
  const absl::StatusOr<QTensor> qt = Quantize(quantizer, x, {1});
  ASSERT_TRUE(qt.ok());
  const absl::StatusOr<Array> g = QuantizeGradient(quantizer, x, *qt, Array::Of<float>({1, 2, 3, 4}, {1, 4}));
  ASSERT_TRUE(g.ok());
  // 0.5 is scaled to 127.5, above the clip bound 127.
  EXPECT_EQ(Floats(*g), (std::vector<float>{0, 2, 0, 0}));
}

// 889 / 7 is 127, the clip bound, and 889 * R(1 / 7) is above it.
TEST(QuantizeGradient, ScalesAsTheQuantizationDid) {
  const Array x = Array::Of<float>({889, -889, 890, 3}, {1, 4}), g = Array::Of<float>({1, 2, 3, 4}, {1, 4});
  const Quantizer quantizer{.numerics = IntSymmetric{.preserve_max_val = true, .clip_gradient = true},
                            .calibration = Constant{.bound = 889.0}};
  const auto gradient = [&](const Semantics& semantics) -> absl::StatusOr<Array> {
    AQT_ASSIGN_OR_RETURN(const QTensor qtensor, Quantize(quantizer, x, {1}, {}, semantics));
    EXPECT_EQ(Floats(qtensor.scale[0]), (std::vector<float>{7}));
    return QuantizeGradient(quantizer, x, qtensor, g, semantics);
  };
  for (const Arithmetic arithmetic : {Arithmetic::kXlaCompatible, Arithmetic::kIeee}) {
    const absl::StatusOr<Array> inverse = gradient({.arithmetic = arithmetic});
    ASSERT_TRUE(inverse.ok()) << inverse.status();
    EXPECT_EQ(Floats(*inverse), (std::vector<float>{0, 0, 0, 4}));
  }
  const absl::StatusOr<Array> quotient =
      gradient({.arithmetic = Arithmetic::kIeee, .compat = {.divide_by_scale = true}});
  ASSERT_TRUE(quotient.ok()) << quotient.status();
  EXPECT_EQ(Floats(*quotient), (std::vector<float>{1, 2, 0, 4}));
  const absl::Status at_bound = gradient({.compat = {.clip_gradient_at_bound = true}}).status();
  EXPECT_EQ(at_bound.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      at_bound.message(),
      "QuantizeGradient: Compat::clip_gradient_at_bound needs the bound of the calibration, which a QTensor does not "
      "have; leave it out, or clip_gradient, or quantize in a contraction");
}

// The sum of squares is 42.3125, and 42.3125 / 180 rounds to another number than 42.3125 * R(1 / 180). qwix 0.1.8 with
// jax 0.10.2, method "rms,2.0", finds the scale 0x1.f26c38p-8.
TEST(Quantize, TheMeanOfSquaresIsMultipliedByTheReciprocalAsInXla) {
  std::vector<float> values(180, 0.25f);
  values[0] = 3, values[5] = -2.5, values[6] = 4;
  const Array x = Array::FromSpan(absl::MakeConstSpan(values), {60, 3});
  const Quantizer quantizer{.numerics = IntSymmetric{}, .calibration = AbsMean{.p = 2, .clipping_scale = 2}};
  const auto scale = [&](Arithmetic arithmetic) {
    return Floats(Quantize(quantizer, x, {0, 1}, {}, {.arithmetic = arithmetic, .compat = Compat::Qwix()})->scale[0]);
  };
  EXPECT_EQ(scale(Arithmetic::kXlaCompatible), std::vector<float>{0x1.f26c38p-8f});
  EXPECT_EQ(scale(Arithmetic::kIeee), std::vector<float>{2 * std::sqrt(42.3125f / 180) / 127.5f});
}

TEST(CeilToPo2, RoundsUpInTheDTypeOfTheScales) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Array scales = Array::Of<float>({3, 0.75f, 1, 0, kInf, 5}, {2, 3});
  const std::vector<float> want = {4, 1, 1, 0, kInf, 8};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const absl::StatusOr<Array> y = CeilToPo2(Cast(scales, dtype));
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_EQ(y->aval(), (Aval{dtype, {2, 3}}));
    EXPECT_EQ(Floats(*y), want) << ToString(dtype);
  }
  EXPECT_TRUE(std::isnan(Floats(*CeilToPo2(Array::Scalar(std::numeric_limits<float>::quiet_NaN())))[0]));
  EXPECT_EQ(CeilToPo2(Array::Zeros(DType::kF32, {0, 2}))->shape(), (Shape{0, 2}));
}

// A transposed view gives the values at its own indices; the product with 1 / ln 2 doubles 2^-13 (arith_test.cc has the
// list).
TEST(CeilToPo2, StridesAndRefusal) {
  const float doubled = 0x1p-13f;
  const Array x = Array::Of<float>({1, 3, doubled, 2, 5, 9}, {2, 3});
  const absl::StatusOr<Array> y = CeilToPo2(ArrayRef(DType::kF32, {3, 2}, Strides{1, 3}, x.data()));
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_EQ(Floats(*y), (std::vector<float>{1, 2, 4, 8, 2 * doubled, 16}));
  EXPECT_EQ(CeilToPo2(Array::Of<int32_t>({4}, {1})).status().message(),
            "CeilToPo2: scales have dtype s32, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace aqt
