#ifndef AQT_KERNELS_GEMM_FEW_ROWS_H_
#define AQT_KERNELS_GEMM_FEW_ROWS_H_

// f32 products with few rows. Packing the whole rhs would take longer than the product. An rhs whose rows have stride 1
// is read in place, once; any other is packed in pieces that stay in L1.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// Columns that are multiplied together: their sums stay in L2, and an rhs in place is read in runs of 4 KiB.
inline constexpr int64_t kFewRowsChunk = 1024;

// Floats in `lhs_rows`, a dense copy of the lhs.
int64_t FewRowsFloats(const Operand& lhs);

// What RunGemm gives for operands that Pack packed, bit for bit.
void MultiplyFewRows(const GemmKernel& kernel, const GemmProblem& problem, float* lhs_rows, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_FEW_ROWS_H_
