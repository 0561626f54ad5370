#ifndef AQT_KERNELS_GEMM_BY_LINES_H_
#define AQT_KERNELS_GEMM_BY_LINES_H_

// A product whose lhs rows overlap, as windows of a convolution do. Panels hold an element once for every row that has
// it, nine times for windows of 3 x 3. Here the lhs is cut into lines of 64 bytes, each is stored once, and the tiles
// read their rows from them (LhsLines). As in gemm_by_blocks.h, a block of rows is stored just before it is multiplied.
//
// Within a run of rows, the innermost axis, the sources of neighbouring rows are a fixed number of bytes apart: one
// position. Each line of k belongs to some position, counted from the row's own, and its place there names a plane.
// A block stores plane after plane, and in a plane position after position:
//   rows of a run   r0 r1 r2 ...             a window of 3 positions with two lines each (a, b)
//   plane a         a0 a1 a2 a3 a4 ...       row 0 reads a0 b0 a1 b1 a2 b2
//   plane b         b0 b1 b2 b3 b4 ...       row 1 reads a1 b1 a2 b2 a3 b3

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/operand.h"

namespace aqt::kernels {

// Bytes of the buffer that RunGemmByLines needs for products with n columns; 0 if it cannot run, or if panels are
// expected to be as fast. Depends on the axes of the lhs and its dtype. Memory between the rows is read, too.
int64_t LinesBytes(const GemmKernel& kernel, const Operand& lhs, int64_t n);

// What RunGemm(kernel, args, executor) gives for an lhs that Pack packed, bit for bit, unless args.epilogue.adds.
// args.lhs is not read; `buffer` has LinesBytes, which are not 0, aligned to kPanelAlignment.
void RunGemmByLines(const GemmKernel& kernel, const Operand& lhs, bool subnormals_are_zero, const GemmArgs& args,
                    void* buffer, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_BY_LINES_H_
