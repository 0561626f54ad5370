#include "aqt/testing/allocation_count.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> allocation_count = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++allocation_count;
  void* p = std::malloc(bytes);
  if (p == nullptr) std::abort();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace aqt::testing {

int64_t AllocationCount() { return allocation_count; }

}  // namespace aqt::testing
