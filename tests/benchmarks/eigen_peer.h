#ifndef TESTS_BENCHMARKS_EIGEN_PEER_H_
#define TESTS_BENCHMARKS_EIGEN_PEER_H_

// Eigen's f32 matrix product, compiled for the instructions that this machine has.

#include "tests/benchmarks/matmul.h"

namespace aqt::benchmarks {

using EigenMatMul = void (*)(const MatMul& shape, const float* a, const float* b, float* c, int threads);

// Eigen compiled for AVX-512 or for AVX2 and FMA; null on a machine without both. With `allow_avx512` false, behaves as
// on a machine without AVX-512.
EigenMatMul FindEigenMatMul(bool allow_avx512);

}  // namespace aqt::benchmarks

#endif  // TESTS_BENCHMARKS_EIGEN_PEER_H_
