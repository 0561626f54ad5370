#include "aqt/kernels/elementwise/elementwise.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "aqt/core/dtype.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kMin32 = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();

template <class T>
T Unary1(UnaryKind kind, T x) {
  T out{};
  Unary(kind, kDTypeOf<T>, &x, 1, &out);
  return out;
}

template <class T>
T Binary1(BinaryKind kind, T a, T b) {
  T out{};
  Binary(kind, kDTypeOf<T>, &a, &b, 1, &out);
  return out;
}

template <class T>
bool Compare1(CompareKind kind, T a, T b) {
  bool out = false;
  Compare(kind, kDTypeOf<T>, &a, &b, 1, &out);
  return out;
}

TEST(UnaryTest, Floats) {
  EXPECT_EQ(Unary1(UnaryKind::kNeg, 2.5f), -2.5f);
  EXPECT_TRUE(std::signbit(Unary1(UnaryKind::kNeg, 0.0f)));
  EXPECT_EQ(Unary1(UnaryKind::kAbs, -3.0), 3.0);
  EXPECT_FALSE(std::signbit(Unary1(UnaryKind::kAbs, -0.0f)));
  EXPECT_EQ(Unary1(UnaryKind::kRound, 0.5f), 0.0f);
  EXPECT_EQ(Unary1(UnaryKind::kRound, 1.5f), 2.0f);
  EXPECT_EQ(Unary1(UnaryKind::kRound, 2.5f), 2.0f);
  EXPECT_EQ(Unary1(UnaryKind::kRound, -2.5), -2.0);
  EXPECT_EQ(Unary1(UnaryKind::kRound, 8388609.0f), 8388609.0f);
  EXPECT_EQ(Unary1(UnaryKind::kFloor, -1.25f), -2.0f);
  EXPECT_EQ(Unary1(UnaryKind::kFloor, 1.75), 1.0);
  EXPECT_EQ(Unary1(UnaryKind::kFlush, 0x1p-126f), 0x1p-126f);
  EXPECT_EQ(Unary1(UnaryKind::kFlush, 0x1.fffffcp-127f), 0.0f);
  EXPECT_TRUE(std::signbit(Unary1(UnaryKind::kFlush, -0x1p-149f)));
  EXPECT_EQ(Unary1(UnaryKind::kFlush, kInf), kInf);
  EXPECT_EQ(Unary1(UnaryKind::kExp, 1.0f), 2.7182817f);
  EXPECT_EQ(Unary1(UnaryKind::kExp, 89.0f), kInf);
  EXPECT_EQ(Unary1(UnaryKind::kExp, -200.0f), 0.0f);
  EXPECT_EQ(Unary1(UnaryKind::kLog, 2.0f), 0.6931472f);
  EXPECT_EQ(Unary1(UnaryKind::kLog, 0.0f), -kInf);
  EXPECT_EQ(Unary1(UnaryKind::kCeil, -1.75f), -1.0f);
  EXPECT_TRUE(std::signbit(Unary1(UnaryKind::kCeil, -0.5f)));
  EXPECT_TRUE(std::signbit(Unary1(UnaryKind::kFloor, -0.0f)));
  EXPECT_EQ(Unary1(UnaryKind::kFloor, -0x1p-149f), -1.0f);
  EXPECT_EQ(Unary1(UnaryKind::kSign, -kInf), -1.0f);
  EXPECT_EQ(Unary1(UnaryKind::kSign, 0x1p-1074), 1.0);
  EXPECT_TRUE(std::signbit(Unary1(UnaryKind::kSign, -0.0f)));
  EXPECT_EQ(Unary1(UnaryKind::kSign, -0.0f), 0.0f);
  EXPECT_EQ(Unary1(UnaryKind::kSqrt, 2.0f), 0x1.6a09e6p+0f);
  for (int i = 0; i < kNumUnaryKinds; ++i) {
    const UnaryKind kind = static_cast<UnaryKind>(i);
    if (Takes(kind, DType::kF32)) {
      EXPECT_TRUE(std::isnan(Unary1(kind, kNan))) << ToString(kind);
    }
  }
}

TEST(TakesTest, NamesTheDtypes) {
  EXPECT_TRUE(Takes(UnaryKind::kSign, DType::kS32));
  EXPECT_FALSE(Takes(UnaryKind::kExp, DType::kS32));
  EXPECT_TRUE(Takes(UnaryKind::kNot, DType::kBool));
  EXPECT_FALSE(Takes(UnaryKind::kNot, DType::kS32));
  EXPECT_FALSE(Takes(UnaryKind::kNeg, DType::kBool));
  EXPECT_FALSE(Takes(BinaryKind::kPow, DType::kS32));
  EXPECT_TRUE(Takes(BinaryKind::kOr, DType::kBool));
  EXPECT_FALSE(Takes(BinaryKind::kAdd, DType::kE4M3FN));
}

// For every code of the 16-bit types, the result is that of f32, rounded once.
TEST(UnaryTest, SmallFloatsRoundOnce) {
  for (int i = 0; i < kNumUnaryKinds; ++i) {
    const UnaryKind kind = static_cast<UnaryKind>(i);
    if (!Takes(kind, DType::kF16)) continue;
    for (int code = 0; code < 65536; ++code) {
      const Float16 half{static_cast<uint16_t>(code)};
      const BFloat16 brain{static_cast<uint16_t>(code)};
      const float want_half = Unary1(kind, ToFloat(half)), want_brain = Unary1(kind, ToFloat(brain));
      if (!std::isnan(want_half)) {
        ASSERT_EQ(Unary1(kind, half), RoundToFloat16(want_half)) << code;
      }
      if (!std::isnan(want_brain)) {
        ASSERT_EQ(Unary1(kind, brain), RoundToBFloat16(want_brain)) << code;
      }
    }
  }
}

TEST(UnaryTest, IntegersWrap) {
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kNeg, 5), -5);
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kNeg, kMin32), kMin32);
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kAbs, -7), 7);
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kAbs, kMin32), kMin32);
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kSign, kMin32), -1);
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kSign, 0), 0);
  EXPECT_EQ(Unary1<int32_t>(UnaryKind::kSign, 7), 1);
}

TEST(LogicTest, TruthTables) {
  EXPECT_FALSE(Unary1(UnaryKind::kNot, true));
  EXPECT_TRUE(Unary1(UnaryKind::kNot, false));
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      EXPECT_EQ(Binary1(BinaryKind::kAnd, a, b), a && b);
      EXPECT_EQ(Binary1(BinaryKind::kOr, a, b), a || b);
    }
  }
}

TEST(BinaryTest, Floats) {
  EXPECT_EQ(Binary1(BinaryKind::kAdd, 1.0f, 0x1p-24f), 1.0f);  // ties go to even
  EXPECT_EQ(Binary1(BinaryKind::kSub, 1.0, 3.0), -2.0);
  EXPECT_EQ(Binary1(BinaryKind::kMul, kInf, 2.0f), kInf);
  EXPECT_TRUE(std::isnan(Binary1(BinaryKind::kMul, kInf, 0.0f)));
  EXPECT_EQ(Binary1(BinaryKind::kDiv, 1.0f, 3.0f), 1.0f / 3.0f);
  EXPECT_EQ(Binary1(BinaryKind::kDiv, -1.0f, 0.0f), -kInf);
  EXPECT_EQ(Binary1(BinaryKind::kMul, 0x1p-126f, 0.5f), 0x1p-127f);  // subnormals are kept
}

TEST(BinaryTest, MaxAndMinKnowNanAndSignedZeros) {
  for (bool swap : {false, true}) {
    const auto apply = [&](BinaryKind kind, float a, float b) {
      return swap ? Binary1(kind, b, a) : Binary1(kind, a, b);
    };
    EXPECT_EQ(apply(BinaryKind::kMax, 1, 2), 2);
    EXPECT_EQ(apply(BinaryKind::kMin, 1, 2), 1);
    EXPECT_TRUE(std::isnan(apply(BinaryKind::kMax, kNan, kInf)));
    EXPECT_TRUE(std::isnan(apply(BinaryKind::kMin, kNan, -kInf)));
    EXPECT_FALSE(std::signbit(apply(BinaryKind::kMax, -0.0f, 0.0f)));
    EXPECT_TRUE(std::signbit(apply(BinaryKind::kMin, -0.0f, 0.0f)));
  }
  EXPECT_TRUE(std::signbit(Binary1(BinaryKind::kMax, -0.0f, -0.0f)));
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kMax, kMin32, 3), 3);
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kMin, kMin32, 3), kMin32);
}

TEST(BinaryTest, Integers) {
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kAdd, kMax32, 1), kMin32);
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kSub, kMin32, 1), kMax32);
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kMul, 65536, 65536), 0);
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kDiv, -7, 2), -3);
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kDiv, 7, 0), -1);
  EXPECT_EQ(Binary1<int32_t>(BinaryKind::kDiv, kMin32, -1), kMin32);
}

TEST(BinaryTest, SmallFloatsRoundOnce) {
  const BFloat16 one = RoundToBFloat16(1.0f), tiny = RoundToBFloat16(0x1p-9f), big = RoundToBFloat16(3e38f);
  EXPECT_EQ(Binary1(BinaryKind::kAdd, one, tiny), one);
  EXPECT_EQ(ToFloat(Binary1(BinaryKind::kMul, big, RoundToBFloat16(2.0f))), kInf);
  const Float16 half = RoundToFloat16(60000.0f);
  EXPECT_EQ(ToFloat(Binary1(BinaryKind::kAdd, half, half)), kInf);
  EXPECT_EQ(ToFloat(Binary1(BinaryKind::kDiv, RoundToFloat16(1.0f), RoundToFloat16(3.0f))), 0x1.554p-2f);
}

TEST(CompareTest, FollowsIeee) {
  struct Case {
    CompareKind kind;
    bool less, equal, greater, nan;
  };
  for (const Case& c :
       {Case{CompareKind::kEq, false, true, false, false}, Case{CompareKind::kNe, true, false, true, true},
        Case{CompareKind::kLt, true, false, false, false}, Case{CompareKind::kLe, true, true, false, false},
        Case{CompareKind::kGt, false, false, true, false}, Case{CompareKind::kGe, false, true, true, false}}) {
    EXPECT_EQ(Compare1(c.kind, 1.0f, 2.0f), c.less) << ToString(c.kind);
    EXPECT_EQ(Compare1(c.kind, -0.0, 0.0), c.equal) << ToString(c.kind);
    EXPECT_EQ(Compare1<int32_t>(c.kind, 5, -5), c.greater) << ToString(c.kind);
    EXPECT_EQ(Compare1(c.kind, kNan, kNan), c.nan) << ToString(c.kind);
    EXPECT_EQ(Compare1(c.kind, false, true), c.less) << ToString(c.kind);
    EXPECT_EQ(Compare1(c.kind, RoundToBFloat16(2.0f), RoundToBFloat16(1.0f)), c.greater) << ToString(c.kind);
  }
}

TEST(SelectTest, PicksElementsOfEverySize) {
  const bool pred[] = {true, false, true};
  const double a[] = {1, 2, 3}, b[] = {4, 5, 6};
  double out[3];
  Select(DType::kF64, pred, a, b, 3, out);
  EXPECT_EQ(std::vector<double>(out, out + 3), (std::vector<double>{1, 5, 3}));
  const int8_t c[] = {1, 2, 3}, d[] = {4, 5, 6};
  int8_t narrow[3];
  Select(DType::kS8, pred, c, d, 3, narrow);
  EXPECT_EQ(std::vector<int>(narrow, narrow + 3), (std::vector<int>{1, 5, 3}));
}

template <class T>
T Clamp1(T low, T x, T high) {
  T out{};
  Clamp(kDTypeOf<T>, &low, &x, &high, 1, &out);
  return out;
}

TEST(ClampTest, IsMinOfMax) {
  EXPECT_EQ(Clamp1(-1.0f, 3.0f, 2.0f), 2.0f);
  EXPECT_EQ(Clamp1(-1.0, -3.0, 2.0), -1.0);
  EXPECT_EQ(Clamp1<int32_t>(kMin32, 7, 8), 7);
  EXPECT_EQ(Clamp1(3.0f, 1.0f, 2.0f), 2.0f);  // the ends are in the wrong order
  EXPECT_FALSE(std::signbit(Clamp1(0.0f, -0.0f, 1.0f)));
  EXPECT_TRUE(std::signbit(Clamp1(-1.0f, 0.0f, -0.0f)));
  EXPECT_TRUE(std::isnan(Clamp1(kNan, 1.0f, 2.0f)));
  EXPECT_TRUE(std::isnan(Clamp1(0.0f, kNan, 2.0f)));
  EXPECT_TRUE(std::isnan(Clamp1(0.0f, 1.0f, kNan)));
  EXPECT_EQ(ToFloat(Clamp1(RoundToFloat16(0), RoundToFloat16(5), RoundToFloat16(4))), 4.0f);
}

template <class T>
bool IsFinite1(T x) {
  bool out;
  IsFinite(kDTypeOf<T>, &x, 1, &out);
  return out;
}

TEST(IsFiniteTest, KnowsEveryF16AndBf16) {
  for (int code = 0; code < 65536; ++code) {
    const Float16 half{static_cast<uint16_t>(code)};
    const BFloat16 brain{static_cast<uint16_t>(code)};
    ASSERT_EQ(IsFinite1(half), std::isfinite(ToFloat(half))) << code;
    ASSERT_EQ(IsFinite1(brain), std::isfinite(ToFloat(brain))) << code;
  }
  EXPECT_TRUE(IsFinite1(std::numeric_limits<float>::max()));
  EXPECT_FALSE(IsFinite1(-kInf));
  EXPECT_FALSE(IsFinite1(kNan));
  EXPECT_TRUE(IsFinite1(-0x1p-1074));
  EXPECT_FALSE(IsFinite1(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(IsFinite1(kMin32));
}

template <class T>
T IntegerPow1(T x, int64_t exponent) {
  T out{};
  IntegerPow(kDTypeOf<T>, exponent, &x, 1, &out);
  return out;
}

TEST(IntegerPowTest, MultipliesInTheStatedOrder) {
  const float x = 1.1f, square = x * x, fourth = square * square;
  EXPECT_EQ(IntegerPow1(x, 0), 1.0f);
  EXPECT_EQ(IntegerPow1(x, 1), x);
  EXPECT_EQ(IntegerPow1(x, 3), x * square);
  EXPECT_EQ(IntegerPow1(x, 7), x * square * fourth);
  EXPECT_EQ(IntegerPow1(x, -6), 1 / (square * fourth));
  EXPECT_EQ(IntegerPow1(kNan, 0), 1.0f);
  EXPECT_EQ(IntegerPow1(-0.0f, -3), -kInf);
  EXPECT_EQ(IntegerPow1(2.0, -1074), 0.0);  // 1 / infinity
  EXPECT_EQ(IntegerPow1(-2.0, std::numeric_limits<int64_t>::min()), 0.0);
  EXPECT_EQ(IntegerPow1<int32_t>(-3, 5), -243);
  EXPECT_EQ(IntegerPow1<int32_t>(65537, 2), 131073);  // modulo 2^32
  const Float16 half = RoundToFloat16(1.1f);
  EXPECT_EQ(IntegerPow1(half, 3), RoundToFloat16(ToFloat(half) * (ToFloat(half) * ToFloat(half))));
}

template <class T>
T Reduced(T x, Precision precision) {
  T out{};
  ReducePrecision(kDTypeOf<T>, precision, &x, 1, &out);
  return out;
}

// The definition: the mantissa is rounded as if the exponent were unbounded, then the exponent is checked.
double ReducedReference(double x, const Precision& precision, int mantissa_of_dtype) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const int mantissa = std::min(precision.mantissa_bits, mantissa_of_dtype);
  int exponent;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, exponent - 1 - mantissa), scaled = x / unit;
  double rounded = std::nearbyint(scaled) * unit;
  // With no mantissa bits a tie goes to the even biased exponent; the bias of a double is odd like all others.
  if (mantissa == 0 && std::fabs(scaled) == 1.5) rounded = std::copysign((exponent - 1) % 2 == 0 ? 2 : 1, x) * unit;
  const int reach = (1 << (precision.exponent_bits - 1)) - 1;
  if (std::fabs(rounded) >= std::ldexp(1.0, reach + 1))
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  if (std::fabs(rounded) < std::ldexp(1.0, 1 - reach)) return std::copysign(0.0, x);
  return rounded;
}

// Every normal code of the 16-bit types, for all formats narrower than the type.
TEST(ReducePrecisionTest, AgreesWithTheReference) {
  for (int exponent_bits = 1; exponent_bits <= 7; ++exponent_bits) {
    for (int mantissa_bits = 0; mantissa_bits <= 11; ++mantissa_bits) {
      const Precision precision{exponent_bits, mantissa_bits};
      for (int code = 0; code < 65536; code += exponent_bits == 4 ? 1 : 7) {
        const BFloat16 brain{static_cast<uint16_t>(code)};
        const Float16 half{static_cast<uint16_t>(code)};
        if (!std::isnan(ToFloat(brain)) && (code & 0x7f80) != 0) {
          ASSERT_EQ(ToFloat(Reduced(brain, precision)), ReducedReference(ToFloat(brain), precision, 7))
              << code << " " << exponent_bits << " " << mantissa_bits;
        }
        if (exponent_bits < 5 && !std::isnan(ToFloat(half)) && (code & 0x7c00) != 0) {
          ASSERT_EQ(ToFloat(Reduced(half, precision)), ReducedReference(ToFloat(half), precision, 10))
              << code << " " << exponent_bits << " " << mantissa_bits;
        }
      }
    }
  }
}

// Results recorded from XLA on CPU.
TEST(ReducePrecisionTest, KnownNumbers) {
  const Precision e4m3{4, 3}, e5m2{5, 2};
  EXPECT_EQ(Reduced(248.0f, e4m3), kInf);
  EXPECT_EQ(Reduced(247.9f, e4m3), 240.0f);
  EXPECT_EQ(Reduced(0.0156f, e4m3), 0.015625f);
  EXPECT_EQ(Reduced(0x1p-7f, e4m3), 0.0f);
  EXPECT_TRUE(std::signbit(Reduced(-1e-9f, e4m3)));
  EXPECT_EQ(Reduced(-300.0, e4m3), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(Reduced(61440.0f, e5m2), kInf);
  EXPECT_EQ(Reduced(61439.0f, e5m2), 57344.0f);
  EXPECT_TRUE(std::isnan(Reduced(kNan, {1, 0})));
  EXPECT_TRUE(std::isnan(Reduced(__builtin_bit_cast(float, 0x7f800001u), {8, 0})));
  EXPECT_EQ(Reduced(1.5f, {8, 0}), 2.0f);
  EXPECT_EQ(Reduced(0.75f, {8, 0}), 0.5f);
  EXPECT_EQ(Reduced(1.3f, {9, 30}), 1.3f);
  // Subnormal numbers with all exponent bits.
  EXPECT_EQ(Reduced(1e-40f, {8, 1}), 0.0f);
  EXPECT_EQ(Reduced(3e-39f, {8, 1}), 0x1p-127f);
  EXPECT_EQ(ToFloat(Reduced(RoundToFloat16(3e-7f), {5, 1})), 0.0f);
  EXPECT_EQ(ToFloat(Reduced(RoundToFloat16(6e-5f), {8, 1})), 0x1p-14f);
  EXPECT_EQ(ToFloat(Reduced(RoundToFloat16(65504), {8, 1})), kInf);
  EXPECT_EQ(ToFloat(Reduced(RoundToFloat16(6.2e-5f), e4m3)), 0.0f);
}

TEST(ElementwiseTest, NothingAndInPlace) {
  Unary(UnaryKind::kExp, DType::kF32, nullptr, 0, nullptr);
  Binary(BinaryKind::kAdd, DType::kBF16, nullptr, nullptr, 0, nullptr);
  std::vector<float> x(37, 3.0f);
  Binary(BinaryKind::kMul, DType::kF32, x.data(), x.data(), 37, x.data());
  EXPECT_EQ(x, std::vector<float>(37, 9.0f));
}

}  // namespace
}  // namespace aqt::kernels
