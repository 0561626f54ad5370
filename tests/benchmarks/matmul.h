#ifndef TESTS_BENCHMARKS_MATMUL_H_
#define TESTS_BENCHMARKS_MATMUL_H_

#include <cstdint>

namespace aqt::benchmarks {

// c[m, n] = a . b, all row-major. `a` is [m, k], or [k, m] if transposed; `b` is [k, n], or [n, k] if transposed.
struct MatMul {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
};

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_MATMUL_H_
