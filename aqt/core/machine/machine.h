#ifndef AQT_CORE_MACHINE_MACHINE_H_
#define AQT_CORE_MACHINE_MACHINE_H_

// The caches of the machine, for code that cuts work to fit them. Only speed may depend on it: results have the same
// bits on every machine.

#include <cstdint>

namespace aqt {

// The defaults are taken where the operating system does not tell.
struct Machine {
  int64_t l1_bytes = 32 << 10;  // data of one core
  int64_t l2_bytes = 1 << 20;   // of one core
  int64_t l3_bytes = 16 << 20;  // shared by cores

  bool operator==(const Machine&) const = default;
};

// Read once, from the operating system.
const Machine& ThisMachine();

}  // namespace aqt

#endif  // AQT_CORE_MACHINE_MACHINE_H_
