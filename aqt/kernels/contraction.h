#ifndef AQT_KERNELS_CONTRACTION_H_
#define AQT_KERNELS_CONTRACTION_H_

// A general contraction of any two strided operands, and how arrays become operands of the matrix kernels.

#include <cstdint>

#include "aqt/core/array_ref.h"
#include "aqt/core/block_epilogue.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/executor.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"

namespace aqt::kernels {

// The axes of an operand by their role; `rows` are the remaining ones.
struct OperandAxes {
  Axes batch = {}, rows = {}, k = {};
  bool operator==(const OperandAxes&) const = default;
};
OperandAxes OperandAxesOf(const DotDims& dims, Side side, int64_t rank);

// The product of the extents of these axes.
int64_t Extent(const Shape& shape, const Axes& axes);

// Whether an operand must be gathered: AxisGroups do not hold all of its axes.
inline bool HasTooManyAxes(const Shape& shape) { return shape.rank() > AxisGroup::kMaxRank; }
// x as the kernels see it, if it does not have too many axes.
Operand OperandOf(const ArrayRef& x, const OperandAxes& axes);
// A dense copy of x in the order [batch, rows, k], in `buffer`, which has room for it.
Operand GatheredOperand(const ArrayRef& x, const OperandAxes& axes, void* buffer);
// Where a product is stored whose lhs has these axes. At most AxisGroup::kMaxRank axes.
GemmOutput OutputOf(const MutableArrayRef& out, const OperandAxes& lhs);

// out = lhs . rhs over `dims`; out is dense. Each output element is a sum over the contracting axes, row-major in the
// order of dims.lhs_contracting. The operand dtypes determine the type and the rounding of the sum:
//   f16, bf16, f32      f32, in ascending order from +0, on the machine's best target. Its steps are those of
//                       kernels/gemm/table.h: f16 and f32 have the same bits on all targets with FMA
//   such an lhs with s8, s4 or s2
//                       as specified in digits.h, with the same bits on all targets
//   f64                 f64, in the same order, with each product and each sum rounded
//   integers up to 32 bits
//                       s32, exact modulo 2^32
// The sum is rounded once to out.dtype, which is a float for float operands and s32 for integers. An empty sum is 0.
// The bits of an element depend only on its own row and column, not on other rows, the batch or the number of threads.
//
// Precondition: ValidateDotDims(dims, ...), matching shapes, and dtypes as above. Allocates packed copies of both
// operands. With a null executor everything runs on the calling thread.
void Contract(const DotDims& dims, const ArrayRef& lhs, const ArrayRef& rhs, const MutableArrayRef& out,
              Executor* executor = nullptr);

// Contract for dense operands, planned ahead: everything that does not depend on data is decided once. Gives the same
// bits. The caller provides the memory for packed operands.
class ContractPlan {
 public:
  // Preconditions as for Contract.
  ContractPlan(const DotDims& dims, const Aval& lhs, const Aval& rhs, const Aval& out);

  // Size of Run's scratch memory, which is aligned to 64 bytes. If it is 0, Run calls Contract.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  // Whether Run accepts a block epilogue that is not null.
  bool has_blocks() const { return scratch_bytes_ != 0; }
  void Run(const void* lhs, const void* rhs, void* out, void* scratch, Executor* executor = nullptr,
           BlockEpilogue* block = nullptr) const;

 private:
  DotDims dims_;
  ArrayRef lhs_, rhs_;
  MutableArrayRef out_;
  const GemmKernel* kernel_ = nullptr;  // null if Run calls Contract
  GemmProblem problem_;                 // without data
  int64_t rhs_at_ = 0, scratch_bytes_ = 0;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_CONTRACTION_H_
