#ifndef AQT_KERNELS_GEMM_LONG_K_H_
#define AQT_KERNELS_GEMM_LONG_K_H_

// A float product that packs both operands one block of k at a time, just before the block is added to the sums. For a
// long k with few rows and columns, such as the gradient of a convolution kernel, and wherever Choose (schedule.h)
// picks it.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack_lines.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// What RunGemm gives for operands that Pack packed, bit for bit. `buffer` has cuts.Bytes() and is aligned to
// kPanelAlignment. Fastest if the lhs has fewer rows than the rhs.
void RunGemmLongK(const GemmKernel& kernel, const GemmProblem& problem, const LongKCuts& cuts, void* buffer,
                  Executor* executor);

namespace internal {

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
