#include "serving/convert/weight_loss.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "aqt/quant/weights/microscaled.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/formats/weight_codec.h"
#include "serving/formats/weight_formats.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Scheme Make(WeightStrategy strategy, int num_bits, bool symmetric = true, bool quantized_activations = false) {
  Scheme scheme;
  scheme.weights.strategy = strategy;
  scheme.weights.num_bits = num_bits;
  scheme.weights.symmetric = symmetric;
  if (strategy == WeightStrategy::kGroup) scheme.weights.group_size = 32;
  scheme.format = DefaultFormat(scheme.weights, quantized_activations);
  return scheme;
}
Scheme Floats(WeightStrategy strategy) {
  Scheme scheme;
  scheme.weights.type = ValueType::kFloat;
  scheme.weights.strategy = strategy;
  if (strategy == WeightStrategy::kBlock) scheme.weights.block = {2, 16};
  scheme.format = DefaultFormat(scheme.weights, false);
  return scheme;
}

Scheme Microscaled(int num_bits, ScaleType scale_type) {
  Scheme scheme;
  scheme.weights.type = ValueType::kFloat;
  scheme.weights.num_bits = num_bits;
  scheme.weights.strategy = WeightStrategy::kGroup;
  scheme.weights.group_size = compressed_tensors::GroupSizeOf(scale_type);
  scheme.weights.scale_type = scale_type;
  scheme.format = DefaultFormat(scheme.weights, false);
  return scheme;
}

WeightLoss Find(const Array& w, const Scheme& scheme, WeightRules rules, int64_t first_row = 0) {
  float global_scale = 1;
  if (scheme.weights.scale_type == ScaleType::kE4M3) {
    float absmax = 0;
    const Array f32 = Cast(w, DType::kF32);
    for (const float x : f32.View<float>()) absmax = std::max(absmax, std::abs(x));
    global_scale = compressed_tensors::GlobalScaleOf(absmax, w.dtype());
  }
  const absl::StatusOr<std::vector<StoredRows>> stored =
      EncodeRows(w, first_row, w.shape(), scheme, rules, global_scale);
  EXPECT_TRUE(stored.ok()) << stored.status();
  return *FindLoss(w, first_row, scheme, rules, *stored, global_scale);
}

// A weight [4, 64] of values from 0.5 to 1, changed by `edit`.
template <class Edit>
std::vector<std::string> Lines(DType dtype, const Scheme& scheme, Edit edit,
                               WeightRules rules = WeightRules::kCompressedTensors) {
  std::vector<float> values(4 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5f + static_cast<float>(i * 37 % 64) / 128;
  edit(values);
  const Array w = Cast(Array::FromSpan<float>(values, {4, 64}), dtype);
  return DescribeLoss(Find(w, scheme, rules), scheme, *io::ToFileDType(dtype), w.shape());
}
const auto kNoEdit = [](std::vector<float>&) {};
const auto kOutlier = [](std::vector<float>& w) { w[64 + 3] = -30000; };

TEST(WeightLossTest, OrdinaryWeightsLoseNothing) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Scheme& scheme :
         {Make(WeightStrategy::kTensor, 8), Make(WeightStrategy::kChannel, 8), Make(WeightStrategy::kGroup, 4),
          Make(WeightStrategy::kGroup, 4, false), Make(WeightStrategy::kGroup, 3), Make(WeightStrategy::kGroup, 2),
          Floats(WeightStrategy::kBlock), Microscaled(4, ScaleType::kE8M0), Microscaled(6, ScaleType::kE8M0),
          Microscaled(8, ScaleType::kE8M0), Microscaled(4, ScaleType::kE4M3)}) {
      EXPECT_THAT(Lines(dtype, scheme, kNoEdit), IsEmpty()) << Describe(scheme);
      EXPECT_THAT(Lines(dtype, scheme, [](std::vector<float>& w) { std::fill(w.begin(), w.end(), 0.0f); }), IsEmpty());
      EXPECT_THAT(Lines(dtype, scheme,
                        [](std::vector<float>& w) {  // one value and zeros
                          std::fill(w.begin(), w.end(), 0.0f);
                          w[70] = 1;
                        }),
                  IsEmpty())
          << Describe(scheme);
    }
  }
}

// Groups that are small beside the largest one.
TEST(WeightLossTest, SmallScalesUnderAGlobalScale) {
  const auto lines = [](float factor) {
    return Lines(DType::kBF16, Microscaled(4, ScaleType::kE4M3), [factor](std::vector<float>& w) {
      for (int i = 16; i < 32; ++i) w[i] *= factor;
    });
  };
  EXPECT_THAT(lines(0x1p-10f), IsEmpty());
  EXPECT_THAT(lines(0x1p-16f), ElementsAre("the scales of 1 of 16 groups ([0,16:32]) are subnormal in F8_E4M3, and "
                                           "lose precision; keep this weight in floating point"));
  EXPECT_THAT(lines(0x1p-26f), ElementsAre("all values of 1 of 16 groups ([0,16:32]) become 0: their scales underflow "
                                           "F8_E4M3; keep this weight in floating point"));
  EXPECT_THAT(Lines(DType::kBF16, Microscaled(4, ScaleType::kE8M0), kOutlier),
              ElementsAre("in 1 of 8 groups outliers make all other values 0: -29952 at [1,3]; use smaller groups, or "
                          "keep this weight in floating point"));
}

TEST(WeightLossTest, NamesOutliers) {
  EXPECT_THAT(
      Lines(DType::kF32, Make(WeightStrategy::kTensor, 8), kOutlier),
      ElementsAre("a single outlier, -30000 at [1,3], makes all other values 0; use smaller groups, or keep this "
                  "weight in floating point"));
  EXPECT_THAT(
      Lines(DType::kF16, Make(WeightStrategy::kChannel, 8), kOutlier),
      ElementsAre("in 1 of 4 rows outliers make all other values 0: -30000 at [1,3]; use smaller groups, or keep "
                  "this weight in floating point"));
  for (const bool symmetric : {true, false}) {
    for (const bool bytes : {true, false}) {
      EXPECT_THAT(Lines(DType::kBF16, Make(WeightStrategy::kGroup, 4, symmetric, bytes),
                        [](std::vector<float>& w) { w[0] = w[40] = w[128] = w[250] = 512; }),
                  ElementsAre("in 4 of 8 groups outliers make all other values 0: 512 at [0,0], 512 at [0,40], 512 at "
                              "[2,0], ...; use smaller groups, or keep this weight in floating point"));
    }
  }
  EXPECT_THAT(Lines(DType::kF32, Floats(WeightStrategy::kBlock), [](std::vector<float>& w) { w[2 * 64 + 17] = 1e9f; }),
              ElementsAre("in 1 of 8 blocks outliers make all other values 0: 1e+09 at [2,17]; use smaller groups, or "
                          "keep this weight in floating point"));
  EXPECT_THAT(
      Lines(DType::kBF16, Make(WeightStrategy::kChannel, 8), kOutlier, WeightRules::kAqt),
      ElementsAre("in 1 of 4 rows outliers make all other values 0: -29952 at [1,3]; use smaller groups, or keep "
                  "this weight in floating point"));
}

TEST(WeightLossTest, OneOf256MayBeLeft) {
  std::vector<float> values(16 * 64, 0.5f);
  values[100] = 1000;
  values[900] = -2000;
  const Scheme scheme = Make(WeightStrategy::kTensor, 8);
  const auto lines = [&] {
    const Array w = Array::FromSpan<float>(values, {16, 64});
    return DescribeLoss(Find(w, scheme, WeightRules::kCompressedTensors), scheme, io::FileDType::kF32, w.shape());
  };
  EXPECT_THAT(lines(),
              ElementsAre("2 outliers, the largest -2000 at [14,4], make all other values 0; use smaller groups, "
                          "or keep this weight in floating point"));
  values[200] = values[300] = 1500;
  EXPECT_EQ(lines().size(), 1u);
  values[400] = 1500;
  EXPECT_THAT(lines(), IsEmpty());
}

// With few bits, many values become 0 beside an ordinary largest value.
TEST(WeightLossTest, CoarseGridsAreNoOutliers) {
  const auto edit = [](std::vector<float>& w) {
    for (size_t i = 0; i < w.size(); ++i) w[i] = i % 32 == 0 ? 1.0f : 0.2f;
  };
  EXPECT_THAT(Lines(DType::kBF16, Make(WeightStrategy::kGroup, 2), edit), IsEmpty());
  EXPECT_EQ(Lines(DType::kBF16, Make(WeightStrategy::kGroup, 2), [](std::vector<float>& w) { w[0] = 20; }).size(), 1u);
}

TEST(WeightLossTest, ScalesThatUnderflow) {
  const auto scale_row = [](int row, float by) {
    return [row, by](std::vector<float>& w) {
      for (int i = 0; i < 64; ++i) w[row * 64 + i] *= by;
    };
  };
  EXPECT_THAT(Lines(DType::kF16, Make(WeightStrategy::kChannel, 8), scale_row(2, 1e-6f)),
              ElementsAre("all values of 1 of 4 rows (row 2) become 0: their scales underflow F16; keep this weight in "
                          "floating point"));
  EXPECT_THAT(
      Lines(DType::kBF16, Make(WeightStrategy::kGroup, 4), scale_row(3, 1e-40f)),
      ElementsAre("all values of 2 of 8 groups ([3,0:32], [3,32:64]) become 0: their scales underflow BF16; keep "
                  "this weight in floating point"));
  EXPECT_THAT(Lines(DType::kF16, Make(WeightStrategy::kTensor, 8),
                    [](std::vector<float>& w) {
                      for (float& x : w) x *= 1e-6f;
                    }),
              ElementsAre("all values become 0: the scale underflows F16; keep this weight in floating point"));
  EXPECT_THAT(
      Lines(DType::kF16, Make(WeightStrategy::kChannel, 8), scale_row(1, 1e-3f)),
      ElementsAre("the scales of 1 of 4 rows (row 1) are subnormal in F16, and lose precision; keep this weight in "
                  "floating point"));
  EXPECT_THAT(Lines(DType::kF32, Floats(WeightStrategy::kTensor),
                    [](std::vector<float>& w) {
                      for (float& x : w) x *= 1e-38f;
                    }),
              ElementsAre("the scale is subnormal in F32, and loses precision; keep this weight in floating point"));
}

TEST(WeightLossTest, ProductsThatOverflow) {
  const auto largest = [](std::vector<float>& w) {
    w[64 + 33] = 65504;
    w[64 + 34] = -65504;
    for (int i = 35; i < 64; ++i) w[64 + i] = 20000;
  };
  EXPECT_THAT(Lines(DType::kF16, Make(WeightStrategy::kGroup, 4), largest),
              ElementsAre("values of 1 of 8 groups ([1,32:64]) overflow F16 when multiplied out: -8 x 8736 at [1,34]; "
                          "keep this weight in floating point"));
  EXPECT_THAT(Lines(DType::kF32, Make(WeightStrategy::kGroup, 4), largest), IsEmpty());
  EXPECT_THAT(Lines(DType::kF16, Make(WeightStrategy::kGroup, 8), largest), IsEmpty())
      << "127.5 steps of the same range";
}

// Compares with the definitions, applied to the quantized values.
TEST(WeightLossTest, EqualToTheDefinitions) {
  std::mt19937 rng(1);
  const auto uniform = [&](int n) { return static_cast<int>(rng() % n); };
  int found[kNumLosses] = {};
  for (int round = 0; round < 2000; ++round) {
    const DType dtype = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[uniform(3)];
    const WeightStrategy strategy = std::vector<WeightStrategy>{
        WeightStrategy::kTensor, WeightStrategy::kChannel, WeightStrategy::kGroup, WeightStrategy::kBlock}[uniform(4)];
    const bool symmetric = uniform(2) == 0 || strategy == WeightStrategy::kTensor;
    const int num_bits = 4 + uniform(5);
    const Scheme scheme =
        strategy == WeightStrategy::kBlock ? Floats(strategy) : Make(strategy, num_bits, symmetric, uniform(2) == 0);
    const bool aqt = symmetric && strategy != WeightStrategy::kBlock && uniform(2) == 0;
    const WeightRules rules = aqt ? WeightRules::kAqt : WeightRules::kCompressedTensors;
    std::vector<float> values(3 * 64);
    std::normal_distribution<float> normal;
    for (float& x : values) x = normal(rng);
    const float largest = dtype == DType::kF16 ? 65504.0f : 3e38f, smallest = dtype == DType::kF16 ? 6e-8f : 1e-40f;
    for (int n = uniform(6); n > 0; --n) {
      const int at = uniform(3 * 64 / 16) * 16;
      const int kind = uniform(5);
      for (int i = 0; i < 16; ++i) {
        float& x = values[at + i];
        if (kind == 0) x *= smallest * 100;
        if (kind == 1 && i == 5) x = 1000;
        if (kind == 2) x = 0;
        if (kind == 3) x = (symmetric ? largest : largest / 4) * static_cast<float>(i % 3 - 1);
        if (kind == 4) x *= 1e-3f;
      }
    }
    const Array w = Cast(Array::FromSpan<float>(values, {3, 64}), dtype);
    const WeightLoss loss = Find(w, scheme, rules);

    const QuantizedWeight q = *QuantizeRows(w, scheme, rules);
    const compressed_tensors::Units units = UnitsOf(scheme.weights, w.shape());
    const Array x = Cast(w, DType::kF32), qs = Cast(q.q, DType::kF32), scale = Cast(q.scale, DType::kF32);
    const Array product = Cast(*compressed_tensors::DequantizeWeight(q, scheme.weights), DType::kF32);
    const int64_t n = units.scale_shape.num_elements();
    std::vector<int> all(n), kept(n), infinite(n);
    for (int i = 0; i < 3 * 64; ++i) {
      const int64_t u = units.Of(i / 64, i % 64);
      const float zero = q.zero_point.has_value() ? q.zero_point->View<int8_t>()[u] : 0.0f;
      all[u] += x.View<float>()[i] != 0;
      kept[u] += qs.View<float>()[i] != zero;
      infinite[u] += !std::isfinite(product.View<float>()[i]);
    }
    int64_t expected[kNumLosses] = {};
    const float normal_from = dtype == DType::kF16 ? 0x1p-14f : 0x1p-126f;
    for (int64_t u = 0; u < n; ++u) {
      expected[0] += kept[u] == 0 && all[u] > 0;
      expected[1] += kept[u] == 1 && all[u] > 1;
      expected[2] += scale.View<float>()[u] < normal_from;
      expected[3] += infinite[u] > 0;
    }
    for (int i = 0; i < kNumLosses; ++i) {
      EXPECT_EQ(loss.units[i].count, expected[i])
          << i << ": " << Describe(scheme) << " " << ToString(dtype) << ToString(rules);
      found[i] += expected[i] > 0;
    }
  }
  for (const int rounds : found) EXPECT_GT(rounds, 10);
}

TEST(WeightLossTest, JoinsBlocksOfRows) {
  const Scheme scheme = Make(WeightStrategy::kChannel, 8);
  std::vector<float> values(8 * 64, 1.0f);
  for (const int row : {1, 2, 4, 5, 7}) values[row * 64 + row] = 1e6f;
  const auto find = [&](int begin, int end) {
    const Array w = Array::FromSpan<float>(std::vector<float>(values.begin() + begin * 64, values.begin() + end * 64),
                                           {end - begin, 64});
    return Find(w, scheme, WeightRules::kCompressedTensors, begin);
  };
  const Shape shape = {8, 64};
  const std::vector<std::string> whole = DescribeLoss(find(0, 8), scheme, io::FileDType::kF32, shape);
  EXPECT_EQ(whole[0].substr(0, whole[0].find(';')),
            "in 5 of 8 rows outliers make all other values 0: 1e+06 at [1,1], 1e+06 at [2,2], 1e+06 at [4,4], ...");
  for (const int cut : {1, 2, 5, 7}) {
    WeightLoss loss = find(0, cut);
    loss.Append(find(cut, 8));
    EXPECT_EQ(DescribeLoss(loss, scheme, io::FileDType::kF32, shape), whole) << cut;
  }
}

}  // namespace
}  // namespace aqt::serving
