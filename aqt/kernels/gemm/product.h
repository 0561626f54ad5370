#ifndef AQT_KERNELS_GEMM_PRODUCT_H_
#define AQT_KERNELS_GEMM_PRODUCT_H_

// The product of operands of which any may not be packed yet. It packs them as schedule.h chooses.

#include <cstdint>

#include "aqt/core/executor.h"
#include "aqt/kernels/gemm/gemm.h"

namespace aqt::kernels {

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

// What RunGemm gives for operands that Pack packed, bit for bit. Panels of `packed` are null where the operand is not
// packed yet; the distances between those of the matrices of a batch are not read.
void PackAndMultiply(const GemmKernel& kernel, const GemmProblem& problem, const GemmPanels& packed,
                     const ProductBuffers& buffers, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_PRODUCT_H_
