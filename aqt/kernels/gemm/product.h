#ifndef AQT_KERNELS_GEMM_PRODUCT_H_
#define AQT_KERNELS_GEMM_PRODUCT_H_

// The product of operands that may not be packed yet. It packs them in the way that is fastest for their extents. A few
// rows of floats read the rhs in place (gemm_few_rows.h). A small product on several threads, or one with a large rhs,
// packs one block of k at a time (gemm_long_k.h). Others pack the rhs first and then the lhs one block of rows at a
// time (gemm_by_blocks.h), or all of both.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"

namespace aqt::kernels {

// What ProductBuffers have to hold if neither operand is packed, for any number of threads.
struct ProductBytes {
  int64_t lhs = 0, rhs = 0;
};
ProductBytes ProductBytesOf(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k);

// Memory for packing, aligned to kPanelAlignment. A packed operand needs none; the other one then needs only room for
// its panels.
struct ProductBuffers {
  void* lhs = nullptr;
  void* rhs = nullptr;
};

// What RunGemm gives for operands that Pack packed, bit for bit. Panels of `packed` are null where the operand is not
// packed yet; the distances between those of the matrices of a batch are not read.
void PackAndMultiply(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& packed,
                     const ProductBuffers& buffers, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_PRODUCT_H_
