// Prints or writes digests of random contractions.
//
//   bazel run //tests/digest:print -- einsum/0         prints the cases of these groups, and the hash of each field
//   bazel run //tests/digest:print -- --write FOLDER   writes the files of digests that this machine can compute

#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/digest/cases.h"
#include "tests/digest/digest.h"

namespace aqt::digest {
namespace {

// Whether there are none.
bool Report(const GroupDigest& digest) {
  for (const std::string& problem : digest.problems) std::cerr << problem << "\n";
  return digest.problems.empty();
}

int PrintGroups(std::set<std::string> names) {
  bool good = true;
  for (const Kind& kind : Kinds()) {
    for (int64_t group = 0; group < kind.num_groups; ++group) {
      if (names.erase(GroupName(kind, group)) == 0) continue;
      good = Report(ComputeDigest(kind, group, &std::cout)) && good;
    }
  }
  for (const std::string& name : names) std::cerr << "print: there is no group " << name << "\n";
  return good && names.empty() ? 0 : 1;
}

int WriteFiles(const std::string& folder) {
  std::map<std::string, std::string> files;  // name -> text
  bool good = true;
  for (const Kind& kind : Kinds()) {
    for (int64_t group = 0; group < kind.num_groups; ++group) {
      const GroupDigest digest = ComputeDigest(kind, group);
      good = Report(digest) && good;
      for (const auto& [name, entry] : digest.Entries()) absl::StrAppend(&files[name], digest.name, " ", entry, "\n");
    }
  }
  if (!good) {
    std::cerr << "print: wrote nothing, because results that should be equal differ\n";
    return 1;
  }
  for (const auto& [name, text] : files) {
    const std::string path = absl::StrCat(folder, "/", name, ".txt");
    if (!(std::ofstream(path) << text).flush()) {
      std::cerr << "print: cannot write " << path << "\n";
      return 1;
    }
    std::cout << "wrote " << path << "\n";
  }
  for (const EqualTargets& equal : AllEqualTargets()) {
    if (files.contains(std::string(equal.name))) continue;
    std::cout << "left " << folder << "/" << equal.name << ".txt as it is: this machine has no " << equal.name << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace aqt::digest

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write") return aqt::digest::WriteFiles(argv[2]);
  if (argc > 1) return aqt::digest::PrintGroups({argv + 1, argv + argc});
  std::cerr << "usage: print GROUP...\n       print --write FOLDER\n";
  return 2;
}
