#include "aqt/kernels/small_floats/small_floats.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "aqt/kernels/small_floats/decode_small_floats.h"
#include "aqt/kernels/small_floats/small_floats_reference.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr SmallFloat kTypes[] = {SmallFloat::kE2M1, SmallFloat::kE2M3, SmallFloat::kE4M3};

// The finite magnitudes among the codes of T, as f32.
template <class T>
std::vector<float> AllMagnitudes() {
  std::vector<float> values;
  for (const T code : AllCodes<T>()) {
    const float value = ConvertElement<float>(code);
    if (std::isfinite(value) && !std::signbit(value)) values.push_back(value);
  }
  return values;
}
template <>
std::vector<float> AllMagnitudes<float>() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x7f80; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xffffu}) {
      values.push_back(__builtin_bit_cast(float, high << 16 | low));
    }
  }
  return values;
}

template <class T>
class SmallFloatsTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(SmallFloatsTest, FloatTypes);

TYPED_TEST(SmallFloatsTest, MxScalesOfAllMagnitudes) {
  std::vector<float> absmax = AllMagnitudes<TypeParam>();
  absmax.push_back(std::numeric_limits<float>::infinity());
  absmax.push_back(std::numeric_limits<float>::quiet_NaN());
  const int64_t n = static_cast<int64_t>(absmax.size());
  for (const SmallFloat type : kTypes) {
    std::vector<uint8_t> want(n), got(n);
    std::vector<float> want_factor(n), factor(n);
    reference::MxScales(absmax.data(), n, kDTypeOf<TypeParam>, type, want.data(), want_factor.data());
    EXPECT_EQ(want[n - 1], kNoExponent);
    EXPECT_EQ(want[n - 2], kNoExponent);
    for (const Target target : SupportedTargets()) {
      MxScales(absmax.data(), n, kDTypeOf<TypeParam>, type, got.data(), factor.data(), target);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(int{got[i]}, int{want[i]}) << target << " " << BitsOf(type) << " bits, absmax " << absmax[i];
        ASSERT_EQ(factor[i], want_factor[i]) << target << " " << BitsOf(type) << " bits, absmax " << absmax[i];
      }
    }
  }
}

TYPED_TEST(SmallFloatsTest, E4M3ScalesOfAllMagnitudes) {
  const std::vector<float> absmax = AllMagnitudes<TypeParam>();
  const int64_t n = static_cast<int64_t>(absmax.size());
  for (const float global : {1.0f, 2688.0f, 0.37f, 5e9f, 0x1p-100f, 3e38f}) {
    std::vector<Float8E4M3FN> want(n), got(n);
    std::vector<float> want_factor(n), factor(n);
    reference::E4M3Scales(absmax.data(), n, kDTypeOf<TypeParam>, global, want.data(), want_factor.data());
    for (const Target target : SupportedTargets()) {
      E4M3Scales(absmax.data(), n, kDTypeOf<TypeParam>, global, got.data(), factor.data(), target);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(int{got[i].bits}, int{want[i].bits}) << target << " absmax " << absmax[i] << ", global " << global;
        ASSERT_EQ(factor[i], want_factor[i]) << target << " absmax " << absmax[i] << ", global " << global;
      }
    }
  }
}

// Quantizes on all targets and compares with the plain version. The byte after the result must not change.
void ExpectAsReference(QuantizeSmallFloatsArgs args) {
  const int64_t size = args.x.rows * args.x.cols * BitsOf(args.type) / 8;
  std::vector<uint8_t> want(size + 1, 99), got(size + 1);
  args.q = want.data();
  reference::QuantizeSmallFloats(args);
  for (const Target target : SupportedTargets()) {
    got.assign(size + 1, 99);
    args.q = got.data();
    QuantizeSmallFloats(args, target);
    for (int64_t i = 0; i <= size; ++i) {
      ASSERT_EQ(int{got[i]}, int{want[i]}) << target << " " << BitsOf(args.type) << " bits, byte " << i;
    }
  }
}

TYPED_TEST(SmallFloatsTest, RowsOfAllLengths) {
  for (const int64_t group : {16, 32}) {
    for (int64_t groups = 1; groups <= 9; ++groups) {
      const int64_t cols = group * groups;
      const auto data = TestFloats<TypeParam>(3 * cols + 7, Values::kUsual, static_cast<uint32_t>(cols));
      for (const SmallFloat type : kTypes) {
        std::vector<float> factors;
        for (int64_t i = 0; i < 3 * groups; ++i) factors.push_back(std::ldexp(1.0f, static_cast<int>(i % 7) - 3));
        QuantizeSmallFloatsArgs args;
        args.x = {data.data() + 1, kDTypeOf<TypeParam>, 3, cols, cols + 2, 1};
        args.type = type;
        args.group = group;
        args.factor = factors.data();
        ExpectAsReference(args);
        if (type != SmallFloat::kE2M1) continue;
        for (float& factor : factors) factor *= 1.37f;
        args.divide = true;
        ExpectAsReference(args);
      }
    }
  }
}

// Every finite value of T, scaled to reach all codes, their ties and underflow.
template <class T>
std::vector<T> AllFinite() {
  std::vector<T> values;
  for (const float magnitude : AllMagnitudes<T>()) {
    values.push_back(ConvertElement<T>(magnitude));
    values.push_back(ConvertElement<T>(-magnitude));
  }
  values.resize(values.size() / 32 * 32);
  return values;
}

TYPED_TEST(SmallFloatsTest, AllValues) {
  const std::vector<TypeParam> data = AllFinite<TypeParam>();
  const int64_t n = static_cast<int64_t>(data.size());
  for (const float factor : {1.0f, 0x1p-3f, 0x1p127f, 0x1p-40f, 0x1p10f, 0.3f, 0x1.fffffep-1f, 0x1.8p-40f, 1.5f}) {
    const std::vector<float> factors(n / 32, factor);
    for (const SmallFloat type : kTypes) {
      QuantizeSmallFloatsArgs args;
      args.x = {data.data(), kDTypeOf<TypeParam>, 1, n, n, 1};
      args.type = type;
      args.factor = factors.data();
      int exponent;
      const bool power_of_two = std::frexp(factor, &exponent) == 0.5f;
      if (power_of_two) ExpectAsReference(args);
      if (type != SmallFloat::kE2M1) continue;
      args.divide = true;
      ExpectAsReference(args);
    }
  }
}

TEST(SmallFloats, ValuesByHand) {
  const std::vector<float> x = {0,    -0.0f, 0.25f, 0.26f, 0.75f, -0.75f, 1.25f, 1.75f, 2.5f, -2.6f, 3.5f,
                                5,    5.1f,  6,     1000,  -1000, -0.1f,  1,     1.5f,  2,    3,     4,
                                0.5f, -0.5f, -6,    0,     0,     0,      0,     0,     0,    0};
  // Ties go to the even code; a small negative value is -0, and -0 is +0.
  const std::vector<uint8_t> codes = {0, 0, 0, 1, 2, 10, 2, 4, 4,  13, 6, 6, 7, 7, 7, 15,
                                      8, 2, 3, 4, 5, 6,  1, 9, 15, 0,  0, 0, 0, 0, 0, 0};
  const float one = 1;
  for (const Target target : SupportedTargets()) {
    std::vector<uint8_t> q(16);
    QuantizeSmallFloatsArgs args;
    args.x = {x.data(), DType::kF32, 1, 32, 32, 1};
    args.factor = &one;
    args.q = q.data();
    QuantizeSmallFloats(args, target);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(q[i / 2] >> (i % 2 * 4) & 15, codes[i]) << target << " " << x[i];
  }
}

// Four e2m3 codes in three bytes: 0.125, 7.5, -0 and -1.
TEST(SmallFloats, PackedE2M3ByHand) {
  std::vector<float> x(32);
  x[0] = 0.125f;
  x[1] = 7.5f;
  x[2] = -0.0f;
  x[3] = -1;
  const float one = 1;
  for (const Target target : SupportedTargets()) {
    std::vector<uint8_t> q(24);
    QuantizeSmallFloatsArgs args;
    args.x = {x.data(), DType::kF32, 1, 32, 32, 1};
    args.type = SmallFloat::kE2M3;
    args.factor = &one;
    args.q = q.data();
    QuantizeSmallFloats(args, target);
    const uint32_t word = 1 | 31 << 6 | 32 << 12 | 40 << 18;
    EXPECT_EQ(q[0] | q[1] << 8 | q[2] << 16, static_cast<int>(word)) << target;
  }
}

// Decodes on all targets and compares the bits with the plain version. The value after the result must not change.
void ExpectDecodesAsReference(DecodeSmallFloatsArgs args) {
  std::vector<float> want(args.n + 1, 99), got;
  args.x = want.data();
  reference::DecodeSmallFloats(args);
  for (const Target target : SupportedTargets()) {
    got.assign(args.n + 1, 99);
    args.x = got.data();
    DecodeSmallFloats(args, target);
    for (int64_t i = 0; i <= args.n; ++i) {
      if (std::isnan(want[i]) && std::isnan(got[i])) continue;
      ASSERT_EQ(__builtin_bit_cast(uint32_t, got[i]), __builtin_bit_cast(uint32_t, want[i]))
          << target << " " << BitsOf(args.type) << " bits, value " << i << " of " << args.n << ", groups of "
          << args.group;
    }
  }
}

TEST(SmallFloats, DecodesAllCodes) {
  // Every pair of bytes, and with it every code at every place.
  std::vector<uint8_t> q;
  for (int i = 0; i < 3 * 256; ++i) q.push_back(static_cast<uint8_t>(i * 151 + i / 256 * 37));
  for (const SmallFloat type : kTypes) {
    const int64_t n = static_cast<int64_t>(q.size()) * 8 / BitsOf(type);
    for (const float scale : {1.0f, -0.37f, 0x1p-127f, 0x1p-148f, 0x1p120f, 0.0f}) {
      const std::vector<float> scales(n / 32, scale);
      ExpectDecodesAsReference({.q = q.data(), .type = type, .n = n, .group = 32, .scale = scales.data()});
    }
  }
}

TEST(SmallFloats, DecodesRunsAndGroupsOfAllLengths) {
  std::vector<uint8_t> q(2000);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(i * 197 + 3);
  std::vector<float> scales(2000);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
  for (const SmallFloat type : kTypes) {
    const int64_t unit = type == SmallFloat::kE2M1 ? 2 : type == SmallFloat::kE2M3 ? 4 : 1;
    for (const int64_t n : {0, 1, 2, 3, 4, 7, 8, 9, 16, 31, 33, 100, 127, 128, 129, 256, 300}) {
      for (const int64_t group : {1, 2, 7, 16, 32, 48, 511, 513, 5000}) {
        ExpectDecodesAsReference(
            {.q = q.data() + 1, .type = type, .n = n * unit, .group = group, .scale = scales.data()});
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
