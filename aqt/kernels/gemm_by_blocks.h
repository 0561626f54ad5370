#ifndef AQT_KERNELS_GEMM_BY_BLOCKS_H_
#define AQT_KERNELS_GEMM_BY_BLOCKS_H_

// A product whose lhs is packed a block of rows at a time, just before the block is multiplied. Where rows overlap, as
// windows of a convolution do, all panels together are many times as large as the operand; a block stays in L2.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/operand.h"

namespace aqt::kernels {

// Whether RunGemmByBlocks is worth while with a buffer of this size: it has room for a block of each thread.
bool ShouldRunByBlocks(const GemmKernel& kernel, const Operand& lhs, int64_t buffer_bytes, const Executor* executor);

// What RunGemm(kernel, args, executor) gives for an lhs that Pack packed, bit for bit. args.lhs is not read; `buffer`
// is aligned to kPanelAlignment.
void RunGemmByBlocks(const GemmKernel& kernel, const Operand& lhs, bool subnormals_are_zero, const GemmArgs& args,
                     void* buffer, int64_t buffer_bytes, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_BLOCKS_H_
