#include "tests/benchmarks/eigen_peer.h"

namespace aqt::benchmarks {

#ifdef __x86_64__
void EigenMatMul_avx2(const MatMul& shape, const float* a, const float* b, float* c, int threads);
void EigenMatMul_avx512(const MatMul& shape, const float* a, const float* b, float* c, int threads);

EigenMatMul FindEigenMatMul(bool allow_avx512) {
  if (allow_avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    return EigenMatMul_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return EigenMatMul_avx2;
  return nullptr;
}
#else
EigenMatMul FindEigenMatMul(bool) { return nullptr; }
#endif

}  // namespace aqt::benchmarks
