#ifndef TESTS_BENCHMARKS_MACHINE_ROOF_H_
#define TESTS_BENCHMARKS_MACHINE_ROOF_H_

// The most that this machine can do. Products: the rate of a multiply instruction on registers only, of one core.
// Memory: how fast bytes are read or copied. Measured, since clocks vary; the best of many short loops.

#include <cstdint>
#include <string>
#include <vector>

#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"

namespace aqt::benchmarks {

// The vector and tile instructions that matter here.
struct Instructions {
  bool avx2 = false, avx_vnni = false, avx512 = false, vnni = false, bf16 = false, amx_int8 = false, amx_bf16 = false;
};
Instructions InstructionsOf(kernels::Target target);

struct Roof {
  std::string instruction;  // empty: not known for this target
  double gops = 0;          // multiplications and additions per nanosecond
};

// The fastest instruction of a target for products of these operands.
Roof F32Roof(kernels::Target target);   // FMA
Roof Bf16Roof(kernels::Target target);  // tdpbf16ps, vdpbf16ps, or the FMA of widened values
Roof S8Roof(kernels::Target target);    // tdpbssd, vpdpbusd, or vpmaddwd with the vpaddd that it needs

// Each of these instructions that the processor has, whatever the kernels use.
std::vector<Roof> AllRoofs();

// GB/s at which all threads of the executor together (null: this thread) read `bytes` bytes again and again, each
// thread its own part, or copy as many from one place to another (counted once). Measured once for each argument.
double ReadGBps(int64_t bytes, Executor* executor);
double CopyGBps(int64_t bytes, Executor* executor);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_MACHINE_ROOF_H_
