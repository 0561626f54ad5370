#ifndef AQT_KERNELS_RANDOM_NOISE_FAST_H_
#define AQT_KERNELS_RANDOM_NOISE_FAST_H_

// FastBits with AES instructions. Internal.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"

namespace aqt::kernels::internal {

// out[4 * b + j] = bits.Block(first + b * stride)[j], for b < blocks.
using FastBlocks = void (*)(const FastBits& bits, uint64_t first, uint64_t stride, int64_t blocks, uint32_t* out);

// The fastest version for a target.
FastBlocks FastBlocksFor(Target target);
// All versions that this machine can run, slowest first, for tests that compare them.
absl::Span<const FastBlocks> AllFastBlocks();

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_RANDOM_NOISE_FAST_H_
