#ifndef AQT_KERNELS_GEMM_FEW_ROWS_H_
#define AQT_KERNELS_GEMM_FEW_ROWS_H_

// f32 products with few rows. Packing the whole rhs would take longer than the product. An rhs whose rows have stride 1
// is read in place, once; any other is packed in pieces that stay in L1.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// With more rows than this, packing pays off.
inline constexpr int64_t kMaxFewRows = 12;
// Columns that are multiplied together: their sums stay in L2, and an rhs in place is read in runs of 4 KiB.
inline constexpr int64_t kFewRowsChunk = 1024;

// An rhs whose rows have a stride other than 1 is packed in pieces from this many elements on (4 MiB). A smaller one
// stays in cache until its panels are read.
inline constexpr int64_t kMinPieces = 1 << 20;

// Whether MultiplyFewRows can replace this kernel and is faster: an f32 kernel with FMA, 1 to kMaxFewRows lhs rows, f32
// operands, and an rhs whose rows and k are one axis each.
bool ShouldMultiplyFewRows(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs);

// Floats in `lhs_rows`, a dense copy of the lhs.
int64_t FewRowsFloats(const Operand& lhs);

// What RunGemm gives for operands that Pack packed, bit for bit.
void MultiplyFewRows(const GemmKernel& kernel, const GemmProblem& problem, float* lhs_rows, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_FEW_ROWS_H_
