#ifndef TESTS_BENCHMARKS_MACHINE_ROOF_H_
#define TESTS_BENCHMARKS_MACHINE_ROOF_H_

// What one core can do at most: the rate of the multiplying instructions of a kernel on registers alone. Measured,
// since clocks vary; the best of many short loops.

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
