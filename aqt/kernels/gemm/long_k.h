#ifndef AQT_KERNELS_GEMM_LONG_K_H_
#define AQT_KERNELS_GEMM_LONG_K_H_

// A float product that packs both operands one block of k at a time, just before the block is added to the sums. For a
// long k with few rows and columns, such as the gradient of a convolution kernel, and wherever IsFasterLongK.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack_lines.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// Whether RunGemmLongK supports the kernel.
bool CanRunLongK(const GemmKernel& kernel);

// A buffer size that suffices for any number of threads.
int64_t LongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k);

// What RunGemm gives for operands that Pack packed, bit for bit. `buffer` has LongKBytes and is aligned to
// kPanelAlignment. Fastest if the lhs has fewer rows than the rhs.
void RunGemmLongK(const GemmKernel& kernel, const GemmProblem& problem, void* buffer, Executor* executor);

// Whether that is faster than packing all of the rhs first, if no rows of the lhs overlap:
//   - on several threads, for small matrices: each thread packs its own columns, and no panel that another one has just
//     written comes from that one's caches;
//   - for an rhs that leaves the caches, and not more rows than have a block of k in L2: its panels stay in L2.
bool IsFasterLongK(const GemmKernel& kernel, const GemmProblem& problem, const Executor* executor);

// The largest LongKBytes over all thread counts for which it is faster; 0 if there is none.
int64_t FasterLongKBytes(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k);

namespace internal {

// Bytes of sums for the columns that are summed together. The sums come from L3 for each block of k, which up to this
// size costs less than packing the lhs once more.
inline constexpr int64_t kSumBytes = 2 << 20;

// Panels [first_row, last_row) of the rows of matrix b, and panels [first_col, last_col) of its columns.
struct PanelsOfProduct {
  int64_t b, first_row, last_row, first_col, last_col;
};

// Memory for a block of k of these rows, for a block of one panel of columns, and for the sums: a float for each
// element of the panels.
struct LongKBuffers {
  void *lhs, *rhs;
  float* sums;
};

// What PackPanels reads of these rows and this range of k, if expressible as RowsAhead; otherwise empty.
RowsAhead AheadOf(const PanelFormat& format, const Operand& src, const PanelRange& range);

// This part of the product. `rhs` is null unless the rhs is packed already; then no memory for a block of it is needed.
void MultiplyByBlocksOfK(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels* rhs,
                         const PanelsOfProduct& part, const LongKBuffers& buffers);

}  // namespace internal
}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_LONG_K_H_
