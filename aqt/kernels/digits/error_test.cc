// The error of digits.h relative to f64 sums, compared with that of an f32 loop.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/digits/digits.h"
#include "aqt/kernels/digits/reference.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kColumns = 16;

enum class Data { kNormal, kLogNormal, kOutlierIn512, kOneOutlier, kOutlierMeetsZeros, kOutliersMeetZeros };

struct DataCase {
  std::string name;
  Data data;
  int cases;
};

// On average, the root mean square error over the columns is below that of an f32 loop. (Not in every row: an outlier
// may come so late in the loop that few of its sums are large. Short rows show this most.)
constexpr double kMaxMeanRatio = 1;

// One row of x and `kColumns` columns of q.
struct Sample {
  Sample(Data data, int64_t k, int bits, std::mt19937& rng) : x(k), q(k * kColumns) {
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(rng);
    for (int8_t& v : q) v = static_cast<int8_t>(static_cast<int8_t>(rng() >> 24) >> (8 - bits));
    const auto meets_zeros = [&](int64_t at) {
      for (int64_t n = 0; n < kColumns; ++n) q[n * k + at] = 0;
    };
    const int64_t at = static_cast<int64_t>(rng() % k);
    switch (data) {
      case Data::kNormal: break;
      case Data::kLogNormal:
        for (float& v : x) v = std::copysign(std::exp(1.5f * std::fabs(normal(rng)) * (rng() % 2 == 0 ? 1 : -1)), v);
        break;
      case Data::kOutlierIn512:
        for (float& v : x) v *= rng() % 512 == 0 ? 100.0f : 1.0f;
        break;
      case Data::kOneOutlier: x[at] = 1e4f; break;
      case Data::kOutlierMeetsZeros:
        x[at] = 1e4f;
        meets_zeros(at);
        break;
      case Data::kOutliersMeetZeros:  // one in each group
        for (int64_t i = 0; i < k; i += 100) {
          x[i] = 1e4f;
          meets_zeros(i);
        }
        break;
    }
  }
  std::vector<float> x;
  std::vector<int8_t> q;
};

// The bound in digits.h, slightly relaxed: no layer has a larger A than its group.
double Bound(const DigitFormat& format, const Sample& s, int64_t column) {
  const int8_t* q = s.q.data() + column * format.k;
  constexpr double kEps = 0x1p-24;
  double dropped = 0, terms = 0;
  for (int64_t g = 0; g < format.NumGroups(); ++g) {
    const DigitFormat::Group group = format.GroupAt(g);
    float largest = 0;
    double weights = 0, magnitude = 0;
    for (int64_t k = group.begin; k < group.begin + group.size; ++k) {
      largest = std::max(largest, std::fabs(s.x[k]));
      weights += std::abs(q[k]);
      magnitude += std::fabs(static_cast<double>(s.x[k]) * q[k]);
    }
    dropped += largest / 8355711.0 * weights;
    terms += magnitude;
  }
  const double steps = static_cast<double>(format.NumGroups() * kMaxDigitLayers + 4);
  return dropped + steps * kEps * (terms + dropped) * 1.0001;
}

class DigitsErrorTest : public testing::TestWithParam<DataCase> {};

TEST_P(DigitsErrorTest, IsBelowTheBoundAndThatOfAnF32Loop) {
  const DataCase& c = GetParam();
  std::mt19937 rng(7);
  double worst = 0, sum = 0;
  int64_t layers = 0, groups = 0;
  for (int i = 0; i < c.cases; ++i) {
    const int bits = i % 3 == 0 ? 4 : 8;
    const int64_t k = 256 << rng() % 5;
    const Sample s(c.data, k, bits, rng);
    const DigitFormat format{.bits = bits, .n = kColumns, .k = k};
    AlignedBytes panels(format.PackedBytes()), scratch(DigitScratchBytes(BestTarget(), format, 1, 1));
    PackDigitWeights(format, Operand::Dense(s.q.data(), DType::kS8, kColumns, k), {}, panels.data(), nullptr);
    std::vector<float> sums(kColumns);
    GemmProblem problem = GemmProblem::Dense(1, 1, kColumns, k, DType::kF32, sums.data());
    problem.lhs = Operand::Dense(s.x.data(), DType::kF32, 1, k);
    MultiplyDigits(BestTarget(), problem, {.format = format, .rhs = panels.data(), .scratch = scratch.data()}, nullptr);
    layers += ReferenceDigitLayers(format, s.x);
    groups += format.NumGroups();

    double digits = 0, loop = 0;
    for (int64_t n = 0; n < kColumns; ++n) {
      double exact = 0;
      float f32 = 0;
      for (int64_t j = 0; j < k; ++j) {
        exact += static_cast<double>(s.x[j]) * s.q[n * k + j];
        f32 = static_cast<float>(static_cast<double>(s.x[j]) * s.q[n * k + j] + f32);
      }
      const double error = sums[n] - exact;
      EXPECT_LE(std::fabs(error), Bound(format, s, n));
      digits += error * error;
      loop += (f32 - exact) * (f32 - exact);
    }
    const double ratio = std::sqrt(digits / loop);
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  EXPECT_LE(sum / c.cases, kMaxMeanRatio);
  RecordProperty("worst_ratio", std::to_string(worst));
  RecordProperty("mean_ratio", std::to_string(sum / c.cases));
  RecordProperty("layers_per_group", std::to_string(static_cast<double>(layers) / groups));
}

INSTANTIATE_TEST_SUITE_P(Data, DigitsErrorTest,
                         testing::Values(DataCase{"Normal", Data::kNormal, 250},
                                         DataCase{"LogNormal", Data::kLogNormal, 200},
                                         DataCase{"OutlierIn512", Data::kOutlierIn512, 200},
                                         DataCase{"OneOutlier", Data::kOneOutlier, 150},
                                         DataCase{"OutlierMeetsZeros", Data::kOutlierMeetsZeros, 100},
                                         DataCase{"OutliersMeetZeros", Data::kOutliersMeetZeros, 100}),
                         [](const auto& info) { return info.param.name; });

// Short rows keep the error of an f32 loop whatever the weights are, even if the weights are 0 at all large elements: k
// eps times the sum of the magnitudes, where k is at least the number of roundings of three layers.
TEST(DigitsErrorTest, ShortRowsKeepTheErrorOfAnF32Loop) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 2000; ++i) {
    const int64_t k = 1 + static_cast<int64_t>(rng() % 128);
    std::vector<float> x(static_cast<size_t>(k));
    for (float& v : x) v = std::ldexp(normal(rng), rng() % 2 == 0 ? 0 : -static_cast<int>(rng() % 40));
    std::vector<int8_t> q(static_cast<size_t>(k), 0);
    for (int8_t& v : q) {
      if (rng() % static_cast<uint32_t>(k) == 0) v = static_cast<int8_t>(rng() >> 24);
    }
    double exact = 0, magnitude = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      exact += static_cast<double>(x[j]) * q[j];
      magnitude += std::fabs(static_cast<double>(x[j]) * q[j]);
    }
    const float sum = ReferenceDigitSum({.bits = 8, .n = 1, .k = k}, x, q, {});
    const double steps = static_cast<double>(std::max<int64_t>(k, 3 * kMaxDigitLayers));
    EXPECT_LE(std::fabs(sum - exact), steps * 0x1p-24 * magnitude) << "row " << i;
  }
}

}  // namespace
}  // namespace aqt::kernels
