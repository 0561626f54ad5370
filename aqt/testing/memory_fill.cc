#include "aqt/testing/memory_fill.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {
std::atomic<uint8_t> fill_byte = 0;
}  // namespace

void* operator new(size_t bytes, std::align_val_t alignment) {
  const size_t step = static_cast<size_t>(alignment), size = (bytes / step + 1) * step;
  void* p = std::aligned_alloc(step, size);
  if (p == nullptr) std::abort();
  std::memset(p, fill_byte, size);
  return p;
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace aqt::testing {

void FillNewMemoryWith(uint8_t byte) { fill_byte = byte; }

}  // namespace aqt::testing
