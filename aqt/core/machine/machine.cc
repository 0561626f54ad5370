#include "aqt/core/machine/machine.h"

#include <cstdint>

#if defined(__linux__)
#include <unistd.h>
#endif

namespace aqt {
namespace {

#if defined(_SC_LEVEL1_DCACHE_SIZE)
// glibc says 0 or -1 where it does not know.
int64_t Known(int name, int64_t otherwise) {
  const int64_t bytes = sysconf(name);
  return bytes > 0 ? bytes : otherwise;
}
#endif

Machine Read() {
  Machine machine;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  machine.l1_bytes = Known(_SC_LEVEL1_DCACHE_SIZE, machine.l1_bytes);
  machine.l2_bytes = Known(_SC_LEVEL2_CACHE_SIZE, machine.l2_bytes);
  machine.l3_bytes = Known(_SC_LEVEL3_CACHE_SIZE, machine.l3_bytes);
#endif
  return machine;
}

}  // namespace

const Machine& ThisMachine() {
  static const Machine machine = Read();
  return machine;
}

}  // namespace aqt
