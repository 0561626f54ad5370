#include "aqt/nn/layers/rotary.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::CheckGradients;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Array F64(const Shape& shape, uint64_t seed) { return RandomArray({DType::kF64, shape}, seed); }

// A pair is a complex number, which is multiplied with e^(i angle).
Array ByComplexNumbers(const Array& x, int64_t turned, double theta, RotaryPairs pairs) {
  const int64_t batch = x.shape()[0], length = x.shape()[1], heads = x.shape()[2], features = x.shape()[3];
  std::vector<double> y(x.View<double>().begin(), x.View<double>().end());
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t position = 0; position < length; ++position) {
      for (int64_t head = 0; head < heads; ++head) {
        double* row = y.data() + ((b * length + position) * heads + head) * features;
        for (int64_t i = 0; i < turned / 2; ++i) {
          const bool halves = pairs == RotaryPairs::kHalves;
          double& real = row[halves ? i : 2 * i];
          double& imaginary = row[halves ? i + turned / 2 : 2 * i + 1];
          const double angle = static_cast<double>(position) * std::pow(theta, -2.0 * i / turned);
          const std::complex<double> z = std::complex<double>(real, imaginary) * std::polar(1.0, angle);
          real = z.real();
          imaginary = z.imag();
        }
      }
    }
  }
  return Array::FromSpan(absl::MakeConstSpan(y), x.shape());
}

TEST(RotaryTest, Formula) {
  const Array x = F64({2, 7, 3, 10}, 1);
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    for (const int64_t turned : {10, 4, 2}) {
      const absl::StatusOr<Array> got = RotaryEmbedding(Value(x), MakeRotaryAngles(7, turned, 1000), pairs).ToArray();
      ASSERT_THAT(got, IsOk());
      const Array want = ByComplexNumbers(x, turned, 1000, pairs);
      for (int64_t i = 0; i < x.num_elements(); ++i) {
        // The angles are rounded to f32 four times: 6 * 2^-24 * 4 radians. The numbers are below 1.5 in size.
        EXPECT_NEAR(got->View<double>()[i], want.View<double>()[i], 6 * std::exp2(-24) * 4 * 1.5 * 2) << i;
      }
    }
  }
}

// The product of a query and a key depends on their distance only.
TEST(RotaryTest, ProductsDependOnDistances) {
  std::vector<double> rows(2 * 6);
  for (int i = 0; i < 6; ++i) rows[i] = rows[6 + i] = 0.3 * i - 0.7;
  const Array x = Array::FromSpan(absl::MakeConstSpan(rows), {1, 2, 1, 6});
  const Value many[] = {Value(x), Value(x), Value(x)};  // six positions with the same vector
  const Array turned = *RotaryEmbedding(ops::Concatenate(many, 1), MakeRotaryAngles(6, 6, 100)).ToArray();
  const auto product = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < 6; ++i) sum += turned.View<double>()[a * 6 + i] * turned.View<double>()[b * 6 + i];
    return sum;
  };
  EXPECT_NEAR(product(0, 2), product(3, 5), 1e-5);
  EXPECT_NEAR(product(1, 4), product(2, 5), 1e-5);
  EXPECT_GT(std::fabs(product(0, 1) - product(0, 5)), 0.1);
}

TEST(RotaryTest, HalfFloatsAreRoundedOnce) {
  const Array x = RandomArray({DType::kBF16, {1, 5, 2, 8}}, 3);
  const RotaryAngles angles = MakeRotaryAngles(5, 8, 10000);
  const Array got = *RotaryEmbedding(Value(x), angles).ToArray();
  const Array want = *ops::Cast(RotaryEmbedding(ops::Cast(Value(x), DType::kF32), angles), DType::kBF16).ToArray();
  EXPECT_TRUE(BitEqual(got, want));
}

TEST(RotaryTest, Gradients) {
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kNeighbours}) {
    const auto turn = [&](In in) { return Values{RotaryEmbedding(in[0], MakeRotaryAngles(3, 4, 10), pairs)}; };
    EXPECT_THAT(CheckGradients(turn, {F64({2, 3, 2, 5}, 1)}), IsOk());
  }
}

TEST(RotaryTest, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(MakeRotaryAngles(4, 3, 10).cos.ToArray(), FailsWith(kInvalid, {"features = 3", "rotary_test.cc:"}));
  EXPECT_THAT(MakeRotaryAngles(0, 4, 10).sin.ToArray(), FailsWith(kInvalid, {"length = 0"}));
  EXPECT_THAT(MakeRotaryAngles(4, 4, -1).cos.ToArray(), FailsWith(kInvalid, {"theta = -1"}));
  const RotaryAngles angles = MakeRotaryAngles(4, 6, 10);
  EXPECT_THAT(RotaryEmbedding(Value(F64({1, 4, 2, 6}, 1)), angles).ToArray(), IsOk());
  for (const Shape& shape : {Shape{1, 4, 2, 5}, Shape{1, 5, 2, 6}, Shape{4, 2, 6}}) {
    EXPECT_THAT(RotaryEmbedding(Value(F64(shape, 1)), angles).ToArray(),
                FailsWith(kInvalid, {"rotary_embedding", "rotary_test.cc:"}))
        << shape;
  }
}

}  // namespace
}  // namespace aqt::nn
