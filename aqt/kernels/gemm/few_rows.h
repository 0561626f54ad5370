#ifndef AQT_KERNELS_GEMM_FEW_ROWS_H_
#define AQT_KERNELS_GEMM_FEW_ROWS_H_

// Products of f32 with few rows. Packing a whole rhs would take longer than the product: here it is read where it is,
// once, if its rows have stride 1, and otherwise packed in pieces that stay in L1.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// From here on packing pays off.
inline constexpr int64_t kMaxFewRows = 12;
// Columns that are multiplied together: their sums stay in L2, and an rhs in place is read in runs of 4 KiB.
inline constexpr int64_t kFewRowsChunk = 1024;

// An rhs whose rows have another stride than 1 is packed in pieces from so many elements on (4 MiB): a smaller one
// stays in the caches until its panels are read.
inline constexpr int64_t kMinPieces = 1 << 20;

// Whether MultiplyFewRows can take the place of this kernel, and is faster: one of f32 with FMA, 1 to kMaxFewRows rows
// of lhs, f32 operands, and an rhs whose rows and k are each one axis.
bool ShouldMultiplyFewRows(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs);

// Floats of `lhs_rows`: the lhs, dense.
int64_t FewRowsFloats(const Operand& lhs);

// What RunGemm(kernel, args, executor) gives for operands that Pack packed, bit for bit. Panels of args are not read.
void MultiplyFewRows(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs, bool subnormals_are_zero,
                     const GemmArgs& args, float* lhs_rows, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_FEW_ROWS_H_
