#define AQT_EIGEN_MATMUL EigenMatMul_avx512
#include "tests/benchmarks/eigen_peer_impl.h"
