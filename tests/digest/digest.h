#ifndef AQT_TESTS_DIGEST_DIGEST_H_
#define AQT_TESTS_DIGEST_DIGEST_H_

// The digest of a group: the results of all its cases on every SIMD target of this machine, with 1, 2 and 7 threads.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/machine/target.h"
#include "tests/digest/cases.h"

namespace aqt::digest {

// SIMD targets whose float sums have equal bits (docs/bits.md, Level 2).
struct EqualTargets {
  absl::string_view name;  // that of the weakest
  std::vector<kernels::Target> targets;
};
// All targets with a name.
absl::Span<const EqualTargets> AllEqualTargets();

// The file of the digests of Level 1. Those of Level 2 are in files named after EqualTargets.
inline constexpr absl::string_view kEverywhere = "everywhere";

struct GroupDigest {
  std::string name;         // "einsum/0"
  int64_t refused = 0;      // cases whose every configuration Make refused
  int64_t refusals = 0;     // configurations that it refused
  uint64_t everywhere = 0;  // of the fields of Level 1
  // The fields of Level 2: the name of EqualTargets -> digest, for the targets that this machine has.
  std::map<std::string, uint64_t> on_targets = {};
  // Fields that depend on the number of threads, or on the target although they should not.
  std::vector<std::string> problems = {};

  // What the files of digests have for this group: "everywhere" -> "0123456789abcdef refused=1", "avx2" -> "...", ...
  std::map<std::string, std::string> Entries() const;
};

std::string GroupName(const Kind& kind, int64_t group);

// Prints each case in words, with its fields, to `details` if there is one.
GroupDigest ComputeDigest(const Kind& kind, int64_t group, std::ostream* details = nullptr);

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_DIGEST_H_
