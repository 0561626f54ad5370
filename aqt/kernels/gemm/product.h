#ifndef AQT_KERNELS_GEMM_PRODUCT_H_
#define AQT_KERNELS_GEMM_PRODUCT_H_

// The product of operands of which any may not be packed yet. It packs them in the way that is fastest for their
// extents: a few rows of floats read the rhs where it is (gemm_few_rows.h), a small product on several threads and one
// with a large rhs pack block by block of k (gemm_long_k.h), others pack the rhs first and then a block of rows at a
// time (gemm_by_blocks.h), or all of both.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

struct ProductOperands {
  Operand lhs, rhs;
  // Panels in the kernel's formats; null if the operand is not packed yet. Of one that is, only the extents are read.
  const void* lhs_panels = nullptr;
  const void* rhs_panels = nullptr;
  bool lhs_rows_overlap = false;     // as windows of a convolution do
  bool subnormals_are_zero = false;  // of what is packed, as Pack says
};

// What ProductBuffers have to hold if neither operand is packed, for any number of threads.
struct ProductBytes {
  int64_t lhs = 0, rhs = 0;
};
ProductBytes ProductBytesOf(const GemmKernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k);

// Memory for packing, aligned to kPanelAlignment. For an operand that is packed there may be none; the other one then
// needs no more than its panels.
struct ProductBuffers {
  void* lhs = nullptr;
  void* rhs = nullptr;
};

// What RunGemm(kernel, args, executor) gives for operands that Pack packed, bit for bit. The panels of `args`, and the
// distances between those of the matrices of a batch, are not read.
void RunProduct(const GemmKernel& kernel, const ProductOperands& operands, GemmArgs args, const ProductBuffers& buffers,
                Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_PRODUCT_H_
