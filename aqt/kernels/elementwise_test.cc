#include "aqt/kernels/elementwise.h"

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
  for (UnaryKind kind : {UnaryKind::kNeg, UnaryKind::kAbs, UnaryKind::kRound, UnaryKind::kFloor, UnaryKind::kFlush,
                         UnaryKind::kExp, UnaryKind::kLog}) {
    EXPECT_TRUE(std::isnan(Unary1(kind, kNan))) << ToString(kind);
  }
}

// For every code of the 16-bit types, the result is that of f32, rounded once.
TEST(UnaryTest, SmallFloatsRoundOnce) {
  for (UnaryKind kind : {UnaryKind::kNeg, UnaryKind::kAbs, UnaryKind::kRound, UnaryKind::kFloor, UnaryKind::kFlush,
                         UnaryKind::kExp, UnaryKind::kLog}) {
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
}

TEST(BinaryTest, Floats) {
  EXPECT_EQ(Binary1(BinaryKind::kAdd, 1.0f, 0x1p-24f), 1.0f);  // a tie goes to even
  EXPECT_EQ(Binary1(BinaryKind::kSub, 1.0, 3.0), -2.0);
  EXPECT_EQ(Binary1(BinaryKind::kMul, kInf, 2.0f), kInf);
  EXPECT_TRUE(std::isnan(Binary1(BinaryKind::kMul, kInf, 0.0f)));
  EXPECT_EQ(Binary1(BinaryKind::kDiv, 1.0f, 3.0f), 1.0f / 3.0f);
  EXPECT_EQ(Binary1(BinaryKind::kDiv, -1.0f, 0.0f), -kInf);
  EXPECT_EQ(Binary1(BinaryKind::kMul, 0x1p-126f, 0.5f), 0x1p-127f);  // subnormals stay
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

TEST(ElementwiseTest, NothingAndInPlace) {
  Unary(UnaryKind::kExp, DType::kF32, nullptr, 0, nullptr);
  Binary(BinaryKind::kAdd, DType::kBF16, nullptr, nullptr, 0, nullptr);
  std::vector<float> x(37, 3.0f);
  Binary(BinaryKind::kMul, DType::kF32, x.data(), x.data(), 37, x.data());
  EXPECT_EQ(x, std::vector<float>(37, 9.0f));
}

}  // namespace
}  // namespace aqt::kernels
