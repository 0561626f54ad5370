#ifndef AQT_KERNELS_GEMM_BY_BLOCKS_H_
#define AQT_KERNELS_GEMM_BY_BLOCKS_H_

// A product whose lhs is packed a block of rows at a time, just before the block is multiplied: it stays in L2, and in
// that of the thread which multiplies it. Where rows overlap, as windows of a convolution do, all panels together are
// many times as large as the operand.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// Whether there are as many blocks as threads, at least.
bool CanRunByBlocks(const GemmKernel& kernel, const Operand& lhs, const Executor* executor);

// Whether that is faster than packing all rows first even if they do not overlap.
bool IsFasterByBlocks(const GemmKernel& kernel, const Operand& lhs);

// What RunGemm(kernel, args, executor) gives for an lhs that Pack packed, bit for bit, unless args.epilogue.adds.
// args.lhs is not read; `buffer` has room for all panels, aligned to kPanelAlignment.
void RunGemmByBlocks(const GemmKernel& kernel, const Operand& lhs, bool subnormals_are_zero, const GemmArgs& args,
                     void* buffer, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_BLOCKS_H_
