#include "serving/plan/entry_index.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "re2/re2.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EntryIndexTest, NamesAndSimplePatternsAreFoundByHashing) {
  EntryIndex index;
  index.AddName("a.b");
  index.AddFullPattern("a.b");
  index.AddFullPattern("a\\.b");
  index.AddPrefixPattern("^a\\.b$");
  index.AddPrefixPattern("a.");
  index.AddAny();
  index.AddFullPattern("a.*");  // not a simple pattern: always a candidate
  index.AddPrefixPattern("a\\$");
  EXPECT_THAT(index.Candidates("a.b", ""), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(index.Candidates("", "a.b"), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(index.Candidates("a_b", "x"), ElementsAre(1, 4, 5, 6));
  EXPECT_THAT(index.Candidates("a.b.c", "x"), ElementsAre(4, 5, 6));
  EXPECT_THAT(index.Candidates("a$b", "x"), ElementsAre(1, 4, 5, 6, 7));
  EXPECT_THAT(index.Candidates("x", ""), ElementsAre(5, 6));
  EXPECT_EQ(index.Candidates("a\u00e9", "").size(), 8u) << "\".\" may match several bytes";
  EXPECT_EQ(index.All().size(), 8u);
  EXPECT_THAT(EntryIndex().Candidates("a", "b"), IsEmpty());
}

// Every entry that matches is a candidate.
TEST(EntryIndexTest, LeavesNoMatchOut) {
  std::mt19937 rng(1);
  const std::vector<std::string> pieces = {"a", "b",   ".",      "\\.", "\\$", "$",     "^",
                                           "-", "\\-", "\u00e9", "\\d", "+",   "(?i)a", "(\\.|$)"};
  const auto random_pattern = [&] {
    std::string pattern;
    for (size_t n = rng() % 5; n > 0; --n) pattern += pieces[rng() % pieces.size()];
    return pattern;
  };
  const std::vector<std::string> characters = {"a", "b", ".", "$", "A", "-", "1", "\n", "\u00e9"};
  int matches = 0;
  for (int round = 0; round < 2000; ++round) {
    EntryIndex index;
    std::vector<std::string> patterns;
    for (int i = 0; i < 4; ++i) {
      patterns.push_back(random_pattern());
      if (i % 2 == 0) index.AddFullPattern(patterns.back());
      else index.AddPrefixPattern(patterns.back());
    }
    std::string name;
    for (size_t n = rng() % 5; n > 0; --n) name += characters[rng() % characters.size()];
    const std::vector<size_t> candidates = index.Candidates(name, "");
    for (size_t i = 0; i < patterns.size(); ++i) {
      const RE2 re(patterns[i], RE2::Quiet);
      const RE2::Anchor anchor = i % 2 == 0 ? RE2::ANCHOR_BOTH : RE2::ANCHOR_START;
      if (!re.ok() || !re.Match(name, 0, name.size(), anchor, nullptr, 0)) continue;
      ++matches;
      EXPECT_THAT(candidates, Contains(i)) << patterns[i] << " matches " << name;
    }
  }
  EXPECT_GT(matches, 500);
}

}  // namespace
}  // namespace aqt::serving
