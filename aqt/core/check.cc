#include "aqt/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace aqt::internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace aqt::internal
