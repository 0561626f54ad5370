#include "aqt/nn/layers/initializers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"

namespace aqt::nn {
namespace {

// The standard deviation of standard normal numbers truncated to [-2, 2].
constexpr double kTruncatedDeviation = 0.87962566103423978;

// Centres of 2^32 equal parts of [low, high], as f64.
Array Uniform(const Shape& shape, double low, double high, Key key) {
  ArrayBuilder numbers(DType::kF64, shape);
  const absl::Span<double> out = numbers.Mutable<double>();
  const RandomBits bits(key, static_cast<int64_t>(out.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = low + (high - low) * ((bits.Bits32(static_cast<int64_t>(i)) + 0.5) * 0x1p-32);
  }
  return std::move(numbers).Build();
}

// erf(x) = u: Winitzki's formula, which is within 0.4 % of x, followed by four Newton steps. Each squares the error;
// the last step changes only the last digits.
Value ErfInverse(const Value& u) {
  constexpr double kA = 0.147;
  const Value log = ops::Log1p(-(u * u));
  const Value half = log * 0.5 + 2 / (std::numbers::pi * kA);
  Value x = ops::Sign(u) * ops::Sqrt(ops::Sqrt(half * half - log / kA) - half);
  for (int i = 0; i < 4; ++i) {
    x = x - (ops::Erf(x) - u) * ops::Exp(x * x) * (0.5 / std::numbers::inv_sqrtpi);
  }
  return x;
}

double Erf(double x) { return ops::Erf(Value(Array::Scalar(x))).Item<double>(); }

// fan_in and fan_out.
std::array<double, 2> Fans(const Shape& shape, const FanAxes& axes) {
  std::array<double, 3> products = {1, 1, 1};  // of in, out and batch
  double window = 1;
  Axes roles(static_cast<size_t>(shape.rank()), -1);
  const Axes* const given[] = {&axes.in, &axes.out, &axes.batch};
  for (int64_t role = 0; role < 3; ++role) {
    for (const int64_t axis : *given[role]) {
      AQT_CHECK(-shape.rank() <= axis && axis < shape.rank());
      int64_t& known = roles[static_cast<size_t>(axis < 0 ? axis + shape.rank() : axis)];
      AQT_CHECK(known == -1);
      known = role;
    }
  }
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    const int64_t role = roles[static_cast<size_t>(axis)];
    (role < 0 ? window : products[static_cast<size_t>(role)]) *= static_cast<double>(shape[axis]);
  }
  return {std::max(products[0] * window, 1.0), std::max(products[1] * window, 1.0)};
}

}  // namespace

Initializer TruncatedNormal(double standard_deviation, double lower, double upper) {
  AQT_CHECK(standard_deviation >= 0);
  AQT_CHECK(-5 <= lower && lower < upper && upper <= 5);
  return [=](const Aval& aval, Key key) {
    const SuspendTrace suspended;
    const double root = std::numbers::sqrt2;
    const Array u = Uniform(aval.shape, Erf(lower / root), Erf(upper / root), key);
    const Value x = ops::Clamp(lower, ErfInverse(Value(u)) * root, upper);
    return *ops::Cast(x * standard_deviation, aval.dtype).ToArray();
  };
}

Initializer VarianceScaling(double scale, Fan fan, Distribution distribution, FanAxes axes) {
  AQT_CHECK(scale > 0);
  return [=, axes = std::move(axes)](const Aval& aval, Key key) {
    const auto [fan_in, fan_out] = Fans(aval.shape, axes);
    const double size = fan == Fan::kIn ? fan_in : fan == Fan::kOut ? fan_out : (fan_in + fan_out) / 2;
    const double deviation = std::sqrt(scale / size);
    switch (distribution) {
      case Distribution::kNormal: return Normal(deviation)(aval, key);
      case Distribution::kTruncatedNormal: return TruncatedNormal(deviation / kTruncatedDeviation)(aval, key);
      case Distribution::kUniform: break;
    }
    const double limit = std::sqrt(3.0) * deviation;
    return Cast(Uniform(aval.shape, -limit, limit, key), aval.dtype);
  };
}

Initializer GlorotUniform(FanAxes axes) {
  return VarianceScaling(1, Fan::kAverage, Distribution::kUniform, std::move(axes));
}
Initializer GlorotNormal(FanAxes axes) {
  return VarianceScaling(1, Fan::kAverage, Distribution::kTruncatedNormal, std::move(axes));
}
Initializer LecunNormal(FanAxes axes) {
  return VarianceScaling(1, Fan::kIn, Distribution::kTruncatedNormal, std::move(axes));
}
Initializer HeUniform(FanAxes axes) { return VarianceScaling(2, Fan::kIn, Distribution::kUniform, std::move(axes)); }
Initializer HeNormal(FanAxes axes) {
  return VarianceScaling(2, Fan::kIn, Distribution::kTruncatedNormal, std::move(axes));
}

}  // namespace aqt::nn
