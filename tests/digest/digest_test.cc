// Notices any changed bit: random contractions of all kinds, hashed in groups, against the files in digests/.
//
// What is hashed of a case: the code with which Make refused a configuration, outputs, gradients, statistics after each
// step, sizes and contents of residuals, prepared operands, what an observer or a product of the user's sees.
// Two kinds of fields (docs/bits.md):
//   Level 1   the same everywhere: everywhere.txt. The products among them are those of integers in s32.
//   Level 2   the same on one SIMD target (sums of floats): a file for each set of targets whose bits are equal, named
//             after the weakest of the set. avx2.txt is also for avx_vnni, avx512 and avx512_vnni.
// Each case runs on every target of this machine, on the calling thread and with 2 and 7 threads, with equal results.
// A file whose targets this machine lacks is not compared, and the test of the target is skipped.
//
// When a digest changes:
//   1. If no bit was meant to change, it is a defect. `bazel run //tests/digest:print -- GROUP > after.txt`, the same
//      on the tree before the change, and `diff` names the cases and the fields.
//   2. If bits were meant to change, `bazel run //tests/digest:print -- --write $PWD/tests/digest/digests` writes the
//      files of the targets that this machine has, and the commit says which groups changed, and why. Another machine
//      writes the others. A change of Level 1 breaks models that were trained with the old bits: it needs a line in
//      CHANGELOG.md.
// Draws never change (draw.h); what is new gets groups of its own, at the end of Kinds() or of a kind's.

#include <cstdint>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/machine/target.h"
#include "tests/digest/cases.h"
#include "tests/digest/digest.h"

namespace aqt::digest {
namespace {

// Group -> its entry in digests/NAME.txt.
std::map<std::string, std::string> ReadDigests(absl::string_view name) {
  std::map<std::string, std::string> digests;
  std::ifstream file(absl::StrCat("tests/digest/digests/", name, ".txt"));
  EXPECT_TRUE(file.good()) << name;
  for (std::string line; std::getline(file, line);) {
    const bool is_new =
        digests.insert(std::pair<std::string, std::string>(absl::StrSplit(line, absl::MaxSplits(' ', 1)))).second;
    EXPECT_TRUE(is_new) << name << ": " << line;
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
  for (const auto& [file, entry] : digest.Entries()) {
    EXPECT_EQ(entry, ReadDigests(file)[digest.name])
        << digest.name << ": " << file << " changed. What differs: bazel run //tests/digest:print -- " << digest.name
        << ", before and after";
  }
  EXPECT_LT(digest.refused, kCasesPerGroup / 4);
}

INSTANTIATE_TEST_SUITE_P(Groups, DigestTest, ::testing::ValuesIn(AllGroups()), [](const auto& info) {
  return absl::StrReplaceAll(GroupName(*info.param.kind, info.param.index), {{"/", "_"}});
});

TEST(DigestFiles, HaveTheGroups) {
  std::set<std::string> drawn;
  for (const Group& group : AllGroups()) drawn.insert(GroupName(*group.kind, group.index));
  EXPECT_GE(static_cast<int64_t>(drawn.size()) * kCasesPerGroup, 2000);
  std::vector<absl::string_view> files = {kEverywhere};
  for (const EqualTargets& equal : AllEqualTargets()) files.push_back(equal.name);
  for (const absl::string_view file : files) {
    std::set<std::string> in_file;
    for (const auto& [name, entry] : ReadDigests(file)) in_file.insert(name);
    EXPECT_EQ(in_file, drawn) << file;
  }
}

// Says which targets were not compared.
class DigestTarget : public ::testing::TestWithParam<kernels::Target> {};

TEST_P(DigestTarget, IsOnThisMachine) {
  if (!kernels::IsSupported(GetParam())) GTEST_SKIP() << "this machine has no " << GetParam();
  EXPECT_TRUE(absl::c_linear_search(kernels::SupportedTargets(), GetParam()));
}

std::vector<kernels::Target> AllTargets() {
  std::vector<kernels::Target> targets;
  for (const EqualTargets& equal : AllEqualTargets()) {
    targets.insert(targets.end(), equal.targets.begin(), equal.targets.end());
  }
  return targets;
}

INSTANTIATE_TEST_SUITE_P(Targets, DigestTarget, ::testing::ValuesIn(AllTargets()),
                         [](const auto& info) { return kernels::ToString(info.param); });

TEST(EqualTargets, HaveEachTargetOfThisMachineOnce) {
  for (const kernels::Target target : kernels::SupportedTargets()) {
    EXPECT_EQ(absl::c_count(AllTargets(), target), 1) << target;
  }
  for (const EqualTargets& equal : AllEqualTargets()) {
    EXPECT_EQ(equal.name, kernels::ToString(equal.targets.front()));
    for (const kernels::Target target : equal.targets) EXPECT_TRUE(target.Includes(equal.targets.front())) << target;
  }
}

}  // namespace
}  // namespace aqt::digest
