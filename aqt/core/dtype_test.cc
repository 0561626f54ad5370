#include "aqt/core/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// An independent description of a format: gives the value of a code by its definition, in doubles.
struct Spec {
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity;
};
// clang-format off
template <class T> constexpr Spec kSpec;
template <> constexpr Spec kSpec<Float16> = {5, 10, 15, true};
template <> constexpr Spec kSpec<BFloat16> = {8, 7, 127, true};
template <> constexpr Spec kSpec<Float8E4M3FN> = {4, 3, 7, false};
template <> constexpr Spec kSpec<Float8E5M2> = {5, 2, 15, true};
// clang-format on

double ValueOf(uint32_t code, const Spec& s) {
  const uint32_t field = code >> s.mantissa_bits & ((1u << s.exponent_bits) - 1);
  const uint32_t fraction = code & ((1u << s.mantissa_bits) - 1);
  const double sign = code >> (s.exponent_bits + s.mantissa_bits) & 1 ? -1 : 1;
  const uint32_t top = (1u << s.exponent_bits) - 1;
  if (field == top && s.has_infinity) return fraction ? NAN : sign * kInf;
  if (field == top && fraction == (1u << s.mantissa_bits) - 1) return NAN;
  const double significand = fraction * std::pow(2.0, -s.mantissa_bits) + (field ? 1 : 0);
  return sign * significand * std::pow(2.0, static_cast<int>(field ? field : 1) - s.bias);
}

template <class T>
class SmallFloatTest : public ::testing::Test {};
using SmallFloats = ::testing::Types<Float16, BFloat16, Float8E4M3FN, Float8E5M2>;
TYPED_TEST_SUITE(SmallFloatTest, SmallFloats);

TYPED_TEST(SmallFloatTest, EveryCodeDecodesToItsDefinitionAndBack) {
  using T = TypeParam;
  const uint32_t codes = 1u << (8 * sizeof(T));
  for (uint32_t code = 0; code < codes; ++code) {
    const T x{static_cast<decltype(T::bits)>(code)};
    const double want = ValueOf(code, kSpec<T>);
    const float got = ToFloat(x);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << code;
      ASSERT_TRUE(std::isnan(ToFloat(RoundTo<T>(got)))) << code;
      continue;
    }
    ASSERT_EQ(got, want) << code;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << code;
    ASSERT_EQ(RoundTo<T>(got).bits, code);
    ASSERT_EQ((ConvertElement<T, double>(want)).bits, code);
  }
}

// Between any two neighbours, values below the midpoint round down, the midpoint to the even code, and values above it
// up. For bf16 and f16, f32 cannot represent the doubles next to the midpoint, so rounding twice would be detected.
TYPED_TEST(SmallFloatTest, RoundsOnceToNearestEvenBetweenAllNeighbours) {
  using T = TypeParam;
  const uint32_t sign = 1u << (8 * sizeof(T) - 1);
  for (uint32_t code = 0; std::isfinite(ValueOf(code + 1, kSpec<T>)); ++code) {
    const double low = ValueOf(code, kSpec<T>), high = ValueOf(code + 1, kSpec<T>), middle = (low + high) / 2;
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    for (const double s : {1.0, -1.0}) {
      const uint32_t with_sign = s < 0 ? sign : 0;
      ASSERT_EQ(RoundTo<T>(s * std::nextafter(middle, 0)).bits, with_sign | code);
      ASSERT_EQ(RoundTo<T>(s * middle).bits, with_sign | even);
      ASSERT_EQ(RoundTo<T>(s * std::nextafter(middle, kInf)).bits, with_sign | (code + 1));
    }
  }
}

TYPED_TEST(SmallFloatTest, OverflowIsIeeeOrSaturating) {
  using T = TypeParam;
  const double max = MaxFinite(kDTypeOf<T>);
  const double step = max - ValueOf(RoundTo<T>(max).bits - 1, kSpec<T>);
  const double middle = max + step / 2;  // where rounding to the next code would start
  // The first value that overflows: the midpoint itself if the largest code is odd.
  const bool odd = RoundTo<T>(max).bits & 1;
  const double first = odd ? middle : std::nextafter(middle, kInf);
  for (const double s : {1.0, -1.0}) {
    for (const double x : {first, 1e300, kInf}) {
      const double ieee = ToFloat(RoundTo<T>(s * x, Overflow::kIeee));
      EXPECT_TRUE(kSpec<T>.has_infinity ? ieee == s * kInf : std::isnan(ieee)) << x;
      EXPECT_EQ(ToFloat(RoundTo<T>(s * x, Overflow::kSaturate)), s * max);
    }
    EXPECT_EQ(ToFloat(RoundTo<T>(s * std::nextafter(first, 0))), s * max);
    EXPECT_TRUE(std::isnan(ToFloat(RoundTo<T>(s * NAN, Overflow::kSaturate))));
  }
}

TEST(DTypeTest, FastPathsEqualTheGeneralOne) {
  std::mt19937 rng(1);
  auto check = [](uint32_t u) {
    const float x = std::bit_cast<float>(u);
    ASSERT_EQ(RoundToBFloat16(x), RoundTo<BFloat16>(x)) << u;
    ASSERT_EQ(RoundToFloat16(x), RoundTo<Float16>(x)) << u;
  };
  for (uint32_t high = 0; high < 1u << 16; ++high) {  // each bf16 code and the values around its ties
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) check(high << 16 | low);
  }
  for (uint32_t high = 0; high < 1u << 19; ++high) {  // each f16 tie
    for (const uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) check(high << 13 | low);
  }
  for (int i = 0; i < 1000000; ++i) check(rng());
}

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType d = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromString(ToString(d)), d);
    EXPECT_EQ(SizeOf(d), VisitDType(d, [&]<class T>() { return static_cast<int64_t>(sizeof(T)); }));
    EXPECT_EQ(d, VisitDType(d, [&]<class T>() { return kDTypeOf<T>; }));
  }
  EXPECT_FALSE(DTypeFromString("int8").has_value());
  EXPECT_EQ(BitWidth(DType::kS4), 4);
  EXPECT_EQ(BitWidth(DType::kBool), 1);
  EXPECT_TRUE(IsFloat(DType::kE5M2) && !IsFloat(DType::kS8) && IsInteger(DType::kS2) && !IsInteger(DType::kBool));
}

TEST(DTypeTest, ToIntegerTruncatesSaturatesAndZeroesNaN) {
  EXPECT_EQ((ConvertElement<int8_t>(127.9f)), 127);
  EXPECT_EQ((ConvertElement<int8_t>(-128.9f)), -128);
  EXPECT_EQ((ConvertElement<int8_t>(-0.9f)), 0);
  EXPECT_EQ((ConvertElement<int8_t>(1e30)), 127);
  EXPECT_EQ((ConvertElement<uint8_t>(-1.0f)), 0);
  EXPECT_EQ((ConvertElement<int32_t>(NAN)), 0);
  EXPECT_EQ((ConvertElement<int32_t>(2147483648.0f)), 2147483647);
  EXPECT_EQ((ConvertElement<int64_t>(9.3e18)), std::numeric_limits<int64_t>::max());
  EXPECT_EQ((ConvertElement<int64_t>(-kInf)), std::numeric_limits<int64_t>::min());
  EXPECT_EQ((ConvertElement<int64_t>(0x1p62f)), int64_t{1} << 62);
  EXPECT_EQ((ConvertElement<Int4>(9)).value, 7);
  EXPECT_EQ((ConvertElement<Int4>(-9.0f)).value, -8);
  EXPECT_EQ((ConvertElement<Int2>(int64_t{5})).value, 1);
  EXPECT_EQ((ConvertElement<uint32_t>(int64_t{-5})), 0u);
  EXPECT_EQ((ConvertElement<uint32_t>(4294967295.0)), 4294967295u);
  EXPECT_TRUE((ConvertElement<bool>(NAN)));
  EXPECT_FALSE((ConvertElement<bool>(-0.0f)));
}

TEST(DTypeTest, EveryNarrowIntegerGoesThroughEveryFloat) {
  for (int v = -128; v < 256; ++v) {
    EXPECT_EQ((ConvertElement<float>(static_cast<int16_t>(v))), v);
    EXPECT_EQ(ToFloat(ConvertElement<Float16>(v)), v);
    EXPECT_EQ(ToFloat(ConvertElement<BFloat16>(v)), v);
    const double want8 = ToFloat(RoundTo<Float8E5M2>(v));
    EXPECT_EQ(ToFloat(ConvertElement<Float8E5M2>(int64_t{v})), want8);
    if (v < -8 || v > 7) continue;
    EXPECT_EQ((ConvertElement<Int4>(ConvertElement<BFloat16>(Int4{static_cast<int8_t>(v)}))).value, v);
  }
}

TEST(DTypeTest, S64RoundsOnce) {
  // Ties plus a small amount: the f32 neighbour is decided by bits that a conversion through f64 would lose.
  const int64_t tie = (int64_t{1} << 62) + (int64_t{1} << 38);  // half a step of f32 at 2^62
  EXPECT_EQ((ConvertElement<float>(tie)), 0x1p62f);
  EXPECT_EQ((ConvertElement<float>(tie + 1)), 0x1p62f + 0x1p39f);
  EXPECT_EQ((ConvertElement<float>(-(tie + 1))), -(0x1p62f + 0x1p39f));
  EXPECT_EQ((ConvertElement<float>(std::numeric_limits<int64_t>::min())), -0x1p63f);
  EXPECT_EQ((ConvertElement<float>(std::numeric_limits<int64_t>::max())), 0x1p63f);
  std::mt19937_64 rng(2);
  for (int i = 0; i < 100000; ++i) {
    const int64_t x = static_cast<int64_t>(rng()) >> (rng() % 64);
    ASSERT_EQ((ConvertElement<float>(x)), static_cast<float>(x)) << x;
    ASSERT_EQ((ConvertElement<double>(x)), static_cast<double>(x)) << x;
  }
}

}  // namespace
}  // namespace aqt
