// The numbers match the formula, computed from the random bits by other means, and have its distribution.

#include "aqt/nn/layers/initializers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

constexpr double kRoot = std::numbers::sqrt2;
double NormalCdf(double x) { return (1 + std::erf(x / kRoot)) / 2; }

Array Drawn(const Initializer& init, const Shape& shape, DType dtype = DType::kF64) {
  return init({dtype, shape}, MakeKey(3));
}

// sqrt(n) times the largest distance between the numbers' distribution and `cdf` (Kolmogorov and Smirnov). For numbers
// with that distribution it exceeds d with probability 2 exp(-2 d^2): 2.2 with 1.3e-4.
double Distance(const Array& array, const std::function<double(double)>& cdf) {
  std::vector<double> x(array.View<double>().begin(), array.View<double>().end());
  std::sort(x.begin(), x.end());
  double largest = 0;
  const double n = static_cast<double>(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = cdf(x[i]), below = static_cast<double>(i) / n;
    largest = std::max({largest, at - below, below + 1 / n - at});
  }
  return largest * std::sqrt(n);
}
constexpr double kLargestDistance = 2.2;

TEST(InitializersTest, TruncatedNormalInvertsErf) {
  const int64_t n = 4000;
  const RandomBits bits(MakeKey(3), n);
  for (const auto& [lower, upper] : {std::pair<double, double>{-2, 2}, {-5, 5}, {-1, 3}, {4, 5}, {-1e-6, 1e-6}}) {
    const Array x = Drawn(TruncatedNormal(1, lower, upper), {n});
    const double from = std::erf(lower / kRoot), to = std::erf(upper / kRoot);
    for (int64_t i = 0; i < n; ++i) {
      const double u = from + (to - from) * ((bits.Bits32(i) + 0.5) * 0x1p-32);
      // A few roundings of numbers up to 1, and one of x, whose effect on erf is at most that of x * 2^-52.
      EXPECT_NEAR(std::erf(x.View<double>()[i] / kRoot), u, 1e-15) << lower << " " << upper << " " << i;
      EXPECT_GE(x.View<double>()[i], lower);
      EXPECT_LE(x.View<double>()[i], upper);
    }
  }
}

TEST(InitializersTest, TruncatedNormalHasItsDistribution) {
  const auto cdf_between = [](double s, double lower, double upper) {
    return [=](double x) { return (NormalCdf(x / s) - NormalCdf(lower)) / (NormalCdf(upper) - NormalCdf(lower)); };
  };
  const Array x = Drawn(TruncatedNormal(0.5), {200, 200});
  EXPECT_LT(Distance(x, cdf_between(0.5, -2, 2)), kLargestDistance);
  EXPECT_LT(Distance(Drawn(TruncatedNormal(2, 0, 3), {40000}), cdf_between(2, 0, 3)), kLargestDistance);
  // The test detects a bound or a scale that is slightly off.
  EXPECT_GT(Distance(x, cdf_between(0.5, -2.5, 2.5)), kLargestDistance);
  EXPECT_GT(Distance(x, cdf_between(0.55, -2, 2)), kLargestDistance);
}

TEST(InitializersTest, OtherDtypesAreRounded) {
  const Array wide = Drawn(TruncatedNormal(0.1), {50});
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_TRUE(BitEqual(Drawn(TruncatedNormal(0.1), {50}, dtype), Cast(wide, dtype)));
    EXPECT_TRUE(BitEqual(Drawn(GlorotUniform(), {5, 10}, dtype), Cast(Drawn(GlorotUniform(), {5, 10}), dtype)));
  }
  EXPECT_EQ(Drawn(HeNormal(), {0, 3}).num_elements(), 0);
}

// The variance of each initializer for a shape, measured in its distribution.
TEST(InitializersTest, VarianceFollowsFromTheShape) {
  const auto is_uniform = [](const Initializer& init, const Shape& shape, double variance) {
    const double limit = std::sqrt(3 * variance);
    return Distance(Drawn(init, shape), [=](double x) { return (x + limit) / (2 * limit); });
  };
  const auto is_truncated = [](const Initializer& init, const Shape& shape, double variance) {
    // The variance of a standard normal number between -2 and 2: 1 - 2 * 2 phi(2) / (2 Phi(2) - 1).
    const double phi = std::exp(-2.0) / std::sqrt(2 * std::numbers::pi), mass = 2 * NormalCdf(2) - 1;
    const double s = std::sqrt(variance / (1 - 4 * phi / mass));
    return Distance(Drawn(init, shape), [=](double x) { return (NormalCdf(x / s) - NormalCdf(-2)) / mass; });
  };
  // A matrix: fan_in 150, fan_out 50.
  EXPECT_LT(is_uniform(GlorotUniform(), {150, 50}, 1.0 / 100), kLargestDistance);
  EXPECT_LT(is_truncated(GlorotNormal(), {150, 50}, 1.0 / 100), kLargestDistance);
  EXPECT_LT(is_truncated(LecunNormal(), {150, 50}, 1.0 / 150), kLargestDistance);
  EXPECT_LT(is_uniform(HeUniform(), {150, 50}, 2.0 / 150), kLargestDistance);
  EXPECT_LT(is_truncated(HeNormal(), {150, 50}, 2.0 / 150), kLargestDistance);
  EXPECT_LT(Distance(Drawn(VarianceScaling(3, Fan::kOut, Distribution::kNormal), {150, 50}),
                     [](double x) { return NormalCdf(x / std::sqrt(3.0 / 50)); }),
            kLargestDistance);
  // A convolution [3,3,8,16]: fan_in 72, fan_out 144.
  EXPECT_LT(is_uniform(GlorotUniform(), {3, 3, 40, 20}, 1.0 / (9 * 30)), kLargestDistance);
  EXPECT_LT(is_truncated(LecunNormal(), {3, 3, 40, 20}, 1.0 / (9 * 40)), kLargestDistance);
  // Several input axes, and a stack of four: neither is a window.
  EXPECT_LT(is_truncated(LecunNormal({.in = {0, 1}, .out = {2, -1}}), {4, 10, 5, 40}, 1.0 / 40), kLargestDistance);
  EXPECT_LT(is_truncated(HeNormal({.batch = {0}}), {4, 20, 100}, 2.0 / 20), kLargestDistance);
  // A variance that is off by a third is detected: 150 / 50, and 150 / 100.
  EXPECT_GT(is_uniform(GlorotUniform(), {150, 50}, 1.0 / 75), kLargestDistance);
  EXPECT_GT(is_truncated(LecunNormal(), {150, 50}, 1.0 / 100), kLargestDistance);
}

}  // namespace
}  // namespace aqt::nn
