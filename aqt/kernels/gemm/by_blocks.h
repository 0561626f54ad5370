#ifndef AQT_KERNELS_GEMM_BY_BLOCKS_H_
#define AQT_KERNELS_GEMM_BY_BLOCKS_H_

// A product whose lhs is packed one block of rows at a time, just before the block is multiplied. The block stays in
// L2, and in the L2 of the thread that multiplies it. If rows overlap, like the windows of a convolution, all panels
// together would be many times the size of the operand.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/schedule.h"

namespace aqt::kernels {

// What RunGemm gives for an lhs that Pack packed, bit for bit, unless Epilogue::adds. The rhs is packed; `buffer` has
// room for all panels of the lhs, aligned to kPanelAlignment.
void RunGemmByBlocks(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& rhs, const BlockCuts& cuts,
                     void* buffer, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_BLOCKS_H_
