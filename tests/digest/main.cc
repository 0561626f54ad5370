// Prints digests of random contractions.
//
//   bazel run //tests/digest:print                 the lines of digests.txt
//   bazel run //tests/digest:print -- einsum/0     the cases of these groups: words, and the hash of each field

#include <cstdint>
#include <iostream>
#include <set>
#include <string>

#include "aqt/core/machine/target.h"
#include "tests/digest/cases.h"
#include "tests/digest/digest.h"

int main(int argc, char** argv) {
  std::set<std::string> groups(argv + 1, argv + argc);
  const bool details = !groups.empty();
  if (!details && (!aqt::kernels::IsSupported(aqt::kernels::Target::kAmx) ||
                   !aqt::kernels::IsSupported(aqt::kernels::Target::kAvx512Bf16))) {
    std::cerr << "print: this machine lacks amx or avx512_bf16; the lines will lack digests\n";
  }
  bool good = true;
  for (const aqt::digest::Kind& kind : aqt::digest::Kinds()) {
    for (int64_t group = 0; group < kind.num_groups; ++group) {
      if (details && groups.erase(aqt::digest::GroupName(kind, group)) == 0) continue;
      const aqt::digest::GroupDigest digest = aqt::digest::ComputeDigest(kind, group, details ? &std::cout : nullptr);
      if (!details) std::cout << digest.ToString() << "\n";
      for (const std::string& problem : digest.problems) std::cerr << problem << "\n";
      good = good && digest.problems.empty();
    }
  }
  for (const std::string& group : groups) std::cerr << "print: there is no group " << group << "\n";
  return good && groups.empty() ? 0 : 1;
}
