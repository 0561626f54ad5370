// Properties of one quantized tensor, for random shapes, axes, dtypes and numerics: the error of a round trip is at
// most half a step, and powers of two pass through. With these data, scales and reciprocals are normal numbers.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Half the distance from 1 to the next number.
double UnitRoundoff(DType dtype) { return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

// f16 cannot hold the reciprocal of the bound of wider integers as a normal number.
int MaxBits(DType dtype) { return dtype == DType::kF16 ? 14 : 22; }

struct Sample {
  Array x;
  Axes axes;
};

// Magnitudes from 32 to 256 with few bits, each sign; every dtype holds them, and an eighth of them, exactly.
Sample RandomSample(DType dtype, std::mt19937_64& engine) {
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine); };
  Shape shape;
  Axes axes;
  const int64_t rank = 1 + below(3);
  for (int64_t axis = 0; axis < rank; ++axis) {
    shape.push_back(1 + below(6));
    if (below(2) == 0) axes.push_back(below(2) == 0 ? axis : axis - rank);
  }
  std::vector<float> values(shape.num_elements());
  for (float& v : values) {
    v = static_cast<float>(128 + below(128)) * (below(2) == 0 ? 1 : -1) * (below(2) == 0 ? 1 : 0.25f);
  }
  return {Cast(ArrayRef(values.data(), shape), dtype), axes};
}

std::vector<double> Doubles(const Array& x) {
  const Array f64 = Cast(x, DType::kF64);
  return {f64.View<double>().begin(), f64.View<double>().end()};
}

// The index of element i of `shape` in an array whose shared axes have extent 1.
int64_t SharedIndex(const Shape& shape, const Shape& shared, int64_t i) {
  int64_t index = 0, stride = 1;
  for (int64_t axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shared[axis] != 1) index += i % shape[axis] * stride;
    i /= shape[axis];
    stride *= shared[axis];
  }
  return index;
}

// |dequant(quant(x)) - x| <= step / 2, one step with noise, nothing without rounding; plus the roundings on the way,
// of which each is relative to |x| + step: the quant bound, its reciprocal, the scale, its power of two (2), its
// reciprocal, the scaled value, the noise, floor + 0.5, the clip bound, the product. That is 11; 12 covers their
// products, as (1 + u)^11 < 1 + 12 u for u <= 2^-8. The end of the range is clipped half a step below quant_bound, or
// not at all.
TEST(Quantize, RoundTripIsWithinHalfAStep) {
  std::mt19937_64 engine(1);
  for (const DType dtype : kDTypes) {
    const double u = UnitRoundoff(dtype);
    for (int bits = 1; bits <= MaxBits(dtype); ++bits) {
      for (int switches = 0; switches < 64; ++switches) {
        const auto on = [&](int bit) { return (switches >> bit & 1) != 0; };
        IntSymmetric n{.bits = bits, .preserve_zero = on(0), .preserve_max_val = on(1), .clip = on(2), .round = on(3)};
        if (n.preserve_zero && bits == 1) continue;  // its one value is 0
        if (on(4)) n.noise = Noise{on(2) ? NoiseKind::kJaxUniform : NoiseKind::kRandomCenteredUniform};
        n.dtype = bits == 2 ? DType::kS2 : bits <= 4 ? DType::kS4 : DType::kS8;
        if (bits > 8 || !n.preserve_zero || !n.clip || !n.round) n.dtype = std::nullopt;
        const Quantizer quantizer{.numerics = n, .calibration = AbsMax{.po2_scale = on(5)}};
        const Sample sample = RandomSample(dtype, engine);
        const Semantics semantics{.arithmetic = engine() % 2 == 0 ? Arithmetic::kXlaCompatible : Arithmetic::kIeee};
        const absl::StatusOr<QTensor> q =
            Quantize(quantizer, sample.x, sample.axes, {.key = MakeKey(engine())}, semantics);
        ASSERT_TRUE(q.ok()) << q.status();
        const std::vector<double> want = Doubles(sample.x), got = Doubles(*q->Dequantize());
        const std::vector<double> step = Doubles(q->scale[0]);
        const double steps = (n.round ? 0.5 : 0) + (n.noise.has_value() ? 0.5 : 0);
        for (size_t i = 0; i < want.size(); ++i) {
          const double s = step[SharedIndex(sample.x.shape(), q->scale[0].shape(), static_cast<int64_t>(i))];
          ASSERT_LE(std::fabs(got[i] - want[i]), steps * s + 12 * u * (std::fabs(want[i]) + s))
              << ToString(dtype) << " " << Describe(n) << " switches " << switches << " value " << want[i] << " step "
              << s;
        }
      }
    }
  }
}

std::vector<Numerics> AllNumerics(DType dtype) {
  std::vector<Numerics> all;
  for (int bits = 1; bits <= MaxBits(dtype); ++bits) {
    for (const bool preserve_zero : {false, true}) {
      for (const bool preserve_max_val : {false, true}) {
        if (preserve_zero && preserve_max_val && bits == 1) continue;  // the bound is 0
        all.push_back(IntSymmetric{
            .bits = bits, .preserve_zero = preserve_zero, .preserve_max_val = preserve_max_val, .dtype = std::nullopt});
      }
    }
  }
  for (const auto& [container, bits] : {std::pair{DType::kS2, 2}, {DType::kS4, 4}, {DType::kS8, 8}}) {
    all.push_back(IntSymmetric{.bits = bits, .dtype = container});
  }
  all.push_back(Fp8{});
  // The scale of e5m2 is below the normal numbers of f16.
  if (dtype != DType::kF16) all.push_back(Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2});
  // clang-format off
  for (const FpFormat& format :
       {FpFormat{.nexp = 5, .nmant = 0}, {.nexp = 4, .nmant = 1}, {.nexp = 4, .nmant = 0}, {.nexp = 3, .nmant = 2},
        {.nexp = 2, .nmant = 3}, {.nexp = 1, .nmant = 4}, {.nexp = 0, .nmant = 5},
        {.nexp = 3, .nmant = 1}, {.nexp = 2, .nmant = 2}, {.nexp = 1, .nmant = 3}, {.nexp = 0, .nmant = 4},
        {.nexp = 3, .nmant = 0, .has_subnormals = false}, {.nexp = 3, .nmant = 0},
        {.nexp = 2, .nmant = 1, .has_subnormals = false}, {.nexp = 2, .nmant = 1},
        {.nexp = 1, .nmant = 2, .has_subnormals = false}, {.nexp = 1, .nmant = 2},
        {.nexp = 0, .nmant = 3, .has_subnormals = false}, {.nexp = 0, .nmant = 3},
        {.nexp = 1, .nmant = 0, .has_subnormals = false}, {.nexp = 3, .nmant = 0, .radix = 4}}) {
    // clang-format on
    if (dtype == DType::kF16 && format.nexp > 3) continue;  // the same
    all.push_back(Fp{.format = format});
    all.push_back(Fp{.format = format, .stochastic_rounding = true});
  }
  return all;
}

Array Scaled(const Array& x, float factor) {
  const Array f32 = Cast(x, DType::kF32);
  std::vector<float> values(f32.View<float>().begin(), f32.View<float>().end());
  for (float& v : values) v *= factor;
  return Cast(ArrayRef(values.data(), x.shape()), x.dtype());
}

// Multiplying a tensor by a power of two multiplies its scales and its dequantized values by it and does not change the
// qvalues, to the last bit, because no step adds a number of another size. (po2_scale is an exception: the rounded
// logarithm that finds the power depends on the power.)
TEST(Quantize, PowersOfTwoPassThrough) {
  std::mt19937_64 engine(2);
  for (const DType dtype : kDTypes) {
    for (const Numerics& numerics : AllNumerics(dtype)) {
      for (const Calibration& calibration :
           {Calibration(AbsMax{}), Calibration(AbsMax{.clipping_scale = 0.7}), Calibration(AbsMean{.p = 1}),
            Calibration(SnrSearch{.candidates = {1.0, 0.9, 0.75, 0.5}})}) {
        const Quantizer quantizer{.numerics = numerics, .calibration = calibration};
        const Sample sample = RandomSample(dtype, engine);
        const Context context{.key = MakeKey(engine())};
        // Upwards the sums of AbsMean would overflow in f16.
        const int exponent = static_cast<int>(engine() % 7) - 3;
        const float factor = std::exp2(static_cast<float>(dtype == DType::kF16 ? -std::abs(exponent) : exponent));
        const absl::StatusOr<QTensor> small = Quantize(quantizer, sample.x, sample.axes, context),
                                      large = Quantize(quantizer, Scaled(sample.x, factor), sample.axes, context);
        ASSERT_TRUE(small.ok() && large.ok()) << small.status() << large.status();
        const std::string what = absl::StrCat(ToString(dtype), " ", Describe(numerics), " calibration ",
                                              calibration.index(), " times ", factor);
        ASSERT_TRUE(BitEqual(*large->qvalue, *small->qvalue)) << what;
        ASSERT_TRUE(BitEqual(large->scale[0], Scaled(small->scale[0], factor))) << what;
        ASSERT_TRUE(BitEqual(*large->Dequantize(), Scaled(*small->Dequantize(), factor))) << what;
      }
    }
  }
}

}  // namespace
}  // namespace aqt
