#include "aqt/testing/held_bytes.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> held_bytes = 0;

void* Counted(void* p) {
  if (p == nullptr) std::abort();
  held_bytes += static_cast<int64_t>(malloc_usable_size(p));
  return p;
}

void Free(void* p) {
  held_bytes -= static_cast<int64_t>(malloc_usable_size(p));  // 0 of null
  std::free(p);
}

}  // namespace

void* operator new(size_t bytes) { return Counted(std::malloc(bytes)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const size_t step = static_cast<size_t>(alignment);
  return Counted(std::aligned_alloc(step, (bytes / step + 1) * step));
}
void operator delete(void* p) noexcept { Free(p); }
void operator delete(void* p, size_t) noexcept { Free(p); }
void operator delete(void* p, std::align_val_t) noexcept { Free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { Free(p); }

namespace aqt::testing {

int64_t HeldBytes() { return held_bytes; }

}  // namespace aqt::testing
