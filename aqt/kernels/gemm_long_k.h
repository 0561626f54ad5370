#ifndef AQT_KERNELS_GEMM_LONG_K_H_
#define AQT_KERNELS_GEMM_LONG_K_H_

// A product of floats with a long k and few rows and columns, such as the gradient of a convolution's kernel: both
// operands are packed one block of k at a time, just before the block is added to all sums, which stay in L2.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/operand.h"
#include "aqt/kernels/pack_lines.h"
#include "aqt/kernels/panel_format.h"

namespace aqt::kernels {

// Whether RunGemmLongK can use the kernel.
bool CanRunLongK(const GemmKernel& kernel);

// The bytes of a buffer with which several threads can work.
int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n);

// What RunGemm(kernel, args, executor) gives for operands that Pack packed, bit for bit. The panels of args are not
// read; `buffer` has LongKBytes and is aligned to kPanelAlignment. Fastest if the lhs has fewer rows than the rhs.
void RunGemmLongK(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs, bool subnormals_are_zero,
                  const GemmArgs& args, void* buffer, Executor* executor);

namespace internal {

// The sums of a part of the columns, which one thread computes: so many stay in L2 beside the operands' blocks.
inline constexpr int64_t kLongKSumBytes = 640 << 10;

// Panels [first_row, last_row) of the rows of matrix b, and [first_col, last_col) of its columns.
struct PanelsOfProduct {
  int64_t b, first_row, last_row, first_col, last_col;
};

// Memory for a block of k of these rows, of one panel of columns, and for the sums: a float for each element of the
// panels.
struct LongKBuffers {
  void *lhs, *rhs;
  float* sums;
};

// What PackPanels reads of these rows and this range of k, if it lies as a RowsAhead can say; else no rows.
RowsAhead AheadOf(const PanelFormat& format, const Operand& src, const PanelRange& range);

// This part of the product. `rhs` is null if args.rhs holds its panels; then no memory for a block of it is needed.
void MultiplyByBlocksOfK(const GemmKernel& kernel, const Operand& lhs, const Operand* rhs, bool subnormals_are_zero,
                         const GemmArgs& args, const PanelsOfProduct& part, const LongKBuffers& buffers);

}  // namespace internal
}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_LONG_K_H_
