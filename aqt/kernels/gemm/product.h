#ifndef AQT_KERNELS_GEMM_PRODUCT_H_
#define AQT_KERNELS_GEMM_PRODUCT_H_

// The product of operands that may not be packed yet. It packs them in the way that is fastest for their extents. A few
// rows of floats read the rhs in place (gemm_few_rows.h). A small product on several threads, or one with a large rhs,
// packs one block of k at a time (gemm_long_k.h). Others pack the rhs first and then the lhs one block of rows at a
// time (gemm_by_blocks.h), or all of both.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// The operands of RunProduct.
struct ProductOperands {
  Operand lhs, rhs;
  // Panels in the kernel's formats, or null if the operand is not packed yet. For a packed operand, only the extents of
  // lhs or rhs are read.
  const void* lhs_panels = nullptr;
  const void* rhs_panels = nullptr;
  bool lhs_rows_overlap = false;     // like the windows of a convolution
  bool subnormals_are_zero = false;  // applies to operands that are packed here, as in Pack
};

// The required sizes of ProductBuffers if neither operand is packed, for any number of threads.
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

// Computes what RunGemm(kernel, args, executor) would for operands packed by Pack, bit for bit. The panels in `args`
// and their batch distances are ignored.
void RunProduct(const GemmKernel& kernel, const ProductOperands& operands, GemmArgs args, const ProductBuffers& buffers,
                Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_PRODUCT_H_
