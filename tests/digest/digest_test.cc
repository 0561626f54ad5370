// Notices any changed bit: random contractions of all kinds, hashed in groups, against the digests in digests.txt.
//
// What is hashed of a case: the code with which Make refused a configuration, outputs, gradients, statistics after each
// step, sizes and contents of residuals, prepared operands, what an observer or a product of the user's sees.
// Two kinds of fields (docs/bits.md):
//   Level 1   the same everywhere: one digest, "all". The products among them are those of integers in s32.
//   Level 2   the same on one SIMD target (sums of floats): one digest per target.
// Each case runs on every target of this machine, on the calling thread and with 2 and 7 threads, with equal results.
//
// When a digest changes:
//   1. If no bit was meant to change, it is a defect. `bazel run //tests/digest:print -- GROUP > after.txt`, the same
//      on the tree before the change, and `diff` names the cases and the fields.
//   2. If bits were meant to change, `bazel run //tests/digest:print > tests/digest/digests.txt` on a machine with all
//      targets, and the commit says which groups changed, and why. A change of Level 1 breaks models that were trained
//      with the old bits: it needs a line in CHANGELOG.md.
// Draws never change (draw.h); what is new gets groups of its own, at the end of Kinds() or of a kind's.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/digest/cases.h"
#include "tests/digest/digest.h"

namespace aqt::digest {
namespace {

// Group -> "refused", "all", target -> value.
std::map<std::string, std::map<std::string, std::string>> ReadDigests() {
  std::map<std::string, std::map<std::string, std::string>> digests;
  std::ifstream file("tests/digest/digests.txt");
  EXPECT_TRUE(file.good());
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    std::map<std::string, std::string>& values = digests[words[0]];
    for (size_t i = 1; i < words.size(); ++i)
      values.insert(std::pair<std::string, std::string>(absl::StrSplit(words[i], '=')));
  }
  return digests;
}

struct Group {
  const Kind* kind;
  int64_t index;
  friend std::ostream& operator<<(std::ostream& os, const Group& group) {
    return os << GroupName(*group.kind, group.index);
  }
};

std::vector<Group> AllGroups() {
  std::vector<Group> groups;
  for (const Kind& kind : Kinds()) {
    for (int64_t i = 0; i < kind.num_groups; ++i) groups.push_back({&kind, i});
  }
  return groups;
}

class DigestTest : public ::testing::TestWithParam<Group> {};

TEST_P(DigestTest, IsUnchanged) {
  const GroupDigest digest = ComputeDigest(*GetParam().kind, GetParam().index);
  EXPECT_TRUE(digest.problems.empty()) << absl::StrJoin(digest.problems, "\n");
  const auto committed = ReadDigests();
  const auto at = committed.find(digest.name);
  ASSERT_NE(at, committed.end()) << "no line for " << digest.name;
  // A machine may lack targets of the file.
  const std::vector<std::string> words = absl::StrSplit(digest.ToString(), ' ');
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> value = absl::StrSplit(words[i], '=');
    const auto want = at->second.find(value.first);
    ASSERT_NE(want, at->second.end()) << value.first;
    EXPECT_EQ(value.second, want->second)
        << digest.name << ": " << value.first << " changed. What differs: bazel run //tests/digest:print -- "
        << digest.name << ", before and after";
  }
  EXPECT_LT(digest.refused, kCasesPerGroup / 4);
}

INSTANTIATE_TEST_SUITE_P(Groups, DigestTest, ::testing::ValuesIn(AllGroups()), [](const auto& info) {
  return absl::StrReplaceAll(GroupName(*info.param.kind, info.param.index), {{"/", "_"}});
});

TEST(DigestFile, HasTheGroups) {
  std::set<std::string> in_file, drawn;
  for (const auto& [name, values] : ReadDigests()) {
    in_file.insert(name);
    EXPECT_EQ(values.size(), 10) << name;  // refused, all, eight targets
  }
  for (const Group& group : AllGroups()) drawn.insert(GroupName(*group.kind, group.index));
  EXPECT_EQ(in_file, drawn);
  EXPECT_GE(static_cast<int64_t>(drawn.size()) * kCasesPerGroup, 2000);
}

}  // namespace
}  // namespace aqt::digest
