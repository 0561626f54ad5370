#ifndef AQT_KERNELS_GEMM_BY_BLOCKS_H_
#define AQT_KERNELS_GEMM_BY_BLOCKS_H_

// A product whose lhs is packed one block of rows at a time, just before the block is multiplied. The block stays in
// L2, and in the L2 of the thread that multiplies it. If rows overlap, like the windows of a convolution, all panels
// together would be many times the size of the operand.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// Whether there are at least as many blocks as threads.
bool CanRunByBlocks(const GemmKernel& kernel, const Operand& lhs, const Executor* executor);

// Whether this is faster than packing all rows first even if rows do not overlap.
bool IsFasterByBlocks(const GemmKernel& kernel, const Operand& lhs);

// What RunGemm gives for an lhs that Pack packed, bit for bit, unless Epilogue::adds. The rhs is packed; `buffer` has
// room for all panels of the lhs, aligned to kPanelAlignment.
void RunGemmByBlocks(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& rhs, void* buffer,
                     Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_BLOCKS_H_
