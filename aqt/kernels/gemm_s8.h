#ifndef AQT_KERNELS_GEMM_S8_H_
#define AQT_KERNELS_GEMM_S8_H_

// s8 x s8 -> s32 kernels. Sums are exact as long as they fit s32 (see kMaxExactK), and wrap modulo 2^32 beyond.
//
// kernel       tile     lhs panel     rhs panel          per step
// avx512_vnni  8 x 32   u8 (a + 128)  s8, 4 k x 32 n     vpdpbusd; the -128 * column sums start the accumulators
// avx512       8 x 32   s16           s8, 2 k x 32 n     widen rhs, vpmaddwd, vpaddd
// avx2         6 x 16   s16           s8, 2 k x 16 n     the same
// emulated_*   the same geometry and arithmetic in plain C++, for every machine

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

// The largest k whose sums are exact for all s8 values: k * 128 * 128 < 2^31. The caller checks, or splits k.
inline constexpr int64_t kMaxExactK = 131071;
// The same if no value is -128 (AQT's integers never are): k * 127 * 127 < 2^31.
inline constexpr int64_t kMaxExactSymmetricK = 133144;

// The kernel for a target; for kScalar the emulated tile of avx2.
const GemmKernel& GemmS8(Target target);

// Every kernel that this machine can run, including the emulated ones.
absl::Span<const GemmKernel* const> AllGemmS8();

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_S8_H_
