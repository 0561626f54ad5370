#include "tests/benchmarks/machine_roof.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace aqt::benchmarks {
namespace {

#ifdef __x86_64__

constexpr int64_t kIterations = 20000;

// Best time of a loop, in nanoseconds per iteration.
template <class Loop>
double BestNanoseconds(const Loop& loop) {
  double best = 1e30;
  for (int round = 0; round < 200; ++round) {
    const auto start = std::chrono::steady_clock::now();
    loop();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / kIterations);
  }
  return best;
}

// clang-format off
#define AQT_ZERO(r) "vpxor %%xmm" #r ", %%xmm" #r ", %%xmm" #r "\n\t"
#define AQT_ZERO_ALL                                                                                  \
  AQT_ZERO(0) AQT_ZERO(1) AQT_ZERO(2) AQT_ZERO(3) AQT_ZERO(4) AQT_ZERO(5) AQT_ZERO(6) AQT_ZERO(7)     \
  AQT_ZERO(8) AQT_ZERO(9) AQT_ZERO(10) AQT_ZERO(11) AQT_ZERO(12) AQT_ZERO(13) AQT_ZERO(14) AQT_ZERO(15)
// 12 independent chains of op(r), r the accumulator: enough for a latency of 6 at two per cycle.
#define AQT_TWELVE(op) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13)
#define AQT_LOOP(op)                                                                                               \
  int64_t n = kIterations;                                                                                         \
  __asm__ volatile(AQT_ZERO_ALL "1:\n\t" AQT_TWELVE(op) "dec %0\n\tjnz 1b\n\tvzeroupper\n\t"                       \
                   : "+r"(n)                                                                                       \
                   :                                                                                               \
                   : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                     "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
// clang-format on

#define AQT_FMA256(r) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #r "\n\t"
#define AQT_FMA512(r) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" #r "\n\t"
#define AQT_MADD256(r) "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n\tvpaddd %%ymm14, %%ymm" #r ", %%ymm" #r "\n\t"
#define AQT_MADD512(r) "vpmaddwd %%zmm0, %%zmm1, %%zmm14\n\tvpaddd %%zmm14, %%zmm" #r ", %%zmm" #r "\n\t"
#define AQT_DOT512(r) "vpdpbusd %%zmm0, %%zmm1, %%zmm" #r "\n\t"

void Fma256() { AQT_LOOP(AQT_FMA256); }
void Fma512() { AQT_LOOP(AQT_FMA512); }
void Madd256() { AQT_LOOP(AQT_MADD256); }
void Madd512() { AQT_LOOP(AQT_MADD512); }
void Dot512() { AQT_LOOP(AQT_DOT512); }

// 12 instructions of `products` multiplications and additions each.
Roof Measure(const char* instruction, int products, void (*loop)()) {
  return {instruction, 12.0 * 2.0 * products / BestNanoseconds(loop)};
}

#endif  // __x86_64__

}  // namespace

Roof F32Roof(kernels::Target target) {
#ifdef __x86_64__
  if (target.Has(kernels::Capability::kAvx512)) return Measure("vfmadd231ps zmm", 16, Fma512);
  if (target.Has(kernels::Capability::kAvx2)) return Measure("vfmadd231ps ymm", 8, Fma256);
#endif
  static_cast<void>(target);
  return {};
}

Roof S8Roof(kernels::Target target) {
#ifdef __x86_64__
  if (target.Has(kernels::Capability::kAvx512Vnni)) return Measure("vpdpbusd zmm", 64, Dot512);
  if (target.Has(kernels::Capability::kAvx512)) return Measure("vpmaddwd + vpaddd zmm", 32, Madd512);
  if (target.Has(kernels::Capability::kAvx2)) return Measure("vpmaddwd + vpaddd ymm", 16, Madd256);
#endif
  static_cast<void>(target);
  return {};
}

}  // namespace aqt::benchmarks
