#include "aqt/core/checked_extents.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/shape.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();

// Compares with 128-bit arithmetic at the edges.
TEST(CheckedInt, KnowsWhatFits) {
  const std::vector<int64_t> edges = {kMin,
                                      kMin + 1,
                                      -(int64_t{1} << 62),
                                      -3,
                                      -1,
                                      0,
                                      1,
                                      2,
                                      3,
                                      int64_t{1} << 31,
                                      int64_t{1} << 32,
                                      (int64_t{1} << 62) - 1,
                                      int64_t{1} << 62,
                                      kMax - 1,
                                      kMax};
  for (const int64_t a : edges) {
    for (const int64_t b : edges) {
      const auto check = [&](const char* op, CheckedInt got, __int128 want) {
        const bool fits = want >= kMin && want <= kMax;
        EXPECT_EQ(got.ok(), fits) << a << op << b;
        if (fits && got.ok()) {
          EXPECT_EQ(got.value(), static_cast<int64_t>(want)) << a << op << b;
        }
      };
      check("+", CheckedInt(a) + b, static_cast<__int128>(a) + b);
      check("-", CheckedInt(a) - b, static_cast<__int128>(a) - b);
      check("*", CheckedInt(a) * b, static_cast<__int128>(a) * b);
    }
  }
}

TEST(CheckedInt, StaysWrong) {
  const CheckedInt wrong = CheckedInt(kMax) + 1;
  EXPECT_FALSE((wrong - 1).ok());
  EXPECT_FALSE((wrong * 0).ok());
  EXPECT_FALSE((CheckedInt(0) * wrong).ok());
  EXPECT_FALSE((1 + wrong).ok());
}

TEST(CheckShape, Edges) {
  const int64_t most = kMax / 8;
  EXPECT_THAT(CheckShape({}), IsOk());
  EXPECT_THAT(CheckShape({most}), IsOk());
  EXPECT_THAT(CheckShape({0, most}), IsOk());
  EXPECT_THAT(CheckShape({int64_t{1} << 30, int64_t{1} << 29}), IsOk());
  for (const Shape& shape : {Shape{most + 1}, Shape{kMax}, Shape{int64_t{1} << 30, int64_t{1} << 30},
                             Shape{int64_t{1} << 40, int64_t{1} << 40}, Shape{int64_t{1} << 32, int64_t{1} << 32},
                             Shape{int64_t{1} << 62, 0}, Shape{0, int64_t{1} << 40, int64_t{1} << 40}}) {
    EXPECT_THAT(CheckShape(shape), FailsWith(absl::StatusCode::kInvalidArgument,
                                             {shape.ToString(), "more elements than fit into memory"}));
  }
  for (const Shape& shape : {Shape{-1}, Shape{0, -1}, Shape{-1, -1}, Shape{kMin}}) {
    EXPECT_THAT(CheckShape(shape),
                FailsWith(absl::StatusCode::kInvalidArgument, {shape.ToString(), "negative extent"}));
  }
}

// The count itself is checked too: an overflow that was not caught earlier must not become a small allocation.
TEST(ShapeDeathTest, NumElementsAbortsOnOverflow) {
  EXPECT_EQ((Shape{int64_t{1} << 40, int64_t{1} << 40, 0}).num_elements(), 0);
  EXPECT_EQ((Shape{kMax / 8}).num_elements(), kMax / 8);
  EXPECT_DEATH((Shape{int64_t{1} << 32, int64_t{1} << 32}).num_elements(), "num_elements");
  EXPECT_DEATH((Shape{kMax / 8 + 1}).num_elements(), "num_elements");
  // The strides of an empty shape are meaningless, but computing them is not undefined behaviour.
  EXPECT_EQ(DenseStrides({0, int64_t{1} << 40, int64_t{1} << 40}).size(), 3u);
}

}  // namespace
}  // namespace aqt
