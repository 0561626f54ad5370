#ifndef TESTS_BENCHMARKS_ELEMENTWISE_PROGRAMS_H_
#define TESTS_BENCHMARKS_ELEMENTWISE_PROGRAMS_H_

// Programs without products that run fused: each argument is read once, and each output is written once.

#include <cstdint>
#include <vector>

#include "tests/benchmarks/program_case.h"

namespace aqt::benchmarks {

// On f32 matrices with `rows` and `columns`; "chain_bf16" on a bf16 matrix of the same size in bytes:
//   chain     max(1.5 x + 0.25 - 1, 0) * 0.5 + 3
//   softmax   of the rows
//   norm      of the rows: (x - mean) / (variance + 1e-5) * gain + bias
//   adam      the update of parameters and two moments, without a root, in place
std::vector<ProgramCase> ElementwisePrograms(int64_t rows, int64_t columns);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_ELEMENTWISE_PROGRAMS_H_
