#ifndef TESTS_BENCHMARKS_ELEMENTWISE_PROGRAMS_H_
#define TESTS_BENCHMARKS_ELEMENTWISE_PROGRAMS_H_

// Programs without products, which run fused: each argument is read once, and each output written once.

#include <cstdint>
#include <vector>

#include "tests/benchmarks/program_case.h"

namespace aqt::benchmarks {

// On matrices of f32 with so many rows and columns, and "chain_bf16" on one of bf16 with as many bytes:
//   chain     max(1.5 x + 0.25 - 1, 0) * 0.5 + 3
//   softmax   of the rows
//   norm      of the rows: (x - mean) / (variance + 1e-5) * gain + bias
//   adam      the update of parameters and two moments, without a root, in place
std::vector<ProgramCase> ElementwisePrograms(int64_t rows, int64_t columns);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_ELEMENTWISE_PROGRAMS_H_
