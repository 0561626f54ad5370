#define AQT_EIGEN_MATMUL EigenMatMul_avx2
#include "tests/benchmarks/eigen_peer_impl.h"
