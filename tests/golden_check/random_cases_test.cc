// The recorded random configurations (tests/golden/random/README.md): results, refusals, and default differences.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/golden_check/golden_case.h"
#include "tests/golden_check/golden_check.h"
#include "tests/golden_check/golden_check_testing.h"
#include "tests/golden_check/manifest.h"

namespace aqt::golden {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRandom[] = "tests/golden/random", kFixed[] = "tests/golden/random/fixed.json";
constexpr char kSums[] = "tests/golden/random/sums";

TEST(RandomCases, AllPass) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kRandom), "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("\npassed 200, failed 0, not supported 0\n"));
}

// Sums of rows, tensors without elements, masks of other dtypes, groups of any sizes.
TEST(RandomCases, EdgesPass) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kRandom, "/edges"), "--verbose"});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("\npassed 140, failed 0, not supported 0\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("ACCEPTED ")));
}

// docs/differences-from-aqt.md says why each of these is accepted.
TEST(RandomCases, ProgramsPassWithoutPlans) {
  for (const char* way : {"program", "prepared"}) {
    const MainResult result = Main({absl::StrCat("--golden_dir=", kRandom), absl::StrCat("--ways=", way)});
    EXPECT_THAT(result.out, HasSubstr("\npassed 193, failed 0, not supported 0\n")) << way;
    EXPECT_THAT(result.out, HasSubstr("\nleft out, without these ways: 7\n")) << way;
  }
}

TEST(RandomCases, WhatTheOriginalRefusesIsRefused) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kRandom), "--verbose"});
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    EXPECT_FALSE(absl::StartsWith(line, "ACCEPTED ")) << line;
  }
  EXPECT_THAT(result.out, HasSubstr("\nrefused by the original: refused "));
}

// Programs give the results of plans, except for the tensors of operands that cannot be stored.
TEST(RandomCases, ProgramsRefuseOnlyToStore) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kRandom)});
  int refusals = 0;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    if (!absl::StartsWith(line, "REFUSED ")) continue;
    ++refusals;
    EXPECT_THAT(std::string(line),
                AnyOf(EndsWith("an operand with a calibration bias cannot be quantized ahead of time"),
                      EndsWith("with mid alphas a quantized operand depends on the other one")));
  }
  EXPECT_GE(refusals, 10);
  EXPECT_LE(refusals, 60);
}

TEST(RandomCases, DefaultsDifferAsListed) {
  const std::string dir = absl::StrCat("--golden_dir=", kRandom);
  const MainResult result = Main({dir, "--compat=default", absl::StrCat("--fixed=", kFixed)});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_EQ(Main({dir, "--compat=default"}).code, 1) << "without the list";
}

TEST(RandomSums, AllPass) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kSums)});
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("\npassed 60, failed 0, not supported 0\n"));
}

// Otherwise the cases would not show the effect of Compat::Original(). The results are not listed, because some belong
// to Level 2 (docs/bits.md).
TEST(RandomSums, LettersOfOneOperandDifferByDefault) {
  const MainResult result = Main({absl::StrCat("--golden_dir=", kSums), "--compat=default"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("FAILED einsum."));
}

TEST(Refused, OursIsAskedToo) {
  const absl::StatusOr<GoldenSet> set = LoadGolden(io::LocalFileSystem(), kRandom, {});
  ASSERT_TRUE(set.ok()) << set.status();
  int refused = 0;
  for (const GoldenFamily& family : set->families) {
    for (const RefusedCase& refused_case : family.refused) {
      EXPECT_FALSE(refused_case.error.empty());
      refused += !AcceptedIn(refused_case.golden_case, set->semantics).has_value();
    }
    // A case that the original accepts is not refused.
    ASSERT_FALSE(family.cases.empty());
    EXPECT_TRUE(AcceptedIn(family.cases[0], set->semantics).has_value()) << family.cases[0].name;
  }
  EXPECT_GE(refused, 10);
}

TEST(SignedZeros, TheTotalIsPrinted) {
  const std::string dir = absl::StrCat("--golden_dir=", kRandom);
  EXPECT_THAT(Main({dir, "--signed_zero"}).out, HasSubstr("\nzeros of the other sign: "));
  EXPECT_THAT(Main({dir}).out, Not(HasSubstr("zeros of the other sign")));
}

}  // namespace
}  // namespace aqt::golden
