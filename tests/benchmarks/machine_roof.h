#ifndef TESTS_BENCHMARKS_MACHINE_ROOF_H_
#define TESTS_BENCHMARKS_MACHINE_ROOF_H_

// Upper bounds of this machine. Products: the rate of a multiply instruction on registers, on one core. Memory: the
// rate of reading or copying bytes. Both are measured, because clocks vary, as the best of many short loops.

#include <cstdint>
#include <string>
#include <vector>

#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"

namespace aqt::benchmarks {

// The relevant vector and tile instructions.
struct Instructions {
  bool avx2 = false, avx_vnni = false, avx512 = false, vnni = false, bf16 = false, amx_int8 = false, amx_bf16 = false;
};
Instructions InstructionsOf(kernels::Target target);

struct Roof {
  std::string instruction;  // empty: unknown for this target
  double gops = 0;          // multiplications and additions per nanosecond
};

// The fastest instruction of a target for products of these operands.
Roof F32Roof(kernels::Target target);   // FMA
Roof Bf16Roof(kernels::Target target);  // tdpbf16ps, vdpbf16ps, or the FMA of widened values
Roof S8Roof(kernels::Target target);    // tdpbssd, vpdpbusd, or vpmaddwd with the vpaddd that it needs

// All of these instructions that the processor has, regardless of AQT_MAX_TARGET.
std::vector<Roof> AllRoofs();

// GB/s at which all threads of the executor together (null: this thread) read `bytes` bytes repeatedly, each thread its
// own part, or copy them (each byte counted once). Measured once for each argument.
double ReadGBps(int64_t bytes, Executor* executor);
double CopyGBps(int64_t bytes, Executor* executor);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_MACHINE_ROOF_H_
