#ifndef TESTS_BENCHMARKS_MACHINE_ROOF_H_
#define TESTS_BENCHMARKS_MACHINE_ROOF_H_

// The most that one core can do: the rate of a kernel's multiply instructions on registers only. Measured, since clocks
// vary; the best of many short loops.

#include <string>

#include "aqt/kernels/target.h"

namespace aqt::benchmarks {

struct Roof {
  std::string instruction;  // empty: not known for this target
  double gops = 0;          // multiplications and additions per nanosecond
};

Roof F32Roof(kernels::Target target);  // FMA
Roof S8Roof(kernels::Target target);   // vpdpbusd, or vpmaddwd with the vpaddd that it needs

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_MACHINE_ROOF_H_
