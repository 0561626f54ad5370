#ifndef AQT_TESTS_DIGEST_DIGEST_H_
#define AQT_TESTS_DIGEST_DIGEST_H_

// The digest of a group: what all its cases give, on every SIMD target of this machine, with 1, 2 and 7 threads.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "aqt/core/machine/target.h"
#include "tests/digest/cases.h"

namespace aqt::digest {

struct GroupDigest {
  std::string name;                                    // "einsum/0"
  int64_t refused = 0;                                 // cases whose every configuration Make refused
  int64_t refusals = 0;                                // configurations that it refused
  uint64_t everywhere = 0;                             // of the fields of Level 1
  std::map<kernels::Target, uint64_t> on_target = {};  // of those of Level 2
  // Fields that depend on the number of threads, or are of Level 1 and depend on the target.
  std::vector<std::string> problems = {};

  // "einsum/0 refused=1 all=0123456789abcdef scalar=... avx2=... avx512=... avx512_vnni=..."
  std::string ToString() const;
};

std::string GroupName(const Kind& kind, int64_t group);

// Prints each case in words, with its fields, to `details` if there is one.
GroupDigest ComputeDigest(const Kind& kind, int64_t group, std::ostream* details = nullptr);

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_DIGEST_H_
