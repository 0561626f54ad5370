#include "tests/benchmarks/machine_roof.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "aqt/core/array.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"

namespace aqt::benchmarks {
namespace {

double BestSeconds(int rounds, absl::FunctionRef<void()> run) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

#ifdef __x86_64__

// All targets of this machine, regardless of AQT_MAX_TARGET.
Instructions InProcessor() {
  kernels::Target all;
  for (const kernels::Target target : kernels::SupportedTargets()) all = all | target;
  return InstructionsOf(all);
}

constexpr int64_t kIterations = 20000;

// clang-format off
#define AQT_ZERO(r) "vpxor %%xmm" #r ", %%xmm" #r ", %%xmm" #r "\n\t"
#define AQT_ZERO_ALL                                                                                  \
  AQT_ZERO(0) AQT_ZERO(1) AQT_ZERO(2) AQT_ZERO(3) AQT_ZERO(4) AQT_ZERO(5) AQT_ZERO(6) AQT_ZERO(7)     \
  AQT_ZERO(8) AQT_ZERO(9) AQT_ZERO(10) AQT_ZERO(11) AQT_ZERO(12) AQT_ZERO(13) AQT_ZERO(14) AQT_ZERO(15)
#define AQT_ALL_XMM                                                                                                \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",       \
  "xmm13", "xmm14", "xmm15"
// 12 independent chains of op(r), where r is the accumulator: enough for a latency of 6 at two per cycle.
#define AQT_TWELVE(op) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11) op(12) op(13)
#define AQT_LOOP(op)                                                                                               \
  int64_t n = kIterations;                                                                                         \
  __asm__ volatile(AQT_ZERO_ALL "1:\n\t" AQT_TWELVE(op) "dec %0\n\tjnz 1b\n\tvzeroupper\n\t"                       \
                   : "+r"(n)                                                                                       \
                   :                                                                                               \
                   : "cc", AQT_ALL_XMM)
// The four tiles of accumulators of a 2 x 2 block; operands stay in tiles 4 to 7.
#define AQT_TILE_LOOP(op)                                                                                          \
  const TileConfig config;                                                                                         \
  int64_t n = kIterations / 4;                                                                                     \
  __asm__ volatile("ldtilecfg %1\n\t"                                                                              \
                   "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"                  \
                   "tilezero %%tmm4\n\ttilezero %%tmm5\n\ttilezero %%tmm6\n\ttilezero %%tmm7\n\t"                  \
                   "1:\n\t" op " %%tmm6, %%tmm4, %%tmm0\n\t" op " %%tmm7, %%tmm4, %%tmm1\n\t"                      \
                   op " %%tmm6, %%tmm5, %%tmm2\n\t" op " %%tmm7, %%tmm5, %%tmm3\n\t"                               \
                   "dec %0\n\tjnz 1b\n\ttilerelease\n\t"                                                           \
                   : "+r"(n)                                                                                       \
                   : "m"(config)                                                                                   \
                   : "cc")
// clang-format on

#define AQT_FMA256(r) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" #r "\n\t"
#define AQT_FMA512(r) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" #r "\n\t"
#define AQT_MADD256(r) "vpmaddwd %%ymm0, %%ymm1, %%ymm14\n\tvpaddd %%ymm14, %%ymm" #r ", %%ymm" #r "\n\t"
#define AQT_MADD512(r) "vpmaddwd %%zmm0, %%zmm1, %%zmm14\n\tvpaddd %%zmm14, %%zmm" #r ", %%zmm" #r "\n\t"
#define AQT_DOT512(r) "vpdpbusd %%zmm0, %%zmm1, %%zmm" #r "\n\t"
#define AQT_DOT256(r) "%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm" #r "\n\t"
#define AQT_BF16_DOT512(r) "vdpbf16ps %%zmm0, %%zmm1, %%zmm" #r "\n\t"

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  TileConfig() {
    for (int t = 0; t < 8; ++t) {
      row_bytes[t] = 64;
      rows[t] = 16;
    }
  }
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

void Fma256() { AQT_LOOP(AQT_FMA256); }
void Fma512() { AQT_LOOP(AQT_FMA512); }
void Madd256() { AQT_LOOP(AQT_MADD256); }
void Madd512() { AQT_LOOP(AQT_MADD512); }
void Dot256() { AQT_LOOP(AQT_DOT256); }
void Dot512() { AQT_LOOP(AQT_DOT512); }
void Bf16Dot512() { AQT_LOOP(AQT_BF16_DOT512); }
void TileS8() { AQT_TILE_LOOP("tdpbssd"); }
void TileBf16() { AQT_TILE_LOOP("tdpbf16ps"); }

constexpr double kVectorInstructions = 12.0 * kIterations, kTileInstructions = kIterations;

// Each instruction has `products` multiplications and additions.
Roof Measure(const char* instruction, double products, double instructions, void (*loop)()) {
  return {instruction, 2e-9 * products * instructions / BestSeconds(200, loop)};
}

Roof F32(const Instructions& has) {
  if (has.avx512) return Measure("vfmadd231ps zmm", 16, kVectorInstructions, Fma512);
  if (has.avx2) return Measure("vfmadd231ps ymm", 8, kVectorInstructions, Fma256);
  return {};
}
Roof Bf16(const Instructions& has) {
  if (has.amx_bf16) return Measure("tdpbf16ps", 16 * 16 * 32, kTileInstructions, TileBf16);
  if (has.bf16) return Measure("vdpbf16ps zmm", 32, kVectorInstructions, Bf16Dot512);
  return F32(has);
}
Roof S8(const Instructions& has) {
  if (has.amx_int8) return Measure("tdpbssd", 16 * 16 * 64, kTileInstructions, TileS8);
  if (has.vnni) return Measure("vpdpbusd zmm", 64, kVectorInstructions, Dot512);
  if (has.avx512) return Measure("vpmaddwd + vpaddd zmm", 32, kVectorInstructions, Madd512);
  if (has.avx_vnni) return Measure("vpdpbusd ymm", 32, kVectorInstructions, Dot256);
  if (has.avx2) return Measure("vpmaddwd + vpaddd ymm", 16, kVectorInstructions, Madd256);
  return {};
}

// 512 bytes in each step.
void Read512(const char* data, int64_t steps) {
  __asm__ volatile(
      "1:\n\t"
      "vmovups (%0), %%zmm0\n\tvmovups 64(%0), %%zmm1\n\tvmovups 128(%0), %%zmm2\n\tvmovups 192(%0), %%zmm3\n\t"
      "vmovups 256(%0), %%zmm4\n\tvmovups 320(%0), %%zmm5\n\tvmovups 384(%0), %%zmm6\n\tvmovups 448(%0), %%zmm7\n\t"
      "add $512, %0\n\tdec %1\n\tjnz 1b\n\tvzeroupper\n\t"
      : "+r"(data), "+r"(steps)
      :
      : "cc", "memory", AQT_ALL_XMM);
}
void Read256(const char* data, int64_t steps) {
  steps *= 2;
  __asm__ volatile(
      "1:\n\t"
      "vmovups (%0), %%ymm0\n\tvmovups 32(%0), %%ymm1\n\tvmovups 64(%0), %%ymm2\n\tvmovups 96(%0), %%ymm3\n\t"
      "vmovups 128(%0), %%ymm4\n\tvmovups 160(%0), %%ymm5\n\tvmovups 192(%0), %%ymm6\n\tvmovups 224(%0), %%ymm7\n\t"
      "add $256, %0\n\tdec %1\n\tjnz 1b\n\tvzeroupper\n\t"
      : "+r"(data), "+r"(steps)
      :
      : "cc", "memory", AQT_ALL_XMM);
}

#endif  // __x86_64__

void ReadBytes(const char* data, int64_t steps) {
#ifdef __x86_64__
  static const Instructions has = InProcessor();
  if (has.avx512) return Read512(data, steps);
  if (has.avx2) return Read256(data, steps);
#endif
  uint64_t sum = 0;
  for (int64_t i = 0; i < 64 * steps; ++i) {
    uint64_t word;
    std::memcpy(&word, data + 8 * i, 8);
    sum += word;
  }
  __asm__ volatile("" : : "r"(sum));  // pretends to use it
}

constexpr int64_t kStep = 512;

// GB/s of run(offset, steps) over all of `bytes`, each thread on its own part.
double GBps(int64_t bytes, Executor* executor, absl::FunctionRef<void(int64_t offset, int64_t steps)> run) {
  const int64_t threads = executor == nullptr ? 1 : executor->NumThreads();
  const int64_t steps = std::max<int64_t>(1, bytes / kStep / threads);
  const int64_t passes = std::max<int64_t>(1, (int64_t{4} << 20) / (steps * kStep));
  const auto part = [&](int64_t thread) {
    for (int64_t pass = 0; pass < passes; ++pass) run(thread * steps * kStep, steps);
  };
  const double best = BestSeconds(20, [&] {
    if (executor == nullptr) part(0);
    else executor->ParallelFor(threads, part);
  });
  return 1e-9 * static_cast<double>(passes * threads * steps * kStep) / best;
}

// Writes the memory so that it has its own pages: unwritten memory may map to a single page of zeros.
std::shared_ptr<char> Touched(int64_t bytes) {
  const int64_t size = (bytes / kStep + 64) * kStep;
  const std::shared_ptr<void> data = AllocateUninitialized(size);
  std::memset(data.get(), 1, size);
  return {data, static_cast<char*>(data.get())};
}

}  // namespace

Instructions InstructionsOf(kernels::Target target) {
  using kernels::Capability;
  return {.avx2 = target.Has(Capability::kAvx2),
          .avx_vnni = target.Has(Capability::kAvxVnni),
          .avx512 = target.Has(Capability::kAvx512),
          .vnni = target.Has(Capability::kAvx512Vnni),
          .bf16 = target.Has(Capability::kAvx512Bf16),
          .amx_int8 = target.Has(Capability::kAmxInt8),
          .amx_bf16 = target.Has(Capability::kAmxBf16)};
}

#ifdef __x86_64__
Roof F32Roof(kernels::Target target) { return F32(InstructionsOf(target)); }
Roof Bf16Roof(kernels::Target target) { return Bf16(InstructionsOf(target)); }
Roof S8Roof(kernels::Target target) { return S8(InstructionsOf(target)); }

std::vector<Roof> AllRoofs() {
  const Instructions has = InProcessor();
  std::vector<Roof> roofs;
  const auto add = [&](const Roof& roof) {
    const bool known = std::any_of(roofs.begin(), roofs.end(),
                                   [&](const Roof& other) { return other.instruction == roof.instruction; });
    if (!roof.instruction.empty() && !known) roofs.push_back(roof);
  };
  Instructions vector = has;
  vector.amx_int8 = vector.amx_bf16 = false;
  add(F32({.avx2 = has.avx2}));
  add(F32(vector));
  add(Bf16(vector));
  add(S8({.avx2 = has.avx2}));
  add(S8({.avx2 = has.avx2, .avx_vnni = has.avx_vnni}));
  add(S8(vector));
  add(Bf16(has));
  add(S8(has));
  return roofs;
}
#else
Roof F32Roof(kernels::Target) { return {}; }
Roof Bf16Roof(kernels::Target) { return {}; }
Roof S8Roof(kernels::Target) { return {}; }
std::vector<Roof> AllRoofs() { return {}; }
#endif

double ReadGBps(int64_t bytes, Executor* executor) {
  static auto* const measured = new std::map<std::pair<int64_t, int>, double>();
  double& rate = (*measured)[{bytes, executor == nullptr ? 1 : executor->NumThreads()}];
  if (rate == 0) {
    const std::shared_ptr<char> data = Touched(bytes);
    rate = GBps(bytes, executor, [&](int64_t offset, int64_t steps) { ReadBytes(data.get() + offset, steps); });
  }
  return rate;
}

double CopyGBps(int64_t bytes, Executor* executor) {
  static auto* const measured = new std::map<std::pair<int64_t, int>, double>();
  double& rate = (*measured)[{bytes, executor == nullptr ? 1 : executor->NumThreads()}];
  if (rate == 0) {
    const std::shared_ptr<char> from = Touched(bytes), to = Touched(bytes);
    rate = GBps(bytes, executor, [&](int64_t offset, int64_t steps) {
      std::memcpy(to.get() + offset, from.get() + offset, steps * kStep);
    });
  }
  return rate;
}

}  // namespace aqt::benchmarks
