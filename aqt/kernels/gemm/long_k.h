#ifndef AQT_KERNELS_GEMM_LONG_K_H_
#define AQT_KERNELS_GEMM_LONG_K_H_

// A product of floats whose operands are both packed one block of k at a time, just before the block is added to the
// sums: for a long k and few rows and columns, such as the gradient of a convolution's kernel, and where IsFasterLongK.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack_lines.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// Whether RunGemmLongK can use the kernel.
bool CanRunLongK(const GemmKernel& kernel);

// The bytes of a buffer with which several threads can work.
int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k);

// What RunGemm(kernel, args, executor) gives for operands that Pack packed, bit for bit. The panels of args are not
// read; `buffer` has LongKBytes and is aligned to kPanelAlignment. Fastest if the lhs has fewer rows than the rhs.
void RunGemmLongK(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs, bool subnormals_are_zero,
                  const GemmArgs& args, void* buffer, Executor* executor);

// Whether that is faster than packing all of the rhs first, if no rows of the lhs overlap:
//   - on several threads, for small matrices: each thread packs its own columns, and no panel that another one has just
//     written comes from that one's caches;
//   - for an rhs that leaves the caches, and not more rows than have a block of k in L2: its panels stay in L2.
bool IsFasterLongK(const GemmKernel& kernel, const GemmArgs& args, const Executor* executor);

// The most LongKBytes of a number of threads for which that is so; 0 if there is none.
int64_t FasterLongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k);

namespace internal {

// The sums of the columns that are summed up together: so many bytes, which come from L3 for each block of k, cost less
// than packing the lhs once more.
inline constexpr int64_t kSumBytes = 2 << 20;

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
