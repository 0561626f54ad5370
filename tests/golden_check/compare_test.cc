#include "tests/golden_check/compare.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/sha256.h"

namespace aqt::golden {
namespace {

using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
constexpr double kInfD = std::numeric_limits<double>::infinity();

Array F32(std::initializer_list<float> values) {
  return Array::Of<float>(values, {static_cast<int64_t>(values.size())});
}
bool Passes(float got, float want, const Tolerance& tolerance) {
  return !Compare(F32({got}), F32({want}), tolerance).has_value();
}
Tolerance Rtol(double value, double atol) { return {.kind = Tolerance::Kind::kRtol, .value = value, .atol = atol}; }

TEST(Compare, ExactTakesValuesNotBits) {
  const Tolerance exact;
  EXPECT_TRUE(Passes(1.5f, 1.5f, exact));
  EXPECT_TRUE(Passes(-0.0f, 0.0f, exact));
  EXPECT_TRUE(Passes(kNaN, -kNaN, exact));
  EXPECT_TRUE(Passes(kInf, kInf, exact));
  EXPECT_FALSE(Passes(kInf, -kInf, exact));
  EXPECT_FALSE(Passes(kNaN, 1.0f, exact));
  EXPECT_FALSE(Passes(1.0f, kNaN, exact));
  EXPECT_FALSE(Passes(1.0f, std::nextafter(1.0f, 2.0f), exact));
  EXPECT_FALSE(Passes(0.0f, std::numeric_limits<float>::denorm_min(), exact));
}

TEST(Compare, NamesTheFirstDifference) {
  const Array got = Array::Of<int8_t>({1, 2, 3, 4, 5, 6}, {2, 3}), want = Array::Of<int8_t>({1, 2, 3, 4, 7, 8}, {2, 3});
  EXPECT_EQ(Compare(got, want, {}), "[1,1]: got 5, want 7");
  EXPECT_EQ(Compare(Array::Scalar(0.1f), Array::Scalar(0.25f), {}), "[]: got 0.1000000015, want 0.25");
}

TEST(Compare, DtypeAndShapeMustMatch) {
  for (const Tolerance& tolerance : {Tolerance{}, Rtol(kInfD, kInfD)}) {
    EXPECT_EQ(Compare(F32({1, 2}), F32({1, 2, 3}), tolerance), "is f32[2], want f32[3]");
    EXPECT_EQ(Compare(Array::Of<int8_t>({1}, {1}), Array::Of<Int4>({{1}}, {1}), tolerance), "is s8[1], want s4[1]");
    EXPECT_EQ(Compare(Array::Zeros(DType::kF32, {1, 2}), Array::Zeros(DType::kF32, {2}), tolerance),
              "is f32[1,2], want f32[2]");
  }
}

TEST(Compare, EveryDTypeIsCompared) {
  EXPECT_TRUE(Compare(Array::Of<Float8E4M3FN>({{0x38}}, {1}), Array::Of<Float8E4M3FN>({{0x39}}, {1}), {}).has_value());
  EXPECT_FALSE(Compare(Array::Of<Float8E4M3FN>({{0x7f}}, {1}), Array::Of<Float8E4M3FN>({{0xff}}, {1}), {}).has_value());
  EXPECT_TRUE(Compare(Array::Of<uint32_t>({0xffffffff}, {1}), Array::Of<uint32_t>({0xfffffffe}, {1}), {}).has_value());
  EXPECT_TRUE(Compare(Array::Of<int32_t>({32257873}, {1}), Array::Of<int32_t>({32257872}, {1}), {}).has_value());
  EXPECT_TRUE(Compare(Array::Of<BFloat16>({{0x3f80}}, {1}), Array::Of<BFloat16>({{0x3f81}}, {1}), {}).has_value());
}

TEST(Compare, RtolAddsBothParts) {
  EXPECT_TRUE(Passes(102.0f, 100.0f, Rtol(0.01, 1.0)));  // 2 <= 1 + 1
  EXPECT_FALSE(Passes(102.5f, 100.0f, Rtol(0.01, 1.0)));
  EXPECT_TRUE(Passes(-102.0f, -100.0f, Rtol(0.01, 1.0)));
  EXPECT_FALSE(Passes(100.0f, -100.0f, Rtol(0.01, 1.0)));
  EXPECT_TRUE(Passes(0.5f, 0.0f, Rtol(0.0, 0.5)));
  EXPECT_FALSE(Passes(kNaN, 0.0f, Rtol(1.0, kInfD)));
  EXPECT_FALSE(Passes(kInf, 1.0f, Rtol(1.0, 1.0)));
}

TEST(Compare, AnInfinityNeedsAnInfiniteAtolToBeMissed) {
  EXPECT_TRUE(Passes(kInf, kInf, Rtol(0.01, 0.0)));
  EXPECT_FALSE(Passes(65504.0f, kInf, Rtol(0.01, 0.0)));
  EXPECT_FALSE(Passes(-kInf, kInf, Rtol(0.01, 0.0)));
  EXPECT_TRUE(Passes(65504.0f, kInf, Rtol(0.01, kInfD)));
}

TEST(Compare, PowersOfTwoMayBeOneStepOff) {
  Tolerance po2 = Rtol(3e-6, 0.0);
  po2.po2 = true;
  EXPECT_TRUE(Passes(0.5f, 0.5f, po2));
  EXPECT_TRUE(Passes(0.25f, 0.5f, po2));
  EXPECT_TRUE(Passes(1.0f, 0.5f, po2));
  EXPECT_FALSE(Passes(2.0f, 0.5f, po2));
  EXPECT_FALSE(Passes(0.500001f, 0.5f, po2)) << "not a power of two, however close";
  EXPECT_FALSE(Passes(-0.5f, 0.5f, po2));
}

// "units": the recorded value is known to be off, so equal values fail.
TEST(Compare, UnitsTakeNeighboursButNotTheValue) {
  const Tolerance one{.kind = Tolerance::Kind::kUnits, .value = 1};
  const auto check = [&](float got, float want) {
    return Compare(Array::Of<float>({2.0f, got}, {2}), Array::Of<float>({2.0f, want}, {2}), one);
  };
  EXPECT_EQ(check(1.0f, 1.00000012f), std::nullopt);
  EXPECT_EQ(check(0.99999994f, 1.0f), std::nullopt) << "across a power of two";
  EXPECT_THAT(*check(1.0f, 1.00000024f), HasSubstr("[1]: got 1, want 1.000000238"));
  EXPECT_EQ(*check(1.0f, 1.0f), "is as recorded, but listed as some units off");
  EXPECT_NE(check(1e-45f, -1e-45f), std::nullopt) << "two units, across zero";
  EXPECT_NE(check(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()), std::nullopt);
}

TEST(CountSignedZeros, CountsZerosOfTheOtherSign) {
  const Array want = Array::Of<float>({0.0f, -0.0f, -0.0f, 1.0f}, {4});
  const Array got = Array::Of<float>({-0.0f, 0.0f, -0.0f, -1.0f}, {4});
  EXPECT_EQ(CountSignedZeros(got, want), 2);
  EXPECT_EQ(CountSignedZeros(want, want), 0);
  EXPECT_EQ(CountSignedZeros(Cast(got, DType::kBF16), Cast(want, DType::kBF16)), 2);
  EXPECT_EQ(CountSignedZeros(Array::Of<int8_t>({0}, {1}), Array::Of<int8_t>({0}, {1})), 0);
}

TEST(Compare, InfoIsNotCompared) {
  const Tolerance info{.kind = Tolerance::Kind::kInfo};
  EXPECT_EQ(Compare(F32({1}), Array::Zeros(DType::kS8, {2, 3}), info), std::nullopt);
}

// Test vectors of FIPS 180-4, and lengths around the padding's edge (checked with sha256sum).
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(Sha256Hex(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(Sha256Hex(std::string(56, 'a')), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(Sha256Hex(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

}  // namespace
}  // namespace aqt::golden
