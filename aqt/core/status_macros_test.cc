#include "aqt/core/status_macros.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

// Two uses on one line, as in a caller's macro or a lambda.
absl::StatusOr<int> SumOfHalves(int x, int y) {
  // clang-format off
  AQT_ASSIGN_OR_RETURN(const int a, Half(x)); AQT_ASSIGN_OR_RETURN(const int b, Half(y));
  // clang-format on
  return a + b;
}

TEST(AssignOrReturn, TwiceOnALine) {
  EXPECT_EQ(*SumOfHalves(4, 6), 5);
  EXPECT_EQ(SumOfHalves(3, 6).status(), absl::InvalidArgumentError("odd"));
  EXPECT_EQ(SumOfHalves(4, 5).status(), absl::InvalidArgumentError("odd"));
}

TEST(Annotate, PutsTheContextFirst) {
  EXPECT_EQ(Annotate(absl::NotFoundError("no x"), "file"), absl::NotFoundError("file: no x"));
  EXPECT_EQ(Annotate(absl::OkStatus(), "file"), absl::OkStatus());
}

}  // namespace
}  // namespace aqt
