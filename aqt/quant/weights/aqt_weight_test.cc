#include "aqt/quant/weights/aqt_weight.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int> Ints(const Array& a) { return std::vector<int>(a.View<int8_t>().begin(), a.View<int8_t>().end()); }

// The rule of aqt_weight.h written out for one row, in double with one rounding per operation; products of two values
// of 24 bits are exact in double.
template <class T>
struct Plain {
  static float Round(double v) { return ToFloat(RoundTo<T>(v)); }
  static float Flush(float v) {
    return kDTypeOf<T> != DType::kF16 && std::fabs(v) < std::numeric_limits<float>::min() ? 0 : v;
  }
  static void Row(const T* w, int64_t n, int bits, bool divide, float* scale, std::vector<int>* q) {
    float bound = 0;
    for (int64_t k = 0; k < n; ++k) bound = std::fmax(bound, std::fabs(ToFloat(w[k])));
    bound = Flush(bound) == 0 ? 1 : bound;
    const double quant_bound = std::ldexp(1.0, bits - 1) - 0.5;
    const float reciprocal = kDTypeOf<T> == DType::kF16 ? Round(1 / quant_bound) : static_cast<float>(1 / quant_bound);
    *scale = Flush(divide ? Round(bound / quant_bound) : Round(static_cast<float>(double{bound} * reciprocal)));
    float inv = Flush(Round(1.0 / *scale));
    if (std::isinf(inv)) inv = 1;
    for (int64_t k = 0; k < n; ++k) {
      const double clip = quant_bound - 0.5, y = Round(double{Flush(ToFloat(w[k]))} * inv);
      q->push_back(static_cast<int>(std::nearbyint(y < -clip ? -clip : y > clip ? clip : y)));
    }
  }
};

template <class T>
class AqtWeightTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(AqtWeightTest, FloatTypes);

TYPED_TEST(AqtWeightTest, AsTheRuleWrittenOut) {
  for (int bits : {2, 3, 4, 7, 8}) {
    for (int64_t o : {1, 2, 40}) {
      const int64_t i = 67;
      auto data = kernels::TestFloats<TypeParam>(o * i, kernels::Values::kUsual, static_cast<uint32_t>(o));
      if (o > 2) {  // rows of zeros, of subnormals, and around them
        for (int64_t k = 0; k < i; ++k) {
          const double v = ToFloat(data[k]);
          data[k] = RoundTo<TypeParam>(0.0);
          data[i + k] = RoundTo<TypeParam>(v * 0x1p-134);
          data[2 * i + k] = RoundTo<TypeParam>(v * 0x1p-124);
          data[3 * i + k] = RoundTo<TypeParam>(v * 0x1p-20);
        }
      }
      std::vector<int> q;
      std::vector<float> scales(o);
      for (int64_t r = 0; r < o; ++r) Plain<TypeParam>::Row(&data[r * i], i, bits, o == 1, &scales[r], &q);
      for (kernels::Target target : kernels::SupportedTargets()) {
        const auto got = AqtQuantizeWeightPerChannel(ArrayRef(data.data(), {o, i}), bits, target);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(Ints(got->q), q) << target << " bits " << bits << " o " << o;
        EXPECT_EQ(got->scale.aval(), (Aval{kDTypeOf<TypeParam>, {o, 1}}));
        for (int64_t r = 0; r < o; ++r) EXPECT_EQ(ToFloat(got->scale.View<TypeParam>()[r]), scales[r]) << r;
      }
    }
  }
}

TEST(AqtWeight, ByHand) {
  // absmax 127.5 gives a scale of about 1. -127.5 is clipped before it is rounded, so -128 never appears.
  const Array w = Array::Of<float>({127.5f, -127.5f, 0.5f, -2.5f, 0, 0, -0.0f, 0}, {2, 4});
  const auto got = AqtQuantizeWeightPerChannel(w);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(Ints(got->q), (std::vector<int>{127, -127, 0, -2, 0, 0, 0, 0}));
  EXPECT_EQ(got->scale.View<float>()[0], 127.5f * (1 / 127.5f));
  EXPECT_EQ(got->scale.View<float>()[1], 1 / 127.5f);
}

// A single scale is divided, several are multiplied by the reciprocal: v / 127.5 and v * (1 / 127.5) differ in the last
// bit for some v.
TEST(AqtWeight, OneScaleIsDivided) {
  int different = 0;
  for (int k = 1; k <= 100; ++k) {
    const float v = static_cast<float>(k);
    const Array one = Array::Of<float>({v}, {1, 1}), two = Array::Of<float>({v, v}, {2, 1});
    const float divided = AqtQuantizeWeightPerChannel(one)->scale.View<float>()[0];
    const float multiplied = AqtQuantizeWeightPerChannel(two)->scale.View<float>()[0];
    EXPECT_EQ(divided, v / 127.5f);
    EXPECT_EQ(multiplied, v * (1 / 127.5f));
    different += divided != multiplied;
  }
  EXPECT_GT(different, 0);
}

TEST(AqtWeight, NanAndInfinity) {
  const Array w = Array::Of<float>({1, kNaN, 2, -kInfinity, 3, 1}, {3, 2});
  const auto got = AqtQuantizeWeightPerChannel(w);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(Ints(got->q), (std::vector<int>{0, 0, 0, 0, 127, 42}));
  EXPECT_TRUE(std::isnan(got->scale.View<float>()[0]));
  EXPECT_EQ(got->scale.View<float>()[1], kInfinity);
}

TEST(AqtWeight, Errors) {
  const Array w = Array::Zeros(DType::kF32, {2, 2});
  for (int bits : {1, 9}) {
    const absl::Status status = AqtQuantizeWeightPerChannel(w, bits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()),
              "AqtQuantizeWeightPerChannel: bits = " + std::to_string(bits) + "; expected 2 to 8 (one integer per s8)");
  }
  EXPECT_EQ(AqtQuantizeWeightPerChannel(Array::Zeros(DType::kS8, {2, 2})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aqt
