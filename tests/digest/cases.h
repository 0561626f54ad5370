#ifndef AQT_TESTS_DIGEST_CASES_H_
#define AQT_TESTS_DIGEST_CASES_H_

// The random cases of the digest, in groups of one kind.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tests/digest/contraction.h"

namespace aqt::digest {

inline constexpr int64_t kCasesPerGroup = 50;

struct Case {
  std::string words;        // shapes, configuration and use
  int64_t num_refused = 0;  // configurations that Make refused before it took this one; `fields` begins with the codes
  bool refused = false;     // it took none
  Fields fields = {};       // what needs no run
  std::function<Fields(const Machine&)> run = nullptr;
};

struct Kind {
  absl::string_view name;  // "einsum"
  int64_t num_groups;
  Case (*draw)(uint64_t seed);
};
absl::Span<const Kind> Kinds();

// Case `index` of a group of the kind.
Case DrawCase(const Kind& kind, int64_t group, int64_t index);

}  // namespace aqt::digest

#endif  // AQT_TESTS_DIGEST_CASES_H_
